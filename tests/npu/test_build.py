"""The build without a toolchain: what it says, what it would run, and what it reads out of the compiler's answer."""

from __future__ import annotations

import importlib
import stat
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.npu import compiler_stream, fake_iron
from tests.npu.builds import cores_of
from tests.npu.elf_files import elf
from unicorn_async.errors import NpuBuildError
from unicorn_async.npu import tile_budget as budget
from unicorn_async.npu.geometry import CHIPS, HEAD_DIMS, NPU1, NPU2, HeadLayout
from unicorn_async.npu.manifest import find_build
from unicorn_async.npu.schedule import Core
from unicorn_async.resources import resource_dir

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

LAYOUT = HeadLayout(NPU1, 128)
# What a build could use of aiecc: its page of mlir-aie 1.4.0, and the choice between Peano and AMD's own tools.
AIECC_OPTIONS = (
    *("--get-npu-insts", "--npu-insts-name=?*", "--get-xclbin", "--xclbin-name=?*", "--get-full-elf"),
    *("--full-elf-name=?*", "--get=?*", "--device-name=?*", "--sequence-name=?*", "--tmpdir=?*", "--verbose", "-v"),
    *("--peano=?*", "--xchesscc", "--no-xchesscc", "--xbridge", "--no-xbridge"),
)
SCRIPTS = ("build", "program_memory", "toolchain", "attention_design")


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports the scripts of npu/ by name."""
    monkeypatch.syspath_prepend(str(resource_dir("npu")))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in SCRIPTS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in SCRIPTS:
        sys.modules.pop(name, None)


@pytest.fixture
def iron(monkeypatch: pytest.MonkeyPatch) -> None:
    """mlir-aie's Python is the recorder."""
    for name, module in fake_iron.modules().items():
        monkeypatch.setitem(sys.modules, name, module)


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def tools(tmp_path: Path, scripts: Any) -> Any:
    """A toolchain of shell scripts: the compiler makes an object, aiecc an xclbin and the known instructions.

    As aiecc does, it refuses an option that it doesn't know, and makes what it is asked for alone, under its names.
    """
    root = tmp_path / "tools"
    words = np.array(compiler_stream.known_sequence(LAYOUT, cores_of(NPU1)), np.uint32)
    root.mkdir()
    (root / "insts").write_bytes(words.tobytes())
    (root / "object").write_bytes(elf({"attention_chunk": 9000}))
    (root / "core").write_bytes(elf({"attention_chunk": 9000, "main": 700}))
    executable(root / "clang++", f'echo "$@" >> {root}/log; for last; do :; done; cp {root}/object "$last"\n')
    executable(
        root / "aiecc",
        f'echo "$@" >> {root}/log\ntest -f attention.o && test -f aie.mlir || exit 7\n'
        "xclbin=aie.xclbin insts=insts_main.bin\n"
        'for word; do case "$word" in\n'
        "--xclbin-name=*) xclbin=${word#*=} ;;\n"
        "--npu-insts-name=*) insts=${word#*=} ;;\n"
        f"{'|'.join(AIECC_OPTIONS)}) ;;\n"
        "-*) echo \"aiecc: Unknown command line argument '$word'.\" >&2; exit 1 ;;\n"
        "esac; done\n"
        f"mkdir aie.mlir.prj && cp {root}/core aie.mlir.prj/main_core_0_2.elf\n"
        'case " $* " in *" --get-xclbin "*) echo image > "$xclbin" ;; esac\n'
        f'case " $* " in *" --get-npu-insts "*) cp {root}/insts "$insts" ;; esac\n',
    )
    toolchain: ModuleType = scripts("toolchain")
    return toolchain.Toolchain(root / "clang++", root / "aiecc", root, root / "include", {"mlir-aie": "1.4.0"})


