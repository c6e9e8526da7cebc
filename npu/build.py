"""`unicorn npu build`: kernels → objects → design → xclbin and instructions → manifest. Needs no NPU.

The instructions that the compiler writes are not run. They are read back for what our own streams have to say in the
same way (unicorn_async/npu/transaction.py): header, constant words of a descriptor, routing of tokens, and the channels
that each team of cores got.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from program_memory import check_object, core_memory, overflow_hint
from toolchain import Toolchain, find_toolchain

from unicorn_async.errors import NpuBuildError, UnicornError
from unicorn_async.npu import tile_budget as budget
from unicorn_async.npu.dialect_check import dialect_problem
from unicorn_async.npu.geometry import CHIPS, HEAD_DIMS, HeadLayout, chip_named
from unicorn_async.npu.manifest import Build, build_dir, build_name, find_build, manifest_json, notice
from unicorn_async.npu.precision import Products
from unicorn_async.npu.schedule import PACKET_BYTES, Argument, Team
from unicorn_async.npu.sources import source_hash
from unicorn_async.npu.transaction import (
    Channel,
    Dialect,
    Direction,
    MaskWrite,
    Operation,
    PatchAddress,
    PushTask,
    WriteDescriptor,
    decode,
    is_linear,
)
from unicorn_async.resources import npu_page

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FOLDER = Path(__file__).resolve().parent
_TIMEOUT_S = 1800


def build(
    layout: HeadLayout,
    tools: Toolchain,
    folder: Path,
    keep: Path | None = None,
    products: Products = Products.BF16,
) -> Build:
    """Build the kernels for one layout into `folder`, in place of what is there for it, and return what was built.

    All that the tools make on the way, up to a failure, is left in a folder of `keep`.

    Raises:
        NpuBuildError: a tool fails, its instructions are not what our streams need, or `folder` can't be written.
    """
    budget.check(layout)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise NpuBuildError(f"{folder}: {exc.strerror}") from exc
    name = build_name(layout.chip, layout.head_dim)
    with tempfile.TemporaryDirectory(prefix="unicorn-npu-") as temporary, _kept(Path(temporary), keep, name):
        work = Path(temporary)
        files = ["-c", str(_FOLDER / "kernels/attention.cc"), "-o", str(work / "attention.o")]
        _run([str(tools.compiler), *compiler_flags(layout, tools, products), *files], work)
        kernels = _made(tools.compiler, work / "attention.o")
        check_object(kernels)
        try:
            from attention_design import attention_design  # imports mlir-aie
        except ImportError as exc:
            raise NpuBuildError(f"mlir-aie's Python can't be imported: {exc}; {npu_page()} says which it is") from exc

        (work / "aie.mlir").write_text(str(attention_design(layout)))
        _compile_design(tools, work, kernels)
        xclbin, instructions = (_made(tools.aiecc, work / name) for name in ("final.xclbin", "insts.bin"))
    if len(instructions) % 4:
        raise NpuBuildError(f"{tools.aiecc}: insts.bin: expected 32-bit words, got {len(instructions)} bytes")
    words = np.frombuffer(instructions, "<u4")
    dialect, teams = read_back(words, layout)
    made = Build(
        chip=layout.chip,
        head_dim=layout.head_dim,
        products=products,
        xclbin=folder / f"{name}.xclbin",
        sha256=hashlib.sha256(xclbin).hexdigest(),
        source_sha256=source_hash(_FOLDER),
        toolchain=tools.versions,
        dialect=dialect,
        teams=teams,
    )
    try:
        _replace(made.xclbin, xclbin)
        _replace(made.xclbin.with_suffix(".insts"), instructions)
        _replace(made.xclbin.with_suffix(".json"), manifest_json(made).encode())
    except OSError as exc:
        raise NpuBuildError(f"{exc.filename2 or exc.filename or folder}: {exc.strerror}") from exc
    return find_build(folder, layout.chip, layout.head_dim)


def _replace(path: Path, content: bytes) -> None:
    """Write a file in one step: a server may read the one that is there, and has to get the whole of either."""
    partial = path.with_name(f"{path.name}.part")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _compile_design(tools: Toolchain, work: Path, kernels: bytes) -> None:
    """Have aiecc make xclbin and instructions, and tell each core's program memory, also where it fails.

    Its linker takes a program that is larger than a core's memory; what loads programs then ends it, and names no core.
    """
    failure = ""
    try:
        _run(aiecc_command(tools), work)
    except NpuBuildError as exc:
        failure = str(exc)
    sizes, problems = core_memory(work)
    (work / "program_memory.txt").write_text("\n".join((*sizes, *problems)) + "\n")
    print("\n".join(sizes))
    if failure:
        hint = "" if problems else overflow_hint(failure, kernels)
        problems += [text for text in (hint, failure) if text]
    if problems:
        raise NpuBuildError("\n".join(problems))


@contextmanager
def _kept(work: Path, keep: Path | None, name: str) -> Iterator[None]:
    """Copy what lies in `work` at the end of the block, however it ends."""
    try:
        yield
    finally:
        if keep is not None:
            try:
                shutil.copytree(work, keep / name, dirs_exist_ok=True)
            except (OSError, shutil.Error) as exc:
                print(f"unicorn npu build: --keep: {keep / name}: {exc}", file=sys.stderr)


def compiler_flags(layout: HeadLayout, tools: Toolchain, products: Products = Products.BF16) -> list[str]:
    """Return what Peano's clang++ gets."""
    return [
        "-O2",
        "-std=c++20",
        f"--target={layout.chip.target}",
        "-DNDEBUG",
        f"-DAIE_ARCH={layout.chip.aie_arch}",
        f"-DHEAD_DIM={layout.head_dim}",
        f"-DSTATE_BYTES={budget.state_bytes(layout)}",
        *(("-DAIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16",) if products is Products.BFP16 else ()),
        "-I",
        str(tools.includes),
    ]


