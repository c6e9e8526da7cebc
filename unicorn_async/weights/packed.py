"""Reads of matrices that lie packed in a checkpoint: their codes, and the planes beside them. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.packing import Plane, PlaneUse
from unicorn_async.tensor import QuantFormat
from unicorn_async.weights.chunk import PlaneChunk
from unicorn_async.weights.row_order import RowRun, head_runs

if TYPE_CHECKING:
    from unicorn_async.checkpoint.source_tensor import SourceTensor
    from unicorn_async.packing import Packing
    from unicorn_async.weights.chunk import Chunk
    from unicorn_async.weights.row_order import HeadOrder

_VALUE_COLUMNS = 8  # so that lines of codes begin at whole words


def check_packed(source: SourceTensor, shape: tuple[int, ...], final: QuantFormat) -> None:
    """Check that kernels can read what becomes of packed matrices where a tensor of this `shape` is wanted.

    Raises:
        UnsupportedModelError: they can't.
    """
    if source.shape != shape:
        raise UnsupportedModelError(
            f"tensor {source.name!r}: {final.value} weights of shape {list(source.shape)}, expected {list(shape)}"
        )
    if (plane := _unfit(source, final)) is not None:
        raise UnsupportedModelError(
            f"tensor {plane.name!r}: {plane.use.value} for groups of {plane.column_block} columns, "
            f"expected a multiple of {final.layout.unit}"
        )


def may_stay(source: SourceTensor, final: QuantFormat) -> bool:
    """Return whether kernels can read rows of a packed matrix as they are, with columns in the file's order."""
    assert source.packing is not None, "it is packed"
    whole = source.shape[1] % final.layout.unit == 0
    return whole and source.packing.order is None and _unfit(source, final) is None


def check_values(source: SourceTensor) -> None:
    """Raise UnsupportedModelError for a packed matrix of which the device can't make dense values."""
    if source.shape[1] % _VALUE_COLUMNS:
        raise UnsupportedModelError(
            f"tensor {source.name!r} is quantised, as {source.dtype}, in rows of {source.shape[1]}, "
            f"expected a multiple of {_VALUE_COLUMNS}"
        )


def _unfit(source: SourceTensor, final: QuantFormat) -> Plane | None:
    """The first plane whose groups have no whole number of units."""
    assert source.packing is not None, "it is packed"
    columns, unit = source.shape[-1], final.layout.unit
    planes = (plane for plane in source.packing.planes if plane.use.is_for_units)
    return next((plane for plane in planes if plane.column_block < columns and plane.column_block % unit), None)


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


def value_chunk(whole: Chunk, source: SourceTensor, runs: tuple[RowRun, ...], turned_rows: int) -> PlaneChunk:
    """Return the read of all that rows of a packed matrix as dense values are made of, which begin as `whole` does.

    They lie in the file as `runs` say; each `turned_rows` of them become a matrix that has them for columns.
    """
    packing = source.packing
    assert packing is not None and whole.first_element == 0, "all of a destination is made of it"
    rows, columns = source.shape
    own = Plane(
        PlaneUse.VALUES, source.name, "U8", source.file, source.offset, source.nbytes, source.nbytes // rows, 1, columns
    )
    others = packing.planes
    if not packing.codes.is_by_rows:
        own, others = replace(others[0], use=PlaneUse.VALUES, groups=None), others[1:]
    if packing.order is not None:
        others = (*others, replace(packing.order, use=PlaneUse.GROUPS))
    return PlaneChunk(
        own.file,
        own.offset,
        own.nbytes,
        whole.dest,
        whole.dest_dtype,
        whole.layer,
        replace(own, others=others),
        0,
        runs,
        columns,
        packing.codes,
        QuantFormat(source.dtype),
        turned_rows,
    )
