"""The change that a low-rank adapter makes to weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.ops.grid import split_grid

if TYPE_CHECKING:
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.kernel import KernelLibrary

_WORKGROUP = 64
_ROWS = 16  # of a workgroup, as in the shader
_COLUMNS = 8 * _WORKGROUP


@dataclass(frozen=True, slots=True)
class LowRankChange:
    """A matrix (rows, columns) as scale · left · right, with factors (rows, rank) and (rank, columns) in f32.

    `left` and `right` are addresses. A step of a row, of a rank or of a column in a factor is so many elements.
    """

    left: int
    right: int
    columns: int
    rank: int
    left_row: int
    left_rank: int
    right_rank: int
    right_column: int
    scale: float


def add_change(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    *,
    weights: int,
    change: LowRankChange,
    first_element: int,
    num_elements: int,
) -> None:
    """Record adding a change's elements from `first_element` on to contiguous f32 `weights`, in place.

    `weights` is the address of the first of `num_elements`, aligned to 4 bytes. Sums are made in f32, over the ranks in
    their order, so that they do not depend on how a matrix is cut.
    """
    first_row, first_column = divmod(first_element, change.columns)
    rows = -(-(first_column + num_elements) // change.columns)
    request = change_kernel()
    kernel = kernels.get(request.name, constants=request.constants)
    push = kernel.pack(
        weights=weights,
        left=change.left + 4 * first_row * change.left_row,
        right=change.right,
        columns=change.columns,
        first_column=first_column,
        count=num_elements,
        rank=change.rank,
        left_row=change.left_row,
        left_rank=change.left_rank,
        right_rank=change.right_rank,
        right_column=change.right_column,
        scale=change.scale,
    )
    recorder.dispatch(kernel, push, *split_grid(-(-rows // _ROWS) * -(-change.columns // _COLUMNS)))


def change_kernel() -> KernelRequest:
    """Name the pipeline that `add_change` uses."""
    return KernelRequest("lora_blend", {"WORKGROUP": _WORKGROUP})