def aiecc_command(tools: Toolchain) -> list[str]:
    """Return the command that makes the xclbin and the instructions, in the options of mlir-aie 1.4.0.

    That version still compiles and links cores by AMD's own tools where it is not told otherwise.
    """
    return [
        str(tools.aiecc),
        "--no-xchesscc",
        "--no-xbridge",
        f"--peano={tools.peano}",
        "--get-xclbin",
        "--xclbin-name=final.xclbin",
        "--get-npu-insts",
        "--npu-insts-name=insts.bin",
        "aie.mlir",
    ]


def read_back(words: Sequence[int] | np.ndarray, layout: HeadLayout) -> tuple[Dialect, tuple[Team, ...]]:
    """Read the known sequence's instructions back.

    Raises:
        NpuBuildError: they are not the known sequence, or move data in a way that our streams don't.
    """
    header, operations = decode(words)
    descriptors = [operation for operation in operations if isinstance(operation, WriteDescriptor)]
    constants = {operation.words[2:] for operation in descriptors}
    if len(constants) != 1 or not is_linear(min(constants)):
        raise NpuBuildError(f"instructions: expected one kind of linear descriptor, got {sorted(constants)}")
    preamble = dict.fromkeys(operation.words for operation in operations if isinstance(operation, MaskWrite))
    dialect, teams = Dialect(header, min(constants), tuple(preamble)), _teams(operations, layout)
    if problem := dialect_problem(dialect, layout.chip, teams):
        raise NpuBuildError(f"instructions: {problem}")
    return dialect, teams


