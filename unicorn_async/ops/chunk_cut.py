"""How delta_chunks and time_mix_chunks are cut, in which a state goes through a long run chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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


_GPU_CUT, _NARROW_CUT = ChunkCut(32, 128), ChunkCut(16, 64)
_GPU_SHARED_BYTES = 34 << 10  # of a workgroup by _GPU_CUT, with the longest keys
_SOFTWARE_CUT = ChunkCut(16, 64, ahead=1)  # more is slow to compile, and has no registers
CUTS = (
    _GPU_CUT,
    ChunkCut(32, 128, ahead=2),
    ChunkCut(32, 256),
    ChunkCut(32, 256, ahead=2),
    _NARROW_CUT,
    ChunkCut(16, 128),
    _SOFTWARE_CUT,
)


def chunk_cut(info: DeviceInfo) -> ChunkCut:
    """The cut for a device."""
    if info.is_software:
        return _SOFTWARE_CUT
    return _GPU_CUT if info.max_shared_memory >= _GPU_SHARED_BYTES else _NARROW_CUT
