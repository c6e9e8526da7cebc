"""What the device does to weights between staging memory and their places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.loader.chunk import Transform
from unicorn_async.ops.convert import convert, kernel_for
from unicorn_async.ops.quantize import quantize, quantize_kernel, relayout, relayout_kernel
from unicorn_async.tensor import DType, QuantFormat, QuantTensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.kernel import KernelLibrary
    from unicorn_async.loader.chunk import Chunk
    from unicorn_async.loader.plan import LoadPlan
    from unicorn_async.loader.uploader import ConvertRecorder


def converter(kernels: KernelLibrary, plan: LoadPlan) -> ConvertRecorder:
    """Return what records the transforms of a plan's chunks."""
    destinations = {dest.name: dest for dest in plan.destinations}

    def record(recorder: CommandRecorder, source: int, place: int, chunk: Chunk) -> None:
        kind, source_kind = chunk.dest_dtype, chunk.source_dtype
        count = chunk.num_elements
        if isinstance(kind, DType):
            assert isinstance(source_kind, DType), "only dense weights become dense"
            target = place + chunk.dest_offset
            convert(
                recorder, kernels, src=source, src_dtype=source_kind, dst=target, dst_dtype=kind, num_elements=count
            )
            return
        whole = QuantTensor(place, destinations[chunk.dest].shape, kind)
        first = chunk.first_element
        if isinstance(source_kind, QuantFormat):
            relayout(recorder, kernels, src=source, dst=whole, first_element=first, num_elements=count)
        else:
            quantize(
                recorder,
                kernels,
                src=source,
                src_dtype=source_kind,
                dst=whole,
                first_element=first,
                num_elements=count,
            )

    return record


def conversion_kernels(plan: LoadPlan) -> Iterator[KernelRequest]:
    """Name the pipelines that a plan's transforms need."""
    pairs = dict.fromkeys(
        (chunk.source_dtype, chunk.dest_dtype) for chunk in plan.chunks if chunk.transform is not Transform.COPY
    )
    for source, dest in pairs:
        if isinstance(dest, DType):
            assert isinstance(source, DType), "only dense weights become dense"
            yield KernelRequest(*kernel_for(source, dest))
        elif isinstance(source, QuantFormat):
            yield relayout_kernel(source)
        else:
            yield quantize_kernel(source, dest)
