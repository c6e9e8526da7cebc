"""What makes dense values of packed weights, where kernels that read these can't take them as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.ops.grid import split_grid
from unicorn_async.ops.packed import SCALE_SOURCES, covered
from unicorn_async.packing import Codes, PlaneUse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.kernel import KernelLibrary
    from unicorn_async.ops.packed import PlanePart
    from unicorn_async.packing import Plane

_WORKGROUP = 64
_FLOATS, _SIGNED, _NIBBLES, _LEVELS = range(4)  # what codes mean
_MEANINGS = {
    Codes.E4M3: _FLOATS,
    Codes.BYTES: _SIGNED,
    Codes.BIASED_BYTES: _SIGNED,
    Codes.NIBBLES: _NIBBLES,
    Codes.NF4: _LEVELS,
    Codes.GPTQ4: _NIBBLES,
    Codes.GPTQ8: _SIGNED,
    Codes.AWQ: _NIBBLES,
}
_ZEROS = (PlaneUse.ZEROS, PlaneUse.CHECKED_ZEROS)


def dequantize(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    *,
    plane: Plane,
    codes: Codes,
    part: PlanePart,
    beside: Sequence[int],
    dst: int,
    turned_rows: int,
    out_of_range: int,
) -> None:
    """Record making F16 of a part's codes, rounded once; they are those of rows of the file's matrix.

    `beside` are the addresses of what `plane.beside` names, aligned to 4 bytes. `dst` is that of (rows, columns), or
    with `turned_rows` of (rows // turned_rows, columns, turned_rows). What F16 can't hold becomes zero and is counted,
    as are codes that are no numbers and columns of groups that there are not: in the u32 at `out_of_range`.
    """
    first_row, rows, first_column, columns = covered(plane, part)
    if rows == 0 or columns == 0:
        return
    request = dequantize_kernel(plane, codes, part.columns)
    kernel = kernels.get(request.name, constants=request.constants)
    places = dict(zip(plane.beside, beside, strict=True))
    scales, zeros, groups = _of(plane, PlaneUse.SCALES), _of(plane, *_ZEROS), _of(plane, PlaneUse.GROUPS)
    assert scales is not None, "codes have scales"
    nested = scales.nested
    push = kernel.pack(
        src=part.src - part.first_line * plane.line_bytes,
        scales=places[scales.piece],
        zeros=0 if zeros is None else places[zeros.piece],
        groups=0 if groups is None else places[groups.piece],
        levels=0 if nested is None else places[nested.levels],
        dst=dst,
        out_of_range=out_of_range,
        width=plane.width,
        first_row=first_row,
        rows=rows,
        row=part.row + first_row - part.file_row,
        first_column=first_column,
        columns=columns,
        turned_rows=turned_rows,
        nested_offset=0.0 if nested is None else nested.offset,
    )
    recorder.dispatch(kernel, push, *split_grid(-(-rows * columns // _WORKGROUP)))


def dequantize_kernel(plane: Plane, codes: Codes, columns: int) -> KernelRequest:
    """Name the pipeline that `dequantize` uses for a matrix of so many columns."""
    scales, zeros = _of(plane, PlaneUse.SCALES), _of(plane, *_ZEROS)
    assert scales is not None, "codes have scales"
    row_step, column_step = _steps(scales)
    constants: dict[str, int | float | bool] = {
        "WORKGROUP": _WORKGROUP,
        "MEANING": _MEANINGS[codes],
        "COLUMNS": columns,
        "SOURCE": SCALE_SOURCES[scales.dtype],
        "ROW_BLOCK": scales.row_block,
        "COLUMN_BLOCK": scales.column_block,
        "ROW_STEP": row_step,
        "COLUMN_STEP": column_step,
    }
    if scales.nested is not None:
        constants["NESTED_BLOCK"] = scales.nested.block
    if zeros is not None:
        row_step, column_step = _steps(zeros)
        constants |= {
            "ZERO_BITS": zeros.bits,
            "ZERO_ROWS": zeros.row_block,
            "ZERO_ROW_STEP": row_step,
            "ZERO_COLUMN_STEP": column_step,
            "ADDED": zeros.added,
            "EVEN_FIRST": zeros.even_first,
        }
    return KernelRequest(f"dequantize_{codes.value}", constants)


def _of(plane: Plane, *uses: PlaneUse) -> Plane | None:
    return next((other for other in plane.others if other.use in uses), None)


def _steps(plane: Plane) -> tuple[int, int]:
    """Values from one block of rows to the next, and from one of columns to the next."""
    return (1, plane.width) if plane.is_turned else (plane.width, 1)
