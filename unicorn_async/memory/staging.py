"""Where the memory lies through which a load's chunks go to their places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.gpu.budget import HeapKind, heap_kinds

if TYPE_CHECKING:
    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.device import Device
    from unicorn_async.memory.plan import MemoryPlan

_SPARE_RINGS = 2  # of free memory, beside what is planned, for other programs to have some


def stages_in_vram(device: Device, plan: MemoryPlan, options: EngineConfig) -> bool:
    """Whether a load stages in the GPU's own memory: all of it is mapped, and there is room beside the plan.

    What other engines have left counts as room; it blocks while a part of that is being freed.

    The CPU then writes over the bus as it reads the file. A kernel that converts has its input at once: one that reads
    the host's memory would keep the queue busy for as long as the bus takes, and a prompt waiting. And nothing but the
    ring has to be mapped, which takes some drivers nearly as long as to allocate.
    """
    info, memory = device.info, device.memory
    if info.shares_host_memory or not memory.expects_mappable(HeapKind.VRAM):
        return False
    planned = plan.placement.nbytes(HeapKind.VRAM) + plan.step_bytes
    if options.vram_bytes is not None and planned + plan.staging_bytes > options.vram_bytes:
        return False
    kinds = zip(device.heaps_with_left(), heap_kinds(info), strict=True)
    free = sum(heap.available_bytes for heap, kind in kinds if kind is HeapKind.VRAM)
    return planned + _SPARE_RINGS * plan.staging_bytes <= free
