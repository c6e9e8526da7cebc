"""The build without a toolchain: what it says, what it would run, and what it reads out of the compiler's answer."""

from __future__ import annotations

import stat
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.npu import compiler_stream
from tests.npu.builds import teams_of
from tests.npu.elf_files import elf
from unicorn_async.errors import NpuBuildError
from unicorn_async.npu import tile_budget as budget
from unicorn_async.npu.geometry import NPU1, NPU2, HeadLayout
from unicorn_async.npu.manifest import find_build
from unicorn_async.npu.precision import Products
from unicorn_async.npu.schedule import Team

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
    words = np.array(compiler_stream.known_sequence(LAYOUT, teams_of(NPU1)), np.uint32)
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
    assert made.teams == teams_of(NPU1)
    assert made.dialect.header == compiler_stream.HEADER
    assert made.dialect.descriptor == (0, 0, 0x80000000, 0, 0, 1 << 25)
    assert len(made.dialect.preamble) == 2 * NPU1.num_teams
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
    assert scripts("program_memory").core_memory(tmp_path) == (
        ["aiecc has left no ELF file of a core: how much program memory they take is not known"],
        [],
    )


OVERFLOW = "[AIE ERROR] _XAie_LoadProgMemSection():231: Overflow of program memory"


@pytest.mark.usefixtures("iron")
def test_an_aiecc_that_ends_at_a_program_too_large_has_the_core_named_and_the_sizes_kept(
    scripts: Any, tools: Any, tmp_path: Path
) -> None:
    work = tools.aiecc.read_text()
    executable(tools.aiecc, work.removeprefix("#!/bin/sh\n") + f"rm final.xclbin; echo '{OVERFLOW}' >&2; exit 1\n")
    (tools.peano / "core").write_bytes(elf({"attention_chunk": 9000, "soft_capped": 8000, "main": 100}))
    with pytest.raises(NpuBuildError) as raised:
        scripts("build").build(LAYOUT, tools, tmp_path / "out", tmp_path / "kept")
    overflowing, failed, *words = str(raised.value).splitlines()
    assert overflowing == (
        "main_core_0_2.elf: 17,100 bytes of instructions, a core has 16,384; the largest functions:"
        " attention_chunk 9,000, soft_capped 8,000, main 100"
    )
    assert failed.endswith("aiecc failed with status 1:") and words == [OVERFLOW]
    kept = (tmp_path / "kept/attention_npu1_d128/program_memory.txt").read_text()
    assert kept == f"main_core_0_2.elf: 17,100 of 16,384 bytes of program memory\n{overflowing}\n"


@pytest.mark.usefixtures("iron")
@pytest.mark.parametrize("words", [OVERFLOW, "ld.lld: error: section '.text' will not fit in region 'program'"])
def test_an_overflow_without_an_elf_file_is_told_with_what_the_kernels_take(
    scripts: Any, tools: Any, tmp_path: Path, words: str
) -> None:
    executable(tools.aiecc, f'echo "{words}" >&2; exit 1\n')
    with pytest.raises(NpuBuildError) as raised:
        scripts("build").build(LAYOUT, tools, tmp_path / "out")
    hint, _, last = str(raised.value).splitlines()
    assert hint.endswith("takes 9,000; its largest functions: attention_chunk 9,000") and last == words


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


def test_a_linked_program_takes_all_before_its_end_gaps_included(scripts: Any) -> None:
    readable, executable_too = 4, 5
    segments = ((0, 0x200, executable_too), (0x3F00, 0x200, executable_too), (0x70000, 0x4000, readable))
    content = elf({"attention_chunk": 0x400}, segments=segments)
    assert scripts("program_memory").program_size(content, "core.elf").instructions == 0x4100
    with pytest.raises(NpuBuildError, match=r"core.elf: .*ends early"):
        scripts("program_memory").program_size(content[:44] + b"\xff\xff" + content[46:], "core.elf")


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
def test_who_reads_an_earlier_build_meanwhile_gets_the_whole_of_it(scripts: Any, tools: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for suffix in ("xclbin", "insts", "json"):
        (out / f"attention_npu1_d128.{suffix}").write_text("of an earlier build")
    with (out / "attention_npu1_d128.xclbin").open() as xclbin, (out / "attention_npu1_d128.json").open() as manifest:
        scripts("build").build(LAYOUT, tools, out)
        assert xclbin.read() == manifest.read() == "of an earlier build"
    assert sorted(path.suffix for path in out.iterdir()) == [".insts", ".json", ".xclbin"]


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


def test_teams_are_where_the_compiler_has_put_them(scripts: Any) -> None:
    shuffled = tuple(Team(3 - team.column, 1 - team.input_channel, team.output_channel) for team in teams_of(NPU1))
    dialect, teams = scripts("build").read_back(compiler_stream.known_sequence(LAYOUT, shuffled), LAYOUT)
    assert teams == shuffled
    assert all(words[0] == 3 and len(words) == 7 for words in dialect.preamble)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (compiler_stream.stream([]), "one kind of linear descriptor, got"),
        (compiler_stream.known_sequence(LAYOUT, teams_of(NPU1), stride=5), "one kind of linear descriptor"),
        (compiler_stream.known_sequence(LAYOUT, teams_of(NPU1)[:7]), "team 7: expected two channels"),
        (
            compiler_stream.stream([compiler_stream.block_write(0, 0, 4), compiler_stream.push(0, 0x1D214, 3)]),
            "no desc",
        ),
        (compiler_stream.known_sequence(HeadLayout(NPU1, 64), teams_of(NPU1))[:-1], "header"),
    ],
)
def test_instructions_that_are_not_the_known_ones_are_refused(scripts: Any, words: list[int], wanted: str) -> None:
    with pytest.raises(NpuBuildError, match=wanted):
        scripts("build").read_back(words, LAYOUT)


def test_npu2_gets_its_own_target(scripts: Any, tools: Any) -> None:
    flags = scripts("build").compiler_flags(HeadLayout(NPU2, 64), tools)
    assert "--target=aie2p-none-unknown-elf" in flags and "-DAIE_ARCH=21" in flags


@pytest.mark.usefixtures("iron")
def test_npu2_may_have_products_in_bfp16_and_the_manifest_says_so(
    scripts: Any, tools: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    switch = "-DAIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16"
    flags = scripts("build").compiler_flags
    assert switch in flags(HeadLayout(NPU2, 64), tools, Products.BFP16) and switch not in flags(LAYOUT, tools)
    assert scripts("build").build(LAYOUT, tools, tmp_path).products is Products.BF16
    with pytest.raises(SystemExit):
        scripts("build").main(["--chip", "npu1", "--products", "bfp16"])
    assert "--products: expected bf16 for npu1, got bfp16" in capsys.readouterr().err
