"""What turns tensors as they were read into quantised ones: quantising dense weights, re-laying GGUF's blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.ops.grid import split_grid
from unicorn_async.tensor import QUANT_BLOCK, DType, QuantFormat

if TYPE_CHECKING:
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.kernel import KernelLibrary
    from unicorn_async.tensor import BlockPlane, QuantTensor

_NAMES = {DType.F16: "f16", DType.BF16: "bf16", DType.F32: "f32"}
_SCHEMES = (QuantFormat.INT8, QuantFormat.INT4, QuantFormat.NF4)
_WORKGROUP = 64


def quantize(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    *,
    src: int,
    src_dtype: DType,
    dst: QuantTensor,
    first_element: int,
    num_elements: int,
    out_of_range: int = 0,
) -> None:
    """Record quantising contiguous elements, which become those of `dst` from `first_element` on.

    `src` is an address aligned to 16 bytes. int8: blocks of 32, scale = magnitude / 127. int4: blocks of 32, codes -8
    to 7, of six scales the one with the least squared error. nf4: blocks of 64, 16 levels. Scales are halves, rounded
    up. Magnitudes saturate at 65000; `out_of_range` is the address of a u32 that their number is added to, or 0.

    Raises:
        ValueError: the format is not one to quantise to, or the elements are no whole units of it.
    """
    unit = dst.format.layout.unit
    units = _units(num_elements, first_element, unit, dst)
    request = quantize_kernel(src_dtype, dst.format)
    kernel = kernels.get(request.name, constants=request.constants)
    quants, high, scales = dst.planes_from(first_element)
    push = kernel.pack(src=src, quants=quants, high=high, scales=scales, out_of_range=out_of_range, units=units)
    recorder.dispatch(kernel, push, *split_grid(-(-units // _WORKGROUP)))


def quantize_kernel(src_dtype: DType, quant_format: QuantFormat) -> KernelRequest:
    """Name the pipeline that `quantize` uses; raises ValueError for formats that are for GGUF's blocks alone."""
    if quant_format not in _SCHEMES:
        raise ValueError(f"quantize: expected one of {[f.value for f in _SCHEMES]}, got {quant_format.value}")
    return KernelRequest(f"quantize_{_NAMES[src_dtype]}_{quant_format.value}", {"WORKGROUP": _WORKGROUP})


def relayout(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    *,
    src: int,
    dst: QuantTensor,
    first_element: int,
    num_elements: int,
    plane: BlockPlane | None = None,
) -> None:
    """Record spreading GGUF's blocks of the type of `dst` over its planes, from `first_element` on.

    `src` is an address aligned to 2 bytes. Every quantised value stays what it was. With a `plane` it has that one
    alone, and the others of `dst` stay as they are.

    Raises:
        ValueError: the format is not one of GGUF's, or the elements are no whole blocks of it.
    """
    _units(num_elements, first_element, dst.format.layout.unit, dst)
    request = relayout_kernel(plane or dst.format)
    kernel = kernels.get(request.name, constants=request.constants)
    quants, high, scales = dst.planes_from(first_element)
    blocks = num_elements // QUANT_BLOCK
    push = kernel.pack(src=src, quants=quants, high=high, scales=scales, blocks=blocks)
    recorder.dispatch(kernel, push, *split_grid(-(-blocks // _WORKGROUP)))


def relayout_kernel(source: QuantFormat | BlockPlane) -> KernelRequest:
    """Name the pipeline that `relayout` uses; raises ValueError for formats that no file has."""
    if not source.source_bytes:
        raise ValueError(f"relayout: {source.value} is not a type of files")
    return KernelRequest(f"relayout_{source.value.lower().replace(' ', '_')}", {"WORKGROUP": _WORKGROUP})


def _units(num_elements: int, first_element: int, unit: int, dst: QuantTensor) -> int:
    inside = first_element >= 0 and first_element + num_elements <= dst.num_elements
    if num_elements < 1 or num_elements % unit or first_element % unit or not inside:
        raise ValueError(
            f"quantised weights {dst.shape} {dst.format.value}: elements {first_element} to "
            f"{first_element + num_elements} are no whole units of {unit} in it"
        )
    return num_elements // unit
