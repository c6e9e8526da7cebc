"""Conversions between element types, as weights need them after they were read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.ops.linear_plan import split_grid
from unicorn_async.tensor import DType

if TYPE_CHECKING:
    from collections.abc import Mapping

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
) -> None:
    """Record the conversion of contiguous elements to F32, or to F16 with saturation; nothing past them is written.

    `src` and `dst` are addresses aligned to 16 bytes; the two must not overlap.

    Raises:
        ValueError: there is no such conversion, or more elements than one dispatch can count.
    """
    if not 1 <= num_elements <= _MAX_ELEMENTS:
        raise ValueError(f"convert: expected 1 to {_MAX_ELEMENTS} elements, got {num_elements}")
    name, constants = kernel_for(src_dtype, dst_dtype)
    kernel = kernels.get(name, constants=constants)
    x, y = split_grid(-(-num_elements // (_WORKGROUP * _ELEMENTS_PER_LANE)))
    recorder.dispatch(kernel, kernel.pack(src=src, dst=dst, n=num_elements), x, y)


def kernel_for(src_dtype: DType, dst_dtype: DType) -> tuple[str, Mapping[str, int]]:
    """Name and constants of the pipeline that `convert` uses.

    Raises:
        ValueError: nothing converts to BF16.
    """
    if dst_dtype is DType.BF16:
        raise ValueError(f"convert: expected F16 or F32 to convert {src_dtype.value} to, got {dst_dtype.value}")
    return f"convert_{_NAMES[src_dtype]}_{_NAMES[dst_dtype]}", {"WORKGROUP": _WORKGROUP}
