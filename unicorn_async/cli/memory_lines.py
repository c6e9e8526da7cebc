"""What a command says about a model's memory: before the load, and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.cli.amounts import size
from unicorn_async.gpu.budget import HeapKind
from unicorn_async.gpu.device_info import DeviceType

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.memory.report import MemoryReport


def heap_name(info: DeviceInfo, heap: HeapKind) -> str:
    """Return what people call a device's kind of memory."""
    if info.is_software:
        return "host memory"
    if heap is HeapKind.GTT and info.type is DeviceType.DISCRETE:
        return "host memory, over the bus (slow)"
    return heap.value


def planned_line(info: DeviceInfo, report: MemoryReport) -> str:
    """Return one line with what is planned where."""
    parts = [f"{size(heap.planned)} of {heap_name(info, heap.heap)}" for heap in report.heaps if heap.planned]
    return f"memory   planned {' and '.join(parts)}"


def measured_line(info: DeviceInfo, report: MemoryReport) -> str:
    """Return one line that compares the plan with what was allocated, and with what the driver says."""
    parts = []
    for heap in report.heaps:
        if heap.planned or heap.allocated:
            says = "the driver gives no figure" if heap.driver is None else f"driver says {size(heap.driver)}"
            differs = ": THEY DIFFER" if heap.agrees is False else ""
            text = f"planned {size(heap.planned)}, allocated {size(heap.allocated)}, {says}{differs}"
            parts.append(f"{heap_name(info, heap.heap)}: {text}")
    return f"memory   {'; '.join(parts)}"