def test_a_missing_toolchain_is_named_tool_by_tool(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PEANO_INSTALL_DIR", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NpuBuildError) as raised:
        scripts("toolchain").find_toolchain()
    for wanted in ("mlir-aie 1.4.0", "aiecc", "PEANO_INSTALL_DIR", "xclbinutil", "docs/npu.md"):
        assert wanted in str(raised.value)


def test_another_version_of_mlir_aie_is_refused(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain = scripts("toolchain")
    monkeypatch.setattr(toolchain, "version", lambda package: {"mlir_aie": "1.3.5+g167f34d"}.get(package, "1"))
    with pytest.raises(NpuBuildError, match=r"mlir-aie 1.4.0: this is 1.3.5\+g167f34d"):
        toolchain.find_toolchain()


def test_the_command_ends_with_the_reason(
    scripts: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert scripts("build").main(["--chip", "npu1", "--head-dim", "128"]) == 1
    assert "unicorn npu build: the NPU's kernels can't be built here" in capsys.readouterr().err


@pytest.mark.usefixtures("iron")
@pytest.mark.parametrize("fails", [False, True])
def test_what_the_tools_made_on_the_way_is_kept_on_demand(
    scripts: Any, tools: Any, tmp_path: Path, fails: bool
) -> None:
    if fails:
        (tmp_path / "tools" / "insts").write_bytes(b"odd")
    try:
        scripts("build").build(LAYOUT, tools, tmp_path / "out", tmp_path / "kept")
    except NpuBuildError as exc:
        assert fails and "expected 32-bit words" in str(exc)
    kept = tmp_path / "kept" / "attention_npu1_d128"
    names = {path.name for path in kept.rglob("*") if path.is_file()}
    assert names == {"aie.mlir", "attention.o", "final.xclbin", "insts.bin", "main_core_0_2.elf", "program_memory.txt"}
    assert "9,700 of 16,384 bytes of program memory" in (kept / "program_memory.txt").read_text()


@pytest.mark.usefixtures("iron")
def test_a_folder_in_which_nothing_can_be_kept_is_told_and_the_build_goes_on(
    scripts: Any, tools: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept").write_text("a file")
    made = scripts("build").build(LAYOUT, tools, tmp_path / "out", tmp_path / "kept")
    assert made == find_build(tmp_path / "out", NPU1, 128)
    assert "--keep" in capsys.readouterr().err


@pytest.mark.usefixtures("iron")
def test_a_build_writes_what_the_product_finds(scripts: Any, tools: Any, tmp_path: Path) -> None:
    made = scripts("build").build(LAYOUT, tools, tmp_path / "out")
    assert made == find_build(tmp_path / "out", NPU1, 128)
    assert made.cores == cores_of(NPU1)
    assert made.dialect.header == compiler_stream.HEADER
    assert made.dialect.descriptor == (0, 0, 0x80000000, 0, 0, 1 << 25)
    assert len(made.dialect.preamble) == 2 * NPU1.num_cores
    assert made.xclbin.read_text() == "image\n"
    log = (tools.peano / "log").read_text()
    assert "--target=aie2-none-unknown-elf" in log and "-DHEAD_DIM=128" in log
    assert f"-DSTATE_BYTES={budget.state_bytes(LAYOUT)}" in log
    assert f"--no-xchesscc --no-xbridge --peano={tools.peano} " in log


@pytest.mark.usefixtures("iron")
def test_a_build_tells_each_cores_program_memory_and_names_what_overflows_it(
    scripts: Any, tools: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = scripts("build").build
    build(LAYOUT, tools, tmp_path / "out")
    assert capsys.readouterr().out == "main_core_0_2.elf: 9,700 of 16,384 bytes of program memory\n"
    many = {f"part_{number}": 100 * number for number in range(1, 19)}
    for place, name in (("core", "main_core_0_2.elf"), ("object", "attention.o, not yet linked")):
        whole = (tools.peano / place).read_bytes()
        (tools.peano / place).write_bytes(elf(many))
        with pytest.raises(NpuBuildError) as raised:
            build(LAYOUT, tools, tmp_path / "none")
        assert str(raised.value) == (
            f"{name}: 17,100 bytes of instructions, a core has 16,384; the largest functions:"
            " part_18 1,800, part_17 1,700, part_16 1,600, part_15 1,500, part_14 1,400"
        )
        (tools.peano / place).write_bytes(whole)
    (tools.peano / "object").write_bytes(elf({"attention_chunk": 9000}, constants=513))
    with pytest.raises(NpuBuildError, match=r"attention\.o: 513 bytes of constants, expected 512 at most"):
        build(LAYOUT, tools, tmp_path / "none")
    assert not list((tmp_path / "none").iterdir())


def test_a_build_that_leaves_no_elf_file_says_so(scripts: Any, tmp_path: Path) -> None:
    (tmp_path / "folder_core_0_2.elf").mkdir()
    assert scripts("program_memory").check_cores(tmp_path) == [
        "aiecc has left no ELF file of a core: how much program memory they take is not known"
    ]


WHOLE = elf({"attention_chunk": 64}, constants=32)


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"", "expected an ELF file of 32 bits"),
        (b"\x7fELF\x02\x01" + bytes(100), "expected an ELF file of 32 bits"),
        *((WHOLE[:size], "ends early, or points beyond") for size in range(6, len(WHOLE), 37)),
        (WHOLE.replace(b"attention_chunk\0", b"attention_chunk!"), "ends early, or points beyond"),
    ],
)
def test_what_is_no_whole_elf_file_is_named(scripts: Any, content: bytes, wanted: str) -> None:
    with pytest.raises(NpuBuildError, match=f"core.elf: .*{wanted}"):
        scripts("program_memory").program_size(content, "core.elf")


def test_sections_that_are_not_loaded_or_have_no_bytes_are_told_apart(scripts: Any) -> None:
    size = scripts("program_memory").program_size(elf({"a": 5, "b": 7}, constants=3, zeros=1 << 20), "core.elf")
    assert (size.instructions, size.data, size.functions) == (12, 3 + (1 << 20), (("b", 7), ("a", 5)))


@pytest.mark.usefixtures("iron")
def test_a_tool_that_fails_is_told_with_its_words(scripts: Any, tools: Any, tmp_path: Path) -> None:
    executable(tools.aiecc, "echo routing failed; exit 3\n")
    with pytest.raises(NpuBuildError, match=r"aiecc failed with status 3:\nrouting failed"):
        scripts("build").build(LAYOUT, tools, tmp_path / "out")
    executable(tools.aiecc, "echo 'objcopy: Unable to recognise the format of core.elf' >&2; exit 1\n")
    with pytest.raises(NpuBuildError, match="put an llvm-objcopy on the PATH"):
        scripts("build").build(LAYOUT, tools, tmp_path / "out")
    tools.compiler.unlink()
    with pytest.raises(NpuBuildError, match=r"clang\+\+"):
        scripts("build").build(LAYOUT, tools, tmp_path / "out")


@pytest.mark.usefixtures("iron")
@pytest.mark.parametrize(
    ("commands", "wanted"),
    [
        ("true\n", "ended well, but its final.xclbin can't be read: No such file"),
        ("echo x > final.xclbin\n", "ended well, but its insts.bin can't be read: No such file"),
        ("touch final.xclbin insts.bin\n", "ended well, but its final.xclbin is empty"),
        ("echo x > final.xclbin; echo abcd > insts.bin\n", "insts.bin: expected 32-bit words, got 5 bytes"),
        ("echo x > final.xclbin; echo abc > insts.bin\n", "expected a header"),
        ("printf '\\377' >&2; exit 1\n", "failed with status 1:\n\ufffd"),
    ],
)
def test_a_compiler_that_writes_nothing_of_use_is_named(
    scripts: Any, tools: Any, tmp_path: Path, commands: str, wanted: str
) -> None:
    executable(tools.aiecc, commands)
    with pytest.raises(NpuBuildError, match=wanted):
        scripts("build").build(LAYOUT, tools, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_an_mlir_aie_that_can_not_be_imported_is_named(
    scripts: Any, tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "aie", None)
    with pytest.raises(NpuBuildError, match=r"mlir-aie's Python can't be imported: .*aie.*docs/npu.md"):
        scripts("build").build(LAYOUT, tools, tmp_path / "out")


@pytest.mark.usefixtures("iron")
def test_a_folder_that_can_not_be_made_or_written_is_named(scripts: Any, tools: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NpuBuildError, match="file/below: Not a directory"):
        scripts("build").build(LAYOUT, tools, tmp_path / "file/below")
    (tmp_path / "out/attention_npu1_d128.insts").mkdir(parents=True)
    with pytest.raises(NpuBuildError, match=r"attention_npu1_d128\.insts: Is a directory"):
        scripts("build").build(LAYOUT, tools, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("file", "file is no folder"),
        ("file/below", "file is no folder"),
        ("shut/below", "shut can't be written"),
        ("a" * 300, "File name too long"),
    ],
)
def test_a_place_for_builds_that_can_not_be_is_refused_before_anything_is_built(
    scripts: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    wanted: str,
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "shut").mkdir()
    monkeypatch.setattr("os.access", lambda path, _: path != tmp_path / "shut")  # root may write everywhere
    with pytest.raises(SystemExit) as ended:
        scripts("build").main(["--chip", "npu1", "--out", str(tmp_path / name)])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and "--out: " in error and wanted in error


@pytest.mark.parametrize(
    ("commands", "mode", "wanted"),
    [
        ("exit 0\n", 0o644, "Permission denied"),
        ("exit 3\n", 0o755, "expected the version, got status 3"),
        ("exit 0\n", 0o755, "expected the version, got status 0 and ''"),
    ],
)
def test_a_peano_that_does_not_tell_its_version_is_named(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: str, mode: int, wanted: str
) -> None:
    toolchain, root = scripts("toolchain"), tmp_path / "mlir_aie"
    executable(root / "bin/aiecc", "exit 0\n")
    executable(root / "bin/xclbinutil", "exit 0\n")
    executable(tmp_path / "bin/clang++", commands)
    (tmp_path / "bin/clang++").chmod(mode)
    (root / "include/aie_api").mkdir(parents=True)
    (root / "include/aie_api/aie.hpp").touch()
    monkeypatch.setenv("PATH", str(root / "bin"))
    monkeypatch.setenv("PEANO_INSTALL_DIR", str(tmp_path))
    monkeypatch.setattr(toolchain, "_version", {"mlir_aie": "1.4.0"}.get)
    monkeypatch.setattr(toolchain, "_root", lambda *_: root)
    with pytest.raises(NpuBuildError, match=rf"clang\+\+.*{wanted}.*docs/npu.md"):
        toolchain.find_toolchain()


def test_cores_are_where_the_compiler_has_put_them(scripts: Any) -> None:
    shuffled = tuple(Core(3 - core.column, 1 - core.input_channel, core.output_channel) for core in cores_of(NPU1))
    dialect, cores = scripts("build").read_back(compiler_stream.known_sequence(LAYOUT, shuffled), LAYOUT)
    assert cores == shuffled
    assert all(words[0] == 3 and len(words) == 7 for words in dialect.preamble)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (compiler_stream.stream([]), "one kind of linear descriptor, got"),
        (compiler_stream.known_sequence(LAYOUT, cores_of(NPU1), stride=5), "one kind of linear descriptor"),
        (compiler_stream.known_sequence(LAYOUT, cores_of(NPU1)[:7]), "core 7: expected two channels"),
        (
            compiler_stream.stream([compiler_stream.block_write(0, 0, 4), compiler_stream.push(0, 0x1D214, 3)]),
            "no desc",
        ),
        (compiler_stream.known_sequence(HeadLayout(NPU1, 64), cores_of(NPU1))[:-1], "header"),
    ],
)
def test_instructions_that_are_not_the_known_ones_are_refused(scripts: Any, words: list[int], wanted: str) -> None:
    with pytest.raises(NpuBuildError, match=wanted):
        scripts("build").read_back(words, LAYOUT)


