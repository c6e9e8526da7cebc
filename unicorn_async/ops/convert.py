"""Conversions between element types, as weights need them after they were read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.ops.grid import split_grid
from unicorn_async.tensor import DType

if TYPE_CHECKING:
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.kernel import KernelLibrary

_NAMES = {DType.F16: "f16", DType.BF16: "bf16", DType.F32: "f32"}
_WORKGROUP = 64
_ELEMENTS_PER_LANE = 8
_MAX_ELEMENTS = (1 << 31) - 1


def convert(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    *,
    src: int,
    src_dtype: DType,
    dst: int,
    dst_dtype: DType,
    num_elements: int,
    out_of_range: int = 0,
) -> None:
    """Record the conversion of contiguous elements, rounded to nearest; nothing past them is written.

    `src` and `dst` are addresses aligned to 16 bytes; the two must not overlap. What F16 or BF16 can't hold becomes the
    largest number of its sign, and is counted, as are infinities and NaNs: `out_of_range` is the address of a u32 that
    the count is added to, or 0.

    Raises:
        ValueError: more elements than one dispatch can count.
    """
    if not 1 <= num_elements <= _MAX_ELEMENTS:
        raise ValueError(f"convert: expected 1 to {_MAX_ELEMENTS} elements, got {num_elements}")
    request = convert_kernel(src_dtype, dst_dtype)
    kernel = kernels.get(request.name, constants=request.constants)
    x, y = split_grid(-(-num_elements // (_WORKGROUP * _ELEMENTS_PER_LANE)))
    recorder.dispatch(kernel, kernel.pack(src=src, dst=dst, out_of_range=out_of_range, n=num_elements), x, y)


def convert_kernel(src_dtype: DType, dst_dtype: DType) -> KernelRequest:
    """Name the pipeline that `convert` uses."""
    return KernelRequest(f"convert_{_NAMES[src_dtype]}_{_NAMES[dst_dtype]}", {"WORKGROUP": _WORKGROUP})
