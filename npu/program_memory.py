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
_SYMBOL = struct.Struct("<IIIBBH")
_SYMBOL_TABLE, _NO_BITS = 2, 8  # types of sections
_LOADED, _EXECUTED = 2, 4  # flags of sections
_FUNCTION = 2  # type of a symbol
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ProgramSize:
    """Bytes of instructions and of constants, and the functions' sizes, the largest first."""

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


def check_cores(work: Path) -> list[str]:
    """Return a line for each core whose ELF file aiecc has left below a folder, or one that says that there is none.

    Raises:
        NpuBuildError: one of them takes more program memory than a core has.
    """
    lines = []
    for path in sorted(work.rglob("*core_*.elf")):
        if not path.is_file():
            continue
        try:
            size = program_size(path.read_bytes(), path.name)
        except OSError as exc:
            raise NpuBuildError(f"{path.name}: {exc.strerror}") from exc
        _check_instructions(size, path.name)
        lines.append(f"{path.name}: {size.instructions:,} of {PROGRAM_BYTES:,} bytes of program memory")
    return lines or ["aiecc has left no ELF file of a core: how much program memory they take is not known"]


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
        sections = _sections(content)
        functions = [function for section in sections for function in _functions(content, section, sections)]
    except (struct.error, IndexError, ValueError) as exc:
        raise NpuBuildError(f"{name}: an ELF file that ends early, or points beyond its end: {exc}") from exc
    loaded = [section for section in sections if section.flags & _LOADED]
    return ProgramSize(
        sum(section.size for section in loaded if section.flags & _EXECUTED),
        sum(section.size for section in loaded if not section.flags & _EXECUTED),
        tuple(sorted(functions, key=lambda function: (-function[1], function[0]))),
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