def _teams(operations: Sequence[Operation], layout: HeadLayout) -> tuple[Team, ...]:
    written: dict[tuple[int, int], WriteDescriptor] = {}
    patched: dict[tuple[int, int], PatchAddress] = {}
    channels: dict[tuple[int, int, int], Channel] = {}  # by argument, offset and size
    for operation in operations:
        if isinstance(operation, WriteDescriptor):
            written[operation.column, operation.index] = operation
        elif isinstance(operation, PatchAddress):
            patched[operation.column, operation.index] = operation
        elif isinstance(operation, PushTask):
            place = (operation.channel.column, operation.first)
            if place not in written or place not in patched:
                raise NpuBuildError(f"instructions: {operation} has no descriptor")
            patch = patched[place]
            channels[patch.argument, patch.offset, written[place].nbytes] = operation.channel
    teams = []
    for number in range(layout.chip.num_teams):
        source = channels.get((Argument.PACKETS, number * PACKET_BYTES, PACKET_BYTES))
        sink = channels.get((Argument.RESULTS, number * layout.result_bytes, layout.result_bytes))
        if source is None or sink is None or source.column != sink.column:
            raise NpuBuildError(f"instructions: team {number}: expected two channels of a column, got {source}, {sink}")
        if source.direction is not Direction.FROM_MEMORY or sink.direction is not Direction.TO_MEMORY:
            raise NpuBuildError(f"instructions: team {number}: {source} and {sink} have the wrong directions")
        teams.append(Team(source.column, source.index, sink.index))
    return tuple(teams)


def _run(command: list[str], work: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=work, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise NpuBuildError(f"{command[0]}: {exc}") from exc
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
        raise NpuBuildError(f"{command[0]} failed with status {done.returncode}:\n{tail}{_objcopy_hint(tail)}")


def _objcopy_hint(output: str) -> str:
    """Return what helps where GNU's objcopy was taken, which can't read an ELF file of these cores."""
    if "recognise the format" not in output and "recognize the format" not in output:
        return ""
    return "\nGNU's objcopy can't read ELF files of AIE: put an llvm-objcopy on the PATH"


def _made(tool: Path, path: Path) -> bytes:
    """Return what a tool that said it was successful has written."""
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise NpuBuildError(f"{tool} ended well, but its {path.name} can't be read: {exc.strerror}") from exc
    if not content:
        raise NpuBuildError(f"{tool} ended well, but its {path.name} is empty")
    return content


def _why_not_written(folder: Path) -> str | None:
    """Return what keeps builds from being written, before anything is built for it."""
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not there.is_dir():
            return f"{there} is no folder"
        return None if os.access(there, os.W_OK | os.X_OK) else f"{there} can't be written"
    except OSError as exc:
        return exc.strerror


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="unicorn npu build", description="Builds the NPU's attention kernels.")
    parser.add_argument("--chip", choices=[chip.name for chip in CHIPS], required=True)
    parser.add_argument("--head-dim", type=int, choices=HEAD_DIMS, action="append", help="default: all of them")
    parser.add_argument(
        "--products",
        choices=[kind.value for kind in Products],
        default=Products.BF16.value,
        help="of the matrix unit; bfp16 is npu2's native kind, and less precise (default: %(default)s)",
    )
    parser.add_argument("--out", type=Path, default=build_dir(), metavar="FOLDER", help="default: %(default)s")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="leave MLIR, objects, ELF files, their sizes and instructions there"
    )
    options = parser.parse_args(arguments)
    if problem := _why_not_written(options.out):
        parser.error(f"--out: {options.out}: {problem}")
    chip = chip_named(options.chip)
    assert chip is not None
    products = Products(options.products)
    if products not in chip.products:
        has = ", ".join(kind.value for kind in chip.products)
        parser.error(f"--products: expected {has} for {chip.name}, got {products.value}")
    try:
        tools = find_toolchain()
        for head_dim in options.head_dim or HEAD_DIMS:
            made = build(HeadLayout(chip, head_dim), tools, options.out, options.keep, products)
            print(f"{made.xclbin}: {made.sha256}")
    except UnicornError as exc:
        print(f"unicorn npu build: {exc}", file=sys.stderr)
        return 1
    print(f"{notice()} `unicorn npu validate` runs them, on a machine with the NPU.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
