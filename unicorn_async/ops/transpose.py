"""Matrices whose rows and columns change places, as some weights need it after they were read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.ops.grid import split_grid

if TYPE_CHECKING:
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.kernel import KernelLibrary
    from unicorn_async.tensor import DType

_WORKGROUP = 64
_MAX_ELEMENTS = (1 << 32) - 1


def transpose(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    *,
    src: int,
    dst: int,
    dtype: DType,
    shape: tuple[int, int, int],
    first_element: int,
    num_elements: int,
) -> None:
    """Record putting elements of matrices of `shape` (matrices, rows, columns) at their places in (matrices, columns,
    rows), which `dst` is the address of.

    `src` is the address of those from `first_element` on; both addresses are aligned to 4 bytes.

    Raises:
        ValueError: the elements are not all of these matrices, or more than one dispatch can count.
    """
    matrices, rows, columns = shape
    total = matrices * rows * columns
    if num_elements < 1 or first_element < 0 or first_element + num_elements > total or total > _MAX_ELEMENTS:
        raise ValueError(f"transpose: elements {first_element} to {first_element + num_elements} of {shape}")
    request = transpose_kernel(dtype)
    kernel = kernels.get(request.name, constants=request.constants)
    push = kernel.pack(src=src, dst=dst, first=first_element, n=num_elements, rows=rows, columns=columns)
    recorder.dispatch(kernel, push, *split_grid(-(-num_elements // _WORKGROUP)))


def transpose_kernel(dtype: DType) -> KernelRequest:
    """Name the pipeline that `transpose` uses."""
    return KernelRequest(f"transpose_{8 * dtype.itemsize}", {"WORKGROUP": _WORKGROUP})
