"""Which memory types suit a kind of allocation, best first."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

DEVICE_LOCAL, HOST_VISIBLE, HOST_COHERENT, HOST_CACHED = 1, 2, 4, 8
_KNOWN = DEVICE_LOCAL | HOST_VISIBLE | HOST_COHERENT | HOST_CACHED
_MAPPABLE = HOST_VISIBLE | HOST_COHERENT


class MemoryKind(Enum):
    """What an allocation is for.

    DEVICE is the GPU's own memory, mapped where the device maps all of it. STAGING is for the CPU to fill or to read,
    cached if possible. ARGUMENTS is for small blocks that the CPU writes each step, near the GPU if possible.
    """

    DEVICE = "device"
    STAGING = "staging"
    ARGUMENTS = "arguments"


def is_mappable(flags: int) -> bool:
    """Whether the CPU sees such memory without flushes."""
    return flags & _MAPPABLE == _MAPPABLE


def rank_memory_types(
    types: Sequence[tuple[int, int]], heap_bytes: Sequence[int], kind: MemoryKind, *, shares_host_memory: bool
) -> tuple[int, ...]:
    """Return the indices of usable types, best first.

    `types` holds (property flags, heap index). DEVICE memory of a discrete GPU is never taken from the host's heaps,
    where it would be slow without a word; where GPU and host share their memory, every heap is as good.
    """

    def suits(flags: int) -> bool:
        if flags & ~_KNOWN:  # lazily allocated, protected, or device-coherent: not for this
            return False
        if kind is MemoryKind.DEVICE:
            return bool(flags & DEVICE_LOCAL) or shares_host_memory
        return is_mappable(flags)

    def rank(index: int) -> tuple[int, ...]:
        flags, heap = types[index]
        local, cached = bool(flags & DEVICE_LOCAL), bool(flags & HOST_CACHED)
        if kind is MemoryKind.DEVICE:
            return (not local, -heap_bytes[heap], not is_mappable(flags), cached, index)
        if kind is MemoryKind.STAGING:
            return (not cached, local, -heap_bytes[heap], index)
        return (not local, cached, -heap_bytes[heap], index)

    return tuple(sorted((i for i, (flags, _) in enumerate(types) if suits(flags)), key=rank))
