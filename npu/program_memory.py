"""Whether the cores' programs fit: how much of 16 KB an ELF file takes, and which functions take it.

The files are those of the toolchain: 32 bits, little-endian. An object counts too, before it is linked.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.errors import NpuBuildError
from unicorn_async.npu.tile_budget import CONSTANTS_BYTES, PROGRAM_BYTES

if TYPE_CHECKING:
    from pathlib import Path

_HEADER = struct.Struct("<16sHHIIIIIHHHHHH")
_SECTION = struct.Struct("<IIIIIIIIII")
_SEGMENT = struct.Struct("<IIIIIIII")
_SYMBOL = struct.Struct("<IIIBBH")
_SYMBOL_TABLE, _NO_BITS = 2, 8  # types of sections
_LOADED, _EXECUTED = 2, 4  # flags of sections
_LOAD, _EXECUTABLE = 1, 1  # type and flag of a segment
_FUNCTION = 2  # type of a symbol
_SHOWN = 5
# Words of aie-rt, which loads programs, and of lld, which links them.
_OVERFLOWS = ("Overflow of program memory", "will not fit in region")


@dataclass(frozen=True, slots=True)
class ProgramSize:
    """Bytes of instructions and of constants, and the functions' sizes, the largest first.

    The instructions of a linked file are all that lies before its program's end, gaps included: it is loaded so.
    """

    instructions: int
    data: int
    functions: tuple[tuple[str, int], ...]

    def largest(self) -> str:
        """Return the largest functions, for a message."""
        return ", ".join(f"{name} {size:,}" for name, size in self.functions[:_SHOWN]) or "no function is named"


@dataclass(frozen=True, slots=True)
class _Section:
    kind: int
    flags: int
    offset: int
    size: int
    link: int


def check_object(content: bytes) -> None:
    """Check the kernels' object, which is linked into every core.

    Raises:
        NpuBuildError: its instructions alone, or its constants, are more than there is room for.
    """
    size = program_size(content, "attention.o")
    _check_instructions(size, "attention.o, not yet linked")
    if size.data > CONSTANTS_BYTES:
        raise NpuBuildError(f"attention.o: {size.data:,} bytes of constants, expected {CONSTANTS_BYTES:,} at most")


def core_memory(work: Path) -> tuple[list[str], list[str]]:
    """Return a line for each core whose ELF file aiecc has left below a folder, and what is wrong with them.

    Where it has left none, a line says so.
    """
    lines, problems = [], []
    for path in sorted(work.rglob("*core_*.elf")):
        if not path.is_file():
            continue
        try:
            size = program_size(path.read_bytes(), path.name)
            lines.append(f"{path.name}: {size.instructions:,} of {PROGRAM_BYTES:,} bytes of program memory")
            _check_instructions(size, path.name)
        except OSError as exc:
            problems.append(f"{path.name}: {exc.strerror}")
        except NpuBuildError as exc:
            problems.append(str(exc))
    return lines or ["aiecc has left no ELF file of a core: how much program memory they take is not known"], problems


def overflow_hint(output: str, kernels: bytes) -> str:
    """Return what can be told of an overflow that a tool names without a core; empty where it names none.

    A linker that finds it leaves no ELF file, and the loader of programs does not say which one it was at.
    """
    if not any(words in output for words in _OVERFLOWS):
        return ""
    size = program_size(kernels, "attention.o")
    return (
        f"a core has {PROGRAM_BYTES:,} bytes of program memory; attention.o, not yet linked, takes"
        f" {size.instructions:,}; its largest functions: {size.largest()}"
    )


def _check_instructions(size: ProgramSize, name: str) -> None:
    if size.instructions > PROGRAM_BYTES:
        raise NpuBuildError(
            f"{name}: {size.instructions:,} bytes of instructions, a core has {PROGRAM_BYTES:,}; the largest functions:"
            f" {size.largest()}"
        )


def program_size(content: bytes, name: str) -> ProgramSize:
    """Read an ELF file; `name` is for errors.

    Raises:
        NpuBuildError: it is none, or not a whole one.
    """
    if content[:6] != b"\x7fELF\x01\x01":
        raise NpuBuildError(f"{name}: expected an ELF file of 32 bits, little-endian, got {content[:6]!r}")
    try:
        sections, end = _sections(content), _program_end(content)
        functions = [function for section in sections for function in _functions(content, section, sections)]
    except (struct.error, IndexError, ValueError) as exc:
        raise NpuBuildError(f"{name}: an ELF file that ends early, or points beyond its end: {exc}") from exc
    loaded = [section for section in sections if section.flags & _LOADED]
    return ProgramSize(
        end or sum(section.size for section in loaded if section.flags & _EXECUTED),
        sum(section.size for section in loaded if not section.flags & _EXECUTED),
        tuple(sorted(functions, key=lambda function: (-function[1], function[0]))),
    )


def _program_end(content: bytes) -> int:
    """Return where the last segment ends that is loaded into program memory; 0 in a file that is not linked."""
    header = _HEADER.unpack_from(content)
    start, size, count = header[5], header[9], header[10]
    segments = [_SEGMENT.unpack_from(content, start + number * size) for number in range(count)]
    return max(
        (
            place + nbytes
            for kind, _, _, place, _, nbytes, flags, _ in segments
            if kind == _LOAD and flags & _EXECUTABLE
        ),
        default=0,
    )


def _sections(content: bytes) -> list[_Section]:
    header = _HEADER.unpack_from(content)
    start, size, count = header[6], header[11], header[12]
    found = []
    for number in range(count):
        fields = _SECTION.unpack_from(content, start + number * size)
        section = _Section(fields[1], fields[2], fields[4], fields[5], fields[6])
        if section.kind != _NO_BITS and section.offset + section.size > len(content):
            raise ValueError(f"section {number} has bytes up to {section.offset + section.size} of {len(content)}")
        found.append(section)
    return found


def _functions(content: bytes, section: _Section, sections: list[_Section]) -> list[tuple[str, int]]:
    if section.kind != _SYMBOL_TABLE:
        return []
    names, found = sections[section.link], []
    table = content[names.offset : names.offset + names.size]
    for place in range(section.offset, section.offset + section.size - _SYMBOL.size + 1, _SYMBOL.size):
        name, _, size, info, _, _ = _SYMBOL.unpack_from(content, place)
        if info & 15 == _FUNCTION and size:
            found.append((table[name : table.index(b"\0", name)].decode(errors="replace"), size))
    return found
