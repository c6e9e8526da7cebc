"""Reads of a word of each page of weights, ahead of the kernels that read them all.

A device that has not used a page for a while has to look up first where it is. On an H200 a model of 15.6 GB decodes
faster when its pages are looked up beside a kernel that leaves memory alone, as the attention of few tokens does; one
of 4.8 GB gains nothing (docs/notebook.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.tensor import parts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.tensor import Weight

MAX_TOUCH_TOKENS = 64  # of a step; the products of more take so long that finding the pages is nothing beside them
_MIN_BYTES = 5 << 30  # of what a step reads
_STRIDE = 1 << 20  # bytes
_WORKGROUP = 64
_RANGES = 4  # of a dispatch
_KERNEL = KernelRequest("touch_pages", {"WORKGROUP": _WORKGROUP, "STRIDE": _STRIDE})


def pays_to_touch(info: DeviceInfo, weights: Iterable[Weight]) -> bool:
    """Whether a device is likely to have forgotten the pages of a model's weights from one step to the next."""
    return not info.is_software and sum(size for weight in weights for _, size in _ranges(weight)) > _MIN_BYTES


def touch_pages(recorder: Recorder, kernels: Kernels, weights: Sequence[Weight], *, sink: int) -> None:
    """Record the reads; `sink` is the address of a u32 that nobody reads, and that may be written."""
    kernel = kernels.get(_KERNEL.name, constants=_KERNEL.constants)
    ranges = [found for weight in weights for found in _ranges(weight)]
    for begin in range(0, len(ranges), _RANGES):
        some = ranges[begin : begin + _RANGES]
        fields = {f"first{index}": address for index, (address, _) in enumerate(some)}
        fields |= {f"words{index}": nbytes // 4 for index, (_, nbytes) in enumerate(some)}
        absent = range(len(some), _RANGES)
        fields |= {f"{name}{index}": 0 for name in ("first", "words") for index in absent}
        places = max(-(-nbytes // _STRIDE) for _, nbytes in some) + 1
        recorder.dispatch(kernel, kernel.pack(sink=sink, **fields), -(-places // _WORKGROUP))


def _ranges(weight: Weight) -> list[tuple[int, int]]:
    """Where a weight lies: addresses and sizes in bytes."""
    parts = parts_of(weight)
    return [(part.address, part.nbytes) for part in parts]