@pytest.mark.usefixtures("iron")
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_the_design_has_two_cores_to_a_column_and_moves_what_is_read_back(
    scripts: Any, chip: Any, head_dim: int
) -> None:
    layout = HeadLayout(chip, head_dim)
    program = scripts("attention_design").attention_design(layout)
    assert type(program.device).__name__ == chip.name.upper()
    assert [(w.tile.col, w.tile.row) for w in program.workers] == [
        (column, row) for column in range(chip.columns) for row in (2, 3)
    ]
    assert all(worker.allocation_scheme == "basic-sequential" for worker in program.workers)
    assert all(worker.dynamic_objfifo_lowering and worker.stack_size == 4096 for worker in program.workers)
    transfers = fake_iron.TaskGroup.last.transfers
    assert fake_iron.TaskGroup.last.finished and all(wait for *_, wait in transfers)
    assert len(transfers) == 3 * chip.num_cores
    for number in range(chip.num_cores):
        pieces = {target: (4 * tap.offset, 4 * tap.sizes[3]) for _, _, target, tap, _ in transfers[3 * number :][:3]}
        assert pieces == {
            "results": (number * layout.result_bytes, layout.result_bytes),
            "packets": (number * 16384, 16384),
            "cache": (number * 8192, 8192),
        }
    buffers, strips, *_, strip = program.workers[0].fn_args
    assert buffers.log == ["acquire 1", "release 1"] * (2 + 3) and strips.log == ["acquire 1", "release 1"] * 2
    assert [len(kernel.calls) // chip.num_cores for kernel in program.workers[0].fn_args[4:]] == [1, 1, 3, 2]
    assert strip.name == "attention_strip"
    assert buffers.fifo.depth == budget.core_buffers(layout)


def test_npu2_gets_its_own_target(scripts: Any, tools: Any) -> None:
    flags = scripts("build").compiler_flags(HeadLayout(NPU2, 64), tools)
    assert "--target=aie2p-none-unknown-elf" in flags and "-DAIE_ARCH=21" in flags
