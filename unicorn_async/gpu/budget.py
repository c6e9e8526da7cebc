"""How much of a device's memory a model may take, by kind of heap. Pure, but for `host_room`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.gpu.host import HostGraphics
from unicorn_async.gpu.host_memory import HostMemory

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo

USABLE_SHARE = 0.9  # of what is free; the rest is left to the driver and to other programs
_WINDOW_SHARE = 8  # a device-local heap so many times smaller than the largest is the CPU's window into that
_VENDOR_AMD = 0x1002


class HeapKind(Enum):
    """Where memory lies: the device's own, or the host's that the device reaches (AMD's name for it is GTT)."""

    VRAM = "VRAM"
    GTT = "GTT"


@dataclass(frozen=True, slots=True)
class HeapLimits:
    """What a user allows at most, in bytes; None is what there is, but no GTT on a discrete GPU."""

    vram: int | None = None
    gtt: int | None = None

    def of(self, kind: HeapKind) -> int | None:
        """Return the limit of one kind."""
        return self.vram if kind is HeapKind.VRAM else self.gtt


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """What may be taken of each kind of heap, and of all together: less than the sum where one memory backs both.

    `is_shared` says that the host's programs use the same memory, `slow_gtt` that GTT lies behind a bus.
    """

    vram: int
    gtt: int
    total: int
    is_shared: bool = False
    slow_gtt: bool = False

    def of(self, kind: HeapKind) -> int:
        """Return the bytes of one kind."""
        return self.vram if kind is HeapKind.VRAM else self.gtt


def heap_kinds(info: DeviceInfo) -> tuple[HeapKind | None, ...]:
    """Return the kind of each heap; None for the small window through which the CPU sees a discrete GPU's memory.

    Some drivers count the window's bytes in the large heap as well, and frames need it: no tensor goes there.
    """
    largest = max((heap.nbytes for heap in info.heaps if heap.device_local), default=0)
    kinds: list[HeapKind | None] = []
    for heap in info.heaps:
        if not heap.device_local:
            kinds.append(HeapKind.GTT)
        elif not info.shares_host_memory and heap.nbytes * _WINDOW_SHARE <= largest:
            kinds.append(None)
        else:
            kinds.append(HeapKind.VRAM)
    return tuple(kinds)


def memory_budget(info: DeviceInfo, limits: HeapLimits, host_bytes: int | None) -> MemoryBudget:
    """Return the room on a device; `host_bytes` is what `host_room` says, None where nobody knows.

    A limit counts as it stands where there is so much; without one, a tenth of what is free is left alone. A GPU that
    shares the host's memory gets no more than the host has free, however large its heaps are said to be.

    Raises:
        ConfigError: there is a limit for GTT, and the device has no such heap.
    """
    kinds = heap_kinds(info)
    if limits.gtt is not None and HeapKind.GTT not in kinds:
        raise ConfigError(f"a limit of {limits.gtt} bytes for GTT: {info.name} has one kind of memory alone")

    def room(kind: HeapKind) -> int:
        free = sum(heap.available_bytes for heap, its in zip(info.heaps, kinds, strict=True) if its is kind)
        limit = limits.of(kind)
        if kind is HeapKind.GTT and not info.shares_host_memory:
            if limit is None:
                return 0
            free = free if host_bytes is None else min(free, int(host_bytes * USABLE_SHARE))
        return int(free * USABLE_SHARE) if limit is None else min(limit, free)

    vram, gtt = room(HeapKind.VRAM), room(HeapKind.GTT)
    total = vram + gtt
    if info.shares_host_memory and host_bytes is not None:
        total = min(total, int(host_bytes * USABLE_SHARE))
    slow = gtt > 0 and not info.shares_host_memory
    return MemoryBudget(min(vram, total), min(gtt, total), total, info.shares_host_memory, slow)


def host_room(info: DeviceInfo, memory: HostMemory | None = None, graphics: HostGraphics | None = None) -> int | None:
    """Return the free memory behind a device's heaps that belongs to the host, in bytes; None where nobody knows.

    An AMD APU also has what the firmware has set aside for it, which is no part of the host's memory. A virtual GPU's
    heaps are somebody else's.
    """
    if info.type in (DeviceType.VIRTUAL, DeviceType.OTHER):
        return None
    free = (memory or HostMemory()).available_bytes()
    if free is not None:
        free += sum(heap.left for heap in info.heaps if info.shares_host_memory or not heap.device_local)
    if free is None or info.type is not DeviceType.INTEGRATED or info.vendor_id != _VENDOR_AMD:
        return free
    set_aside = [card.vram_total - card.vram_used for card in (graphics or HostGraphics()).amd_memory()]
    return free + max(0, min(set_aside, default=0))
