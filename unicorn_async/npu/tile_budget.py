"""What the design needs of each tile, counted against what a tile has.

The same numbers place the design (npu/attention_design.py), so what is checked here is what is built. Limits are those
of AIE2 and AIE2P, which agree in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.errors import NpuBuildError
from unicorn_async.npu.geometry import BF16_BYTES, CORE_BUFFER_BYTES, F32_BYTES, PARAMETER_WORDS
from unicorn_async.tensor import aligned

if TYPE_CHECKING:
    from unicorn_async.npu.geometry import HeadLayout

CORE_MEMORY_BYTES = 64 * 1024
CORE_DESCRIPTORS = 16
SHIM_DESCRIPTORS = 16
SHIM_CHANNELS = 2  # each way
SHIM_QUEUE_DEPTH = 4
DESCRIPTOR_WORDS = 1 << 32  # a shim descriptor's length is a 32-bit number of words; linear ones need no wraps

MIN_CORE_BUFFERS, MAX_CORE_BUFFERS = 2, 4  # of 8 KB: one is worked on, the others arrive; two are the least for both
RESULT_STRIPS = 2  # in a core, on their way to memory
STACK_BYTES = 4096
PROGRAM_BYTES = 16 * 1024  # of a core
COUNTS_BYTES = 8
CONSTANTS_BYTES = 512  # of the kernels, at most: a build is refused that has more
COUNTERS_BYTES = 64  # of the two queues of buffers, whose place the core's loop counts
_FIXED_BYTES = COUNTS_BYTES + CONSTANTS_BYTES + COUNTERS_BYTES + STACK_BYTES

CHAIN = 3  # descriptors of one input task
TASKS_IN_FLIGHT = 2  # of a channel, each way
CORES_PER_COLUMN = 2
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
    elements = layout.rows * layout.head_dim
    row_lanes = layout.num_strips * layout.chip.tile_lanes
    softmax = row_lanes * (F32_BYTES + BF16_BYTES)
    return aligned(elements * (BF16_BYTES + F32_BYTES) + softmax + parameter_bytes(layout) + 8, 64)


def core_buffers(layout: HeadLayout) -> int:
    """Buffers that a core has room for, beside all else; data comes from memory straight into them."""
    free = CORE_MEMORY_BYTES - _core_bytes(layout)
    return max(MIN_CORE_BUFFERS, min(MAX_CORE_BUFFERS, free // CORE_BUFFER_BYTES))


def _core_bytes(layout: HeadLayout) -> int:
    return state_bytes(layout) + _FIXED_BYTES + RESULT_STRIPS * layout.strip_bytes


def uses(layout: HeadLayout) -> tuple[Use, ...]:
    """Everything that the design for this chip and head_dim needs."""
    buffers = core_buffers(layout)
    shim = CORES_PER_COLUMN * TASKS_IN_FLIGHT * (CHAIN + 1)
    return (
        Use("bytes of a core's memory", _core_bytes(layout) + buffers * CORE_BUFFER_BYTES, CORE_MEMORY_BYTES),
        Use("descriptors of a core", buffers + RESULT_STRIPS, CORE_DESCRIPTORS),
        Use("descriptors of a column's interface to memory", shim, SHIM_DESCRIPTORS),
        Use("reading channels of a column's interface to memory", CORES_PER_COLUMN, SHIM_CHANNELS),
        Use("writing channels of a column's interface to memory", CORES_PER_COLUMN, SHIM_CHANNELS),
        Use("tasks in a channel's queue", TASKS_IN_FLIGHT, SHIM_QUEUE_DEPTH),
        Use("words of a descriptor", MAX_RUN_BYTES // 4, DESCRIPTOR_WORDS),
        Use("bytes of an item's parameters in a buffer", parameter_bytes(layout), CORE_BUFFER_BYTES),
    )


def check(layout: HeadLayout) -> None:
    """Raise NpuBuildError, naming everything that does not fit."""
    over = [str(use) for use in uses(layout) if use.needed > use.available]
    if over:
        raise NpuBuildError(f"{layout.chip.name}, head_dim {layout.head_dim}: does not fit: {'; '.join(over)}")
