"""What brings packed weights to where kernels read them: codes by rows and by columns, scales, zero points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.ops.grid import split_grid
from unicorn_async.packing import LARGEST_CODES, PlaneUse
from unicorn_async.tensor import QUANT_BLOCK, QuantFormat

if TYPE_CHECKING:
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.kernel import Kernel, KernelLibrary
    from unicorn_async.packing import Codes, Plane
    from unicorn_async.tensor import QuantTensor

_WORKGROUP = 64
SCALE_SOURCES = {"F32": 0, "F16": 1, "BF16": 2, "U8": 3}  # of kernels that read scales
# What a scale is multiplied by: of codes in E4M3 a half has the 256th part, and levels of NormalFloat4 are 127ths.
_FACTORS = {QuantFormat.F8_E4M3: 256.0, QuantFormat.NF4: 1 / 127}


@dataclass(frozen=True, slots=True)
class PlanePart:
    """Lines of a plane at the address `src`, from `first_line` on, and which rows they are for.

    What nested scales choose from is at the address `levels`, and right behind it what that is multiplied by. Which of
    the file's columns come where is at the address `order`, (columns) f32, of codes that have `groups`.
    `rows` rows from `file_row` on are those of the tensor from `row` on; the matrix has so many `columns`.
    """

    src: int
    first_line: int
    num_lines: int
    file_row: int
    row: int
    rows: int
    columns: int
    levels: int = 0
    order: int = 0


def relayout_codes(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    *,
    src: int,
    codes: Codes,
    dst: QuantTensor,
    first_element: int,
    num_elements: int,
    out_of_range: int,
) -> None:
    """Record bringing codes that lie by rows to `dst`, from `first_element` on; whole blocks of 32.

    `src` is an address aligned to 4 bytes. Those that are no numbers are added to the u32 at `out_of_range`.
    """
    kernel = _kernel(kernels, codes_kernel(codes))
    quants, high, _ = dst.planes_from(first_element)
    blocks = num_elements // QUANT_BLOCK
    push = kernel.pack(src=src, quants=quants, high=high, out_of_range=out_of_range, blocks=blocks)
    recorder.dispatch(kernel, push, *_grid(blocks))


def relayout_plane(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    *,
    plane: Plane,
    codes: Codes,
    part: PlanePart,
    dst: QuantTensor,
    unexpected: int,
) -> None:
    """Record bringing a part of a plane to `dst`, or checking it; what is not as it has to be is added to a u32.

    `codes` says how the matrix lies where the plane has its codes. Of those that have `groups`, blocks keep what is
    there of columns that the lines do not have: a barrier has to be before each part.
    """
    request = plane_kernel(plane, codes, dst.format)
    kernel = _kernel(kernels, request)
    # The kernels count lines from the plane's first, wherever those lie that were read.
    src = part.src - part.first_line * plane.line_bytes
    if plane.use is PlaneUse.GROUPS:
        push = kernel.pack(
            src=part.src,
            unexpected=unexpected,
            first_column=part.first_line,
            columns=part.num_lines,
            group=plane.expected,
        )
        recorder.dispatch(kernel, push, *_grid(part.num_lines))
        return
    unit = QUANT_BLOCK if plane.use is PlaneUse.CODES else dst.format.layout.unit
    first_row, rows, first_column, columns = covered(plane, part)
    if rows == 0:
        return
    element = (part.row + first_row - part.file_row) * part.columns
    quants, high, scales = dst.planes_from(element)
    units = columns // unit
    if plane.groups is not None:
        push = kernel.pack(
            src=src,
            order=part.order,
            quants=quants,
            width=plane.width,
            first_row=first_row,
            rows=rows,
            first_column=first_column,
            columns=columns,
            row_blocks=part.columns // unit,
        )
        recorder.dispatch(kernel, push, *_grid(rows * part.columns // unit))
        return
    if plane.use is PlaneUse.CODES:
        push = kernel.pack(
            src=src,
            quants=quants,
            high=high,
            width=plane.width,
            first_row=first_row,
            rows=rows,
            first_block=first_column // unit,
            blocks=units,
            row_blocks=part.columns // unit,
        )
        recorder.dispatch(kernel, push, *_grid(rows * units))
        return
    own = (
        {"unexpected": unexpected, "added": plane.added, "expected": plane.expected}
        if plane.use is not PlaneUse.SCALES
        else {
            "out_of_range": unexpected,
            "levels": part.levels,
            "skipped": part.first_line * plane.width,
            "factor": _FACTORS.get(dst.format, 1.0),
            "largest_code": LARGEST_CODES[dst.format],
            "nested_block": 1 if plane.nested is None else plane.nested.block,
            "nested_offset": 0.0 if plane.nested is None else plane.nested.offset,
        }
    )
    push = kernel.pack(
        src=part.src if plane.use is PlaneUse.SCALES else src,
        dst=scales,
        row_step=1 if plane.is_turned else plane.width,
        column_step=plane.width if plane.is_turned else 1,
        row_block=plane.row_block,
        column_block=plane.column_block,
        first_row=first_row,
        rows=rows,
        first_unit=first_column // unit,
        units=units,
        row_units=part.columns // unit,
        unit=unit,
        **own,
    )
    recorder.dispatch(kernel, push, *_grid(rows * units))


def codes_kernel(codes: Codes) -> KernelRequest:
    """Name the pipeline that `relayout_codes` uses."""
    return KernelRequest(f"relayout_codes_{codes.value}", {"WORKGROUP": _WORKGROUP})


def plane_kernel(plane: Plane, codes: Codes, quant_format: QuantFormat) -> KernelRequest:
    """Name the pipeline that `relayout_plane` uses."""
    if plane.groups is not None:
        return KernelRequest(f"relayout_ordered_{codes.value}", {"WORKGROUP": _WORKGROUP})
    if plane.use is PlaneUse.CODES:
        return KernelRequest(f"relayout_columns_{codes.value}", {"WORKGROUP": _WORKGROUP})
    if plane.use is PlaneUse.GROUPS:
        return KernelRequest("check_groups", {"WORKGROUP": _WORKGROUP})
    if plane.use is PlaneUse.SCALES:
        constants: dict[str, int | float | bool] = {
            "WORKGROUP": _WORKGROUP,
            "SOURCE": SCALE_SOURCES[plane.dtype],
            "UNIT_BYTES": quant_format.layout.scale_bytes,
            "IS_HALF": quant_format is not QuantFormat.F8_E4M3,
        }
        return KernelRequest("relayout_scales", constants)
    constants = {
        "WORKGROUP": _WORKGROUP,
        "BITS": plane.bits,
        "EVEN_FIRST": plane.even_first,
        "IS_CHECKED": plane.use is PlaneUse.CHECKED_ZEROS,
    }
    return KernelRequest("relayout_zeros", constants)


def covered(plane: Plane, part: PlanePart) -> tuple[int, int, int, int]:
    """Return the file's first row and how many, and the first column and how many, that a part's lines are for."""
    first, end = part.first_line, part.first_line + part.num_lines
    if plane.is_turned:
        first_column = min(first * plane.column_block, part.columns)
        end_column = min(end * plane.column_block, part.columns)
        return part.file_row, part.rows, first_column, end_column - first_column
    first_row = max(part.file_row, first * plane.row_block)
    end_row = min(part.file_row + part.rows, end * plane.row_block)
    return first_row, max(0, end_row - first_row), 0, part.columns


def _kernel(kernels: KernelLibrary, request: KernelRequest) -> Kernel:
    return kernels.get(request.name, constants=request.constants)


def _grid(count: int) -> tuple[int, int]:
    return split_grid(-(-count // _WORKGROUP))
