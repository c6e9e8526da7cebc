"""Reads of matrices that lie packed in a checkpoint: their codes, and the planes beside them. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.packing import PlaneUse
from unicorn_async.tensor import QuantFormat
from unicorn_async.weights.chunk import PlaneChunk
from unicorn_async.weights.row_order import RowRun, head_runs

if TYPE_CHECKING:
    from unicorn_async.checkpoint.source_tensor import SourceTensor
    from unicorn_async.packing import Packing
    from unicorn_async.weights.chunk import Chunk
    from unicorn_async.weights.row_order import HeadOrder


def check_packed(source: SourceTensor, shape: tuple[int, ...], stacked: int, final: QuantFormat) -> None:
    """Check that kernels can read what becomes of a packed matrix where so many are wanted in one tensor of a `shape`.

    Raises:
        UnsupportedModelError: they can't.
    """
    if stacked != 1 or source.shape != shape:
        raise UnsupportedModelError(
            f"tensor {source.name!r}: {final.value} weights of shape {list(source.shape)}, "
            f"expected one matrix a tensor, {list(shape)}"
        )
    assert source.packing is not None, "it is packed"
    columns = source.shape[1]
    for plane in source.packing.planes:
        if plane.column_block < columns and plane.column_block % final.layout.unit and plane.use.is_for_units:
            raise UnsupportedModelError(
                f"tensor {plane.name!r}: {plane.use.value} for groups of {plane.column_block} columns, "
                f"expected a multiple of {final.layout.unit}"
            )


def packed_chunks(
    whole: Chunk, packing: Packing, shape: tuple[int, ...], runs: tuple[RowRun, ...], order: HeadOrder | None
) -> list[PlaneChunk]:
    """Return what is read of a packed matrix beside codes that lie by rows; `whole` is what these would be.

    Its rows lie in the file as `runs` or an `order` of heads say, or as the model wants them.
    """
    assert isinstance(whole.dest_dtype, QuantFormat), "codes stay codes"
    rows, columns = shape
    first_row = whole.first_element // columns
    runs = runs or ((RowRun(0, 0, rows),) if order is None else head_runs(order, rows))
    moved = tuple(replace(run, row=run.row + first_row) for run in runs)
    return [
        PlaneChunk(
            plane.file,
            plane.offset,
            plane.nbytes,
            whole.dest,
            whole.dest_dtype,
            whole.layer,
            plane,
            0,
            moved[:1] if plane.use is PlaneUse.GROUPS else moved,
            columns,
            packing.codes,
        )
        for plane in packing.planes
    ]
