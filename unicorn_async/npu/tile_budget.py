"""What the design needs of each tile, counted against what a tile has.

The same numbers place the design (npu/attention_design.py), so what is checked here is what is built. Limits are those
of AIE2 and AIE2P, which agree in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.errors import NpuBuildError
from unicorn_async.npu.geometry import BF16_BYTES, CORE_BUFFER_BYTES, CORES_PER_TEAM, F32_BYTES, PARAMETER_WORDS
from unicorn_async.tensor import aligned

if TYPE_CHECKING:
    from unicorn_async.npu.geometry import HeadLayout

CORE_MEMORY_BYTES = 64 * 1024
MEMORY_TILE_BYTES = 512 * 1024
MEMORY_TILE_DESCRIPTORS = 48  # of which channels of even number reach the first half, and odd ones the second
MEMORY_TILE_CHANNELS = 6  # each way
MEMORY_TILE_LOCKS = 64
CORE_LOCKS = 16
STREAMS_UP, STREAMS_DOWN = 6, 4  # between neighbouring tiles of a column
CORE_DESCRIPTORS = 16
SHIM_DESCRIPTORS = 16
SHIM_CHANNELS = 2  # each way
SHIM_QUEUE_DEPTH = 4
DESCRIPTOR_WORDS = 1 << 32  # a shim descriptor's length is a 32-bit number of words; linear ones need no wraps

MIN_CORE_BUFFERS, MAX_CORE_BUFFERS = 2, 4  # of 8 KB: one is worked on, the others arrive; two are the least for both
RESULT_STRIPS = 2  # in a core, and joined ones in a memory tile, on their way to memory
MEMORY_TILE_BUFFERS = 4  # of a team, at least: what it can get ahead of the slower of its cores
STACK_BYTES = 4096
PROGRAM_BYTES = 16 * 1024  # of a core
COUNTS_BYTES = 12
CORE_WORDS = 5  # of its place, its strips, and what comes next
CONSTANTS_BYTES = 512  # of the kernels, at most: a build is refused that has more
COUNTERS_BYTES = 64  # of the two queues of buffers, whose place the core's loop counts
_LOCKS = 2  # of a queue, or of a part of joined ones: for what is full, and what is free
_FIXED_BYTES = COUNTS_BYTES + CONSTANTS_BYTES + COUNTERS_BYTES + STACK_BYTES

CHAIN = 3  # descriptors of one input task
TASKS_IN_FLIGHT = 2  # of a channel, each way
TEAMS_PER_COLUMN = 2
MAX_RUN_BYTES = 1 << 24  # of one descriptor


@dataclass(frozen=True, slots=True)
class Use:
    """So much of something is needed, and so much is there."""

    what: str
    needed: int
    available: int

    def __str__(self) -> str:
        return f"{self.what}: {self.needed:,} of {self.available:,}"


def parameter_bytes(layout: HeadLayout) -> int:
    """Bytes of an item's parameters: `Parameters` in npu/kernels/tile_shape.h."""
    return 4 * (PARAMETER_WORDS + 2 * layout.num_strips * layout.chip.tile_lanes)


def state_bytes(layout: HeadLayout) -> int:
    """Bytes of a core's state: `State` in npu/kernels/attention.cc, which asserts this number."""
    elements = layout.core_strips * layout.chip.tile_n * layout.head_dim
    row_lanes = layout.core_strips * layout.chip.tile_lanes
    rows = row_lanes * (F32_BYTES + BF16_BYTES + 2 * F32_BYTES)  # sums and exponents, first and last key
    return aligned(elements * (BF16_BYTES + F32_BYTES) + rows + 4 * (PARAMETER_WORDS + CORE_WORDS), 64)


def core_buffers(layout: HeadLayout) -> int:
    """Buffers that a core has room for, beside all else."""
    free = CORE_MEMORY_BYTES - _core_bytes(layout)
    return max(MIN_CORE_BUFFERS, min(MAX_CORE_BUFFERS, free // CORE_BUFFER_BYTES))


def _core_bytes(layout: HeadLayout) -> int:
    return state_bytes(layout) + _FIXED_BYTES + RESULT_STRIPS * layout.strip_bytes


def uses(layout: HeadLayout) -> tuple[Use, ...]:
    """Everything that the design for this chip and head_dim needs."""
    buffers = core_buffers(layout)
    shim = TEAMS_PER_COLUMN * TASKS_IN_FLIGHT * (CHAIN + 1)
    tile_buffers = max(MEMORY_TILE_BUFFERS, buffers)
    results = RESULT_STRIPS * CORES_PER_TEAM
    tile_bytes = TEAMS_PER_COLUMN * (tile_buffers * CORE_BUFFER_BYTES + results * layout.strip_bytes)
    # Of each channel, by what it has in the tile; joined results leave it strip by strip.
    receiving = TEAMS_PER_COLUMN * [tile_buffers, *CORES_PER_TEAM * [RESULT_STRIPS]]
    sending = TEAMS_PER_COLUMN * [tile_buffers, results]
    return (
        Use("bytes of a core's memory", _core_bytes(layout) + buffers * CORE_BUFFER_BYTES, CORE_MEMORY_BYTES),
        Use("descriptors of a core", buffers + RESULT_STRIPS, CORE_DESCRIPTORS),
        Use("locks of a core", 2 * _LOCKS, CORE_LOCKS),
        Use("bytes of a column's memory tile", tile_bytes, MEMORY_TILE_BYTES),
        Use("descriptors of a column's memory tile", sum(receiving) + sum(sending), MEMORY_TILE_DESCRIPTORS),
        Use(
            "descriptors of its even channels or its odd ones",
            _at_most(receiving) + _at_most(sending),
            MEMORY_TILE_DESCRIPTORS // 2,
        ),
        Use("locks of a column's memory tile", TEAMS_PER_COLUMN * (1 + CORES_PER_TEAM) * _LOCKS, MEMORY_TILE_LOCKS),
        Use("receiving channels of a column's memory tile", len(receiving), MEMORY_TILE_CHANNELS),
        Use("sending channels of a column's memory tile", len(sending), MEMORY_TILE_CHANNELS),
        Use("streams from a column's memory tile to its cores", TEAMS_PER_COLUMN, STREAMS_UP),
        Use("streams from a column's cores to its memory tile", TEAMS_PER_COLUMN * CORES_PER_TEAM, STREAMS_DOWN),
        Use("descriptors of a column's interface to memory", shim, SHIM_DESCRIPTORS),
        Use("reading channels of a column's interface to memory", TEAMS_PER_COLUMN, SHIM_CHANNELS),
        Use("writing channels of a column's interface to memory", TEAMS_PER_COLUMN, SHIM_CHANNELS),
        Use("tasks in a channel's queue", TASKS_IN_FLIGHT, SHIM_QUEUE_DEPTH),
        Use("words of a descriptor", MAX_RUN_BYTES // 4, DESCRIPTOR_WORDS),
        Use("bytes of an item's parameters in a buffer", parameter_bytes(layout), CORE_BUFFER_BYTES),
    )


def _at_most(channels: list[int]) -> int:
    """Return the descriptors of every second channel, whichever way the channels are numbered."""
    return sum(sorted(channels, reverse=True)[: -(-len(channels) // 2)])


def check(layout: HeadLayout) -> None:
    """Raise NpuBuildError, naming everything that does not fit."""
    over = [str(use) for use in uses(layout) if use.needed > use.available]
    if over:
        raise NpuBuildError(f"{layout.chip.name}, head_dim {layout.head_dim}: does not fit: {'; '.join(over)}")
