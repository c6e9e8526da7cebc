"""The instructions that mlir-aie writes for the design's known sequence, word by word.

Written from the toolchain's description of the encoding (TxnEncoding.h), and not with the product's writer, so that the
two can be held against each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.npu.schedule import PACKET_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.npu.geometry import HeadLayout
    from unicorn_async.npu.schedule import Team

HEADER = (6 << 24 | 3 << 16 | 1 << 8, 1 << 8 | 5)
BURST = 0x80000000
VALID = 1 << 25


def block_write(column: int, index: int, nbytes: int, *, stride: int = 0) -> list[int]:
    address = column << 25 | 0x1D000 + 0x20 * index
    return [1, column, address, 48, nbytes // 4, 0, 0, stride, BURST, 0, 0, VALID]


def patch(column: int, index: int, argument: int, offset: int) -> list[int]:
    return [0x81, 48, 0, 0, 0, 0, column << 25 | 0x1D004 + 0x20 * index, 0, argument, 0, offset, 0]


def push(column: int, queue: int, index: int) -> list[int]:
    return [0, 0, column << 25 | queue, 0, 0x80000000 | index, 24]


def route(column: int, control: int) -> list[int]:
    return [3, 0, column << 25 | control, 0, (15 + column) << 8, 0x1F00, 28]


def wait(column: int, direction: int, channel: int) -> list[int]:
    return [0x80, 16, direction | column << 16, 1 << 8 | 1 << 16 | channel << 24]


def stream(operations: Sequence[Sequence[int]]) -> list[int]:
    """Join operations behind a header."""
    words = [word for operation in operations for word in operation]
    return [*HEADER, len(operations), 4 * (4 + len(words)), *words]


def known_sequence(layout: HeadLayout, teams: Sequence[Team], *, stride: int = 0) -> list[int]:
    """What attention_design's sequence becomes, if teams get these channels."""
    operations: list[list[int]] = []
    for number, team in enumerate(teams):
        sink, source = 0x1D204 + 8 * team.output_channel, 0x1D214 + 8 * team.input_channel
        first = 3 * team.input_channel
        pieces = ((sink, 2, layout.result_bytes), (source, 1, PACKET_BYTES), (source, 0, 8192))
        for index, (queue, argument, nbytes) in enumerate(pieces, first):
            operations += [
                block_write(team.column, index, nbytes, stride=stride),
                patch(team.column, index, argument, number * nbytes),
                route(team.column, queue - 4),
                push(team.column, queue, index),
            ]
    for team in teams:
        operations += [
            wait(team.column, 0, team.output_channel),
            wait(team.column, 1, team.input_channel),
            wait(team.column, 1, team.input_channel),
        ]
    return stream(operations)
