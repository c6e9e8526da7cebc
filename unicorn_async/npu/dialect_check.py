"""Whether what a manifest adds to every stream is what the compiler adds: its header, and the routing of tokens.

A stream's first writes go to registers of the array, so they are bounded to the one field that the compiler sets: which
tile gets a channel's tokens (mlir-aie v1.4.0, AIEDmaToNpu.cpp; the header is AIETargetNPU.cpp's).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.npu.transaction import Channel, Direction, is_linear

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.npu.geometry import Chip
    from unicorn_async.npu.schedule import Team
    from unicorn_async.npu.transaction import Dialect

_MASK_WRITE, _MASK_WRITE_WORDS = 3, 7
_CONTROLLER_FIELD = 0x1F00  # of a channel's control register: the tile that its tokens are for
_VERSION, _GENERATIONS = 0x0100, {"npu1": 3, "npu2": 4}
_ROWS, _MEMORY_ROWS, _MAX_COLUMNS = 6, 1, 8  # of the array; npu1 has a fifth column, which has no interface to memory
_SHOWN_WORDS = 8


def dialect_problem(dialect: Dialect, chip: Chip, teams: Sequence[Team]) -> str | None:
    """Return what no build for this chip, with these teams, says; None where it is as it should be."""
    if not is_linear(dialect.descriptor):
        return f"descriptor: expected a linear transfer, got {dialect.descriptor}"
    return _header_problem(dialect.header, chip) or _preamble_problem(dialect.preamble, chip, teams)


def max_overhead_bytes(chip: Chip) -> int:
    """Bound what a build for this chip adds to every stream, in bytes."""
    return 16 + 4 * _MASK_WRITE_WORDS * len(_control_registers(chip))


def _header_problem(header: tuple[int, int], chip: Chip) -> str | None:
    expected = _ROWS << 24 | _GENERATIONS[chip.name] << 16 | _VERSION
    columns = header[1] ^ _MEMORY_ROWS << 8
    if header[0] != expected or not chip.columns <= columns <= _MAX_COLUMNS:
        return (
            f"header: expected {expected:#x} and {_MEMORY_ROWS << 8 | chip.columns:#x} for {chip.name}, got"
            f" {header[0]:#x} and {header[1]:#x}"
        )
    return None


def _preamble_problem(preamble: Sequence[Sequence[int]], chip: Chip, teams: Sequence[Team]) -> str | None:
    """Each channel's tokens are routed once at most, and those of the teams are, because runs wait for them."""
    registers = _control_registers(chip)
    routed: set[int] = set()
    for words in preamble:
        if not _is_route(words) or words[2] not in registers or words[2] in routed:
            shown = list(words[:_SHOWN_WORDS])
            return f"preamble: expected a route of tokens for each channel of {chip.columns} columns, got {shown}"
        routed.add(words[2])
    for team in teams:
        for channel in (team.source, team.sink):
            if channel.control not in routed:
                return f"preamble: no route for the tokens of {channel}"
    return None


def _is_route(words: Sequence[int]) -> bool:
    if len(words) != _MASK_WRITE_WORDS:
        return False
    operation, reserved, _, reserved_2, value, mask, nbytes = words
    header_fits = (operation, reserved, reserved_2, nbytes) == (_MASK_WRITE, 0, 0, 4 * _MASK_WRITE_WORDS)
    return header_fits and mask == _CONTROLLER_FIELD and not value & ~mask


def _control_registers(chip: Chip) -> set[int]:
    columns, directions = range(chip.columns), tuple(Direction)
    return {Channel(column, way, index).control for column in columns for way in directions for index in (0, 1)}
