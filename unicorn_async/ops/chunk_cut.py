"""How delta_chunks and time_mix_chunks are cut, in which a state goes through a long run chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.ops.runs import KEPT_TOKENS
from unicorn_async.ops.subgroups import halves_subgroups

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo

_VECTOR = 4


@dataclass(frozen=True, slots=True)
class ChunkCut:
    """Columns of a head's state, and lanes, of a workgroup.

    A lane has four of the columns, and for these an equal share of a chunk's tokens: one, two or four. `ahead` says how
    much it has under way from memory: four times so many keys of each, and those of so many tokens.
    """

    columns: int
    lanes: int
    ahead: int = 4

    @property
    def constants(self) -> dict[str, int]:
        """A kernel's constants of it."""
        return {"WORKGROUP": self.lanes, "TILE": self.columns // _VECTOR, "AHEAD": self.ahead}


_WIDE_CUT, _NARROW_CUT = ChunkCut(32, 128), ChunkCut(16, 64)
_BUSY_CUT, _MIN_BUSY_KEYS = ChunkCut(32, 256), 128  # where each compute unit has one tile, of heads with keys so long
# On a CPU, where more ahead is slow to compile and has no registers; and on RDNA, where other subgroups go on,
# and drivers without matrices give a lane 144 registers.
_LEAN_CUTS = (ChunkCut(32, 128, ahead=1), ChunkCut(16, 64, ahead=1))
CUTS = (
    _WIDE_CUT,
    ChunkCut(32, 128, ahead=2),
    _BUSY_CUT,
    ChunkCut(32, 256, ahead=2),
    _NARROW_CUT,
    ChunkCut(16, 128),
    *_LEAN_CUTS,
)
_FACTORS_BYTES = 2 * KEPT_TOKENS * (KEPT_TOKENS + _VECTOR) * 4


def chunk_cut(info: DeviceInfo, key_dim: int, num_columns: int) -> ChunkCut:
    """The cut for a device, of heads with keys of so many elements, and so many columns of all of a sequence's states.

    Where a device has a compute unit for each tile, twice the lanes have less to do each: an H100 takes 127 µs for 162.
    """
    if info.is_software or halves_subgroups(info):
        wide, narrow = _LEAN_CUTS
    else:
        is_lone = key_dim >= _MIN_BUSY_KEYS and num_columns <= info.compute_units * _WIDE_CUT.columns
        wide, narrow = _BUSY_CUT if is_lone else _WIDE_CUT, _NARROW_CUT
    shared = (key_dim + 2 * KEPT_TOKENS) * wide.columns * 4 + _FACTORS_BYTES
    return wide if shared <= info.max_shared_memory else narrow
