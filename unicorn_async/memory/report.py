"""What a model was planned to take, what was allocated for it, and what the driver says of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.gpu.budget import HeapKind, heap_kinds

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import MemoryHeap
    from unicorn_async.memory.kv_pool import KVPool
    from unicorn_async.weights.placement import Placement

_TABLE_BYTES = 16 << 20  # small tables that no plan has, and what allocations are rounded up by, at most
_TOLERANCE_SHARE = 0.05  # a driver rounds up, and keeps tables of pages and memory for commands
_TOLERANCE_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class HeapReport:
    """One kind of memory, in bytes: `planned` for the model, `allocated` in all since the device was opened.

    `to_come` is what is planned and still to be allocated: a KV cache that grows. `beside` is what may be allocated
    beside the plan: frames and results, and during a load staging and adapters.
    `driver` is by how much the driver's figure for this process grew; None where it gives none, and for the moments in
    which it takes back memory that another model has left.
    """

    heap: HeapKind
    planned: int
    allocated: int
    driver: int | None
    beside: int = 0
    to_come: int = 0

    @property
    def plan_agrees(self) -> bool:
        """Whether all that was planned to be there is allocated, and beside it no more than there may be."""
        return 0 <= self.allocated - (self.planned - self.to_come) <= self.beside + _TABLE_BYTES

    @property
    def driver_agrees(self) -> bool | None:
        """Whether the driver's figure is what was allocated, within what drivers add; None where it gives none."""
        if self.driver is None:
            return None
        return abs(self.driver - self.allocated) <= _TOLERANCE_BYTES + _TOLERANCE_SHARE * self.allocated

    @property
    def agrees(self) -> bool | None:
        """Whether all three figures agree; None where those that there are do, and the driver gives none."""
        return self.plan_agrees and self.driver_agrees


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The kinds of memory that a device has."""

    heaps: tuple[HeapReport, ...]

    @property
    def agrees(self) -> bool | None:
        """Whether all figures agree: False where any differ, None where the driver has none to compare with."""
        heaps = [heap.agrees for heap in self.heaps]
        if False in heaps:
            return False
        return None if None in heaps or not heaps else True

    def to_json(self) -> dict[str, object]:
        """Return everything as JSON values."""
        return {"heaps": [_heap_json(heap) for heap in self.heaps], "agrees": self.agrees}


def _heap_json(heap: HeapReport) -> dict[str, object]:
    return {
        "heap": heap.heap.value,
        "planned": heap.planned,
        "to_come": heap.to_come,
        "allocated": heap.allocated,
        "driver": heap.driver,
        "plan_agrees": heap.plan_agrees,
        "driver_agrees": heap.driver_agrees,
    }


def driver_usage(device: Device) -> tuple[int, ...] | None:
    """Return what the driver says that this process uses, per heap; None where it does not say.

    What others have left, and is being freed, is not in it; it blocks while a part of that is.
    """
    return _usage(device.heaps_with_left()) if device.info.memory_budget else None


def _usage(heaps: tuple[MemoryHeap, ...] | None) -> tuple[int, ...] | None:
    return None if heaps is None else tuple(heap.used - heap.left for heap in heaps)


def memory_report(
    device: Device,
    placement: Placement,
    usage_before: tuple[int, ...] | None,
    *,
    beside_bytes: int = 0,
    twin: Device | None = None,
    twin_cache_bytes: int = 0,
    kv_pool: KVPool | None = None,
) -> MemoryReport:
    """Compare; `usage_before` is the `driver_usage` from before anything was allocated.

    `beside_bytes` is what there may be beside the plan, in each kind of memory. `twin` is another logical device of the
    same GPU, whose memory the driver counts in; `twin_cache_bytes` are planned there. `kv_pool` may still grow.
    """
    to_come = {heap: 0 if kv_pool is None else kv_pool.pending_bytes(heap) for heap in HeapKind}
    beside_bytes += 0 if kv_pool is None else kv_pool.piece_bytes
    kinds, usage = heap_kinds(device.info), _usage(device.heaps_at_once()) if device.info.memory_budget else None
    grown = None
    if usage is not None and usage_before is not None:
        grown = [now - before for now, before in zip(usage, usage_before, strict=True)]
    others = {heap: 0 if twin is None else twin.memory.used_of(heap) for heap in HeapKind}
    twin_heap = max(others, key=lambda heap: others[heap])
    cache = {heap: twin_cache_bytes if heap is twin_heap else 0 for heap in HeapKind}
    return MemoryReport(
        tuple(
            HeapReport(
                heap,
                placement.nbytes(heap) + cache[heap],
                device.memory.used_of(heap) + others[heap],
                None if grown is None else sum(g for g, kind in zip(grown, kinds, strict=True) if kind is heap),
                beside_bytes + others[heap] - cache[heap],
                to_come[heap],
            )
            for heap in HeapKind
            if heap in kinds
        )
    )
