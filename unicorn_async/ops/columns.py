"""Columns in another order: how groups sort them, and rows of activations that follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.ops.grid import split_grid
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from unicorn_async.gpu.recorder import Kernels, Recorder

_WORKGROUP = 64
MAX_COLUMNS = 1 << 24  # an order is numbers in f32


def order_kernel() -> KernelRequest:
    """Name the pipeline that `column_order` uses."""
    return KernelRequest("column_order", {"WORKGROUP": _WORKGROUP})


def column_order(recorder: Recorder, kernels: Kernels, *, groups: int, out: int, columns: int, group: int) -> None:
    """Record the stable order of columns by their groups, of `group` columns each; no barrier.

    At the address `groups` are (columns) i32, `out` gets (columns) f32: which column comes where.
    """
    request = order_kernel()
    kernel = kernels.get(request.name, constants=request.constants)
    push = kernel.pack(src=groups, order=out, columns=columns, group=group)
    recorder.dispatch(kernel, push, -(-columns // _WORKGROUP))


def gather_columns(recorder: Recorder, kernels: Kernels, *, x: Tensor, order: Tensor, out: Tensor) -> None:
    """Record out (rows, columns) f32 = x (rows, columns) f32 with its columns in an `order`, (columns) f32; no barrier.

    Raises ConfigError for other shapes.
    """
    rows, columns = x.shape
    x.expect("gather_columns: x", (rows, columns), DType.F32)
    order.expect("gather_columns: order", (columns,), DType.F32)
    out.expect("gather_columns: out", (rows, columns), DType.F32)
    kernel = kernels.get("gather_columns", constants={"WORKGROUP": _WORKGROUP})
    push = kernel.pack(x=x.address, order=order.address, y=out.address, rows=rows, columns=columns)
    recorder.dispatch(kernel, push, *split_grid(-(-rows * columns // _WORKGROUP)))
