"""What a model was planned to take, what was allocated for it, and what the driver says of that."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from unicorn_async.gpu.memory_room import HeapKind, heap_kinds

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device
    from unicorn_async.loader.placement import Placement

_TOLERANCE_SHARE = 0.05  # a driver rounds up, and keeps tables of pages and memory for commands
_TOLERANCE_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class HeapReport:
    """One kind of memory, in bytes: `planned` for the model, `allocated` in all since the device was opened.

    Beside the model there are frames, results and, during a load, staging memory. `driver` is by how much the driver's
    figure for this process grew; None where it gives none.
    """

    heap: HeapKind
    planned: int
    allocated: int
    driver: int | None

    @property
    def agrees(self) -> bool:
        """Whether the driver's figure is what was allocated, within what drivers add."""
        if self.driver is None:
            return True
        return abs(self.driver - self.allocated) <= _TOLERANCE_BYTES + _TOLERANCE_SHARE * self.allocated


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The kinds of memory that a device has."""

    heaps: tuple[HeapReport, ...]

    @property
    def agrees(self) -> bool:
        """Whether the driver's figures are what was allocated, wherever it gives any."""
        return all(heap.agrees for heap in self.heaps)

    def to_json(self) -> dict[str, object]:
        """Return everything as JSON values."""
        heaps = [{**asdict(heap), "heap": heap.heap.value} for heap in self.heaps]
        return {"heaps": heaps, "agrees": self.agrees}


def driver_usage(device: Device) -> tuple[int, ...] | None:
    """Return what the driver says that this process uses, per heap; None where it does not say."""
    return tuple(heap.used for heap in device.heaps()) if device.info.memory_budget else None


def memory_report(device: Device, placement: Placement, usage_before: tuple[int, ...] | None) -> MemoryReport:
    """Compare; `usage_before` is the `driver_usage` from before anything was allocated."""
    kinds, usage = heap_kinds(device.info), driver_usage(device)
    grown = None
    if usage is not None and usage_before is not None:
        grown = [now - before for now, before in zip(usage, usage_before, strict=True)]
    return MemoryReport(
        tuple(
            HeapReport(
                heap,
                placement.nbytes(heap),
                device.memory.used_of(heap),
                None if grown is None else sum(g for g, kind in zip(grown, kinds, strict=True) if kind is heap),
            )
            for heap in HeapKind
            if heap in kinds
        )
    )
