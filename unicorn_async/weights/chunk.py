"""One read of a load, and what the device does to it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import lcm
from typing import TYPE_CHECKING, TypeAlias

from unicorn_async.packing import Codes, Piece, PlaneUse
from unicorn_async.tensor import QUANT_BLOCK, BlockPlane, DType, QuantFormat, aligned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unicorn_async.packing import Plane
    from unicorn_async.tensor import ElementType
    from unicorn_async.weights.row_order import RowOrder, RowRun


CONVERT_ALIGNMENT = 16  # conversion kernels load and store so many bytes at once


class Transform(Enum):
    """What the device does to a chunk."""

    COPY = "copy"
    TO_F16 = "to_f16"
    TO_F32 = "to_f32"
    QUANTIZE = "quantize"
    RELAYOUT = "relayout"  # of blocks that are quantised in the file
    TRANSPOSE = "transpose"  # rows for columns
    DEQUANTIZE = "dequantize"  # of blocks that are quantised in the file
    BLEND = "blend"  # adapters' changes added, then converted or quantised


@dataclass(frozen=True, slots=True)
class Chunk:
    """One read: `nbytes` at `offset` of the file, from `first_element` of the destination on after the transform.

    Of one that is transposed, elements are counted as the file has them, which are all of its destination.

    Where there is a `row_permutation`, the chunk is whole heads, and the read puts their rows into the model's order.
    """

    file: int
    offset: int
    nbytes: int
    dest: str
    first_element: int
    transform: Transform
    source_dtype: ElementType | BlockPlane | Codes
    dest_dtype: ElementType
    layer: int
    row_permutation: RowOrder | None = None

    @property
    def read_bytes(self) -> int:
        """Bytes that are read for it."""
        return self.nbytes

    @property
    def num_elements(self) -> int:
        """Elements of the chunk, the same before and after the transform."""
        return _elements(self.source_dtype, self.nbytes)

    @property
    def dest_offset(self) -> int:
        """Byte of a dense destination at which the chunk begins."""
        return self.first_element * _dense(self.dest_dtype).itemsize


@dataclass(frozen=True, slots=True)
class RawChunk:
    """One read of bytes that are in the device's layout: `nbytes` go to byte `dest_offset` of the destination."""

    file: int
    offset: int
    nbytes: int
    dest: str
    dest_offset: int
    layer: int

    @property
    def read_bytes(self) -> int:
        """Bytes that are read for it."""
        return self.nbytes

    @property
    def transform(self) -> Transform:
        """What the device does to it: a copy."""
        return Transform.COPY

    @property
    def row_permutation(self) -> RowOrder | None:
        """Rows are where they belong."""
        return None


@dataclass(frozen=True, slots=True)
class PlaneChunk:
    """One read of lines of a packed matrix's plane: `lines_bytes` at `offset` of the file, and what is beside them.

    `first_line` is the first of them. Rows of the matrix are rows of the destination as `runs` say; it has so many
    `columns`, and its codes lie as `codes` says. Where dense values are made, it is for these what `made_of` says, and
    with `turned_rows` each so many rows become a matrix that has them for columns.
    """

    file: int
    offset: int
    lines_bytes: int
    dest: str
    dest_dtype: ElementType
    layer: int
    plane: Plane
    first_line: int
    runs: tuple[RowRun, ...]
    columns: int
    codes: Codes
    made_of: QuantFormat | None = None
    turned_rows: int = 0

    @property
    def dest_offset(self) -> int:
        """It lies nowhere in one piece, and is never copied."""
        raise AssertionError(f"{self.plane.name} has no place of its own")

    @property
    def nbytes(self) -> int:
        """Bytes of all of it in staging memory, with the room between pieces and that of an order."""
        end = max(start + piece.nbytes for start, piece in self.pieces)
        return end if self.plane.groups is None else self.order_offset + self.plane.groups.nbytes

    @property
    def read_bytes(self) -> int:
        """Bytes that are read for it."""
        return self.lines_bytes + sum(piece.nbytes for piece in self.plane.beside)

    @property
    def order_offset(self) -> int:
        """Where in staging memory the device leaves the order of the columns, (columns) f32, of codes with `groups`."""
        start, groups = self.pieces[1]
        return aligned(start + groups.nbytes, CONVERT_ALIGNMENT)

    @property
    def pieces(self) -> tuple[tuple[int, Piece], ...]:
        """The bytes to read, each with where it begins in staging memory: lines first, then what is beside them."""
        found, end = [(0, Piece(self.file, self.offset, self.lines_bytes))], self.lines_bytes
        for piece in self.plane.beside:
            start = aligned(end, CONVERT_ALIGNMENT)  # 256 levels end there, and what they are multiplied by follows
            found.append((start, piece))
            end = start + piece.nbytes
        return tuple(found)

    @property
    def num_lines(self) -> int:
        """Lines that are read."""
        return self.lines_bytes // self.plane.line_bytes

    @property
    def source_dtype(self) -> ElementType:
        """What the matrix is."""
        return self.made_of or self.dest_dtype

    @property
    def transform(self) -> Transform:
        """What the device does to it: codes and scales come to where kernels read them, or become values."""
        return Transform.DEQUANTIZE if self.plane.use is PlaneUse.VALUES else Transform.RELAYOUT

    @property
    def row_permutation(self) -> RowOrder | None:
        """The device brings rows to their places."""
        return None

    def split(self, chunk_bytes: int) -> Iterator[PlaneChunk]:
        """Cut it into parts of at most `chunk_bytes`, but at least the lines of a unit; an order needs all groups."""
        if self.plane.use is PlaneUse.ORDER:
            yield self
            return
        least, line_bytes = self.plane.least_lines, self.plane.line_bytes
        count = max(chunk_bytes // (line_bytes * least), 1) * least
        for line in range(0, self.num_lines, count):
            lines = min(count, self.num_lines - line)
            yield replace(
                self,
                offset=self.offset + line * line_bytes,
                lines_bytes=lines * line_bytes,
                first_line=self.first_line + line,
            )


PlannedChunk: TypeAlias = "Chunk | PlaneChunk"
AnyChunk: TypeAlias = "PlannedChunk | RawChunk"


def coalesced(chunks: list[Chunk]) -> list[Chunk]:
    """Join chunks of one destination that follow each other both in the file and in the destination."""
    result: list[Chunk] = []
    for chunk in sorted(chunks, key=lambda chunk: chunk.first_element):
        last = result[-1] if result else None
        if (
            last is not None
            and (last.file, last.offset + last.nbytes, last.source_dtype, last.transform, last.row_permutation)
            == (chunk.file, chunk.offset, chunk.source_dtype, chunk.transform, chunk.row_permutation)
            and last.first_element + last.num_elements == chunk.first_element
            and (last.row_permutation is None or last.row_permutation.is_uniform)
        ):
            result[-1] = _part(last, 0, last.nbytes + chunk.nbytes)
        else:
            result.append(chunk)
    return result


def split(chunk: Chunk, chunk_bytes: int) -> Iterator[Chunk]:
    """Cut a chunk into parts of at most `chunk_bytes`, but at least a head or the elements of a quantisation unit."""
    grain = chunk.row_permutation.head_bytes if chunk.row_permutation else _grain_bytes(chunk)
    chunk_bytes = max(chunk_bytes // grain, 1) * grain
    for start in range(0, chunk.nbytes, chunk_bytes):
        yield _part(chunk, start, min(chunk_bytes, chunk.nbytes - start))


def _part(chunk: Chunk, start: int, nbytes: int) -> Chunk:
    """`nbytes` of the source from byte `start` of the chunk; both are whole elements."""
    first_element = chunk.first_element + _elements(chunk.source_dtype, start)
    order = chunk.row_permutation and chunk.row_permutation.after(start)
    return replace(
        chunk, offset=chunk.offset + start, nbytes=nbytes, first_element=first_element, row_permutation=order
    )


def _grain_bytes(chunk: Chunk) -> int:
    """Bytes in the file of the fewest elements that can go to the destination alone, and that end at 16 bytes."""
    if not isinstance(chunk.source_dtype, DType):
        return lcm(8 * chunk.source_dtype.source_bytes, CONVERT_ALIGNMENT)
    if isinstance(chunk.dest_dtype, QuantFormat):
        return chunk.dest_dtype.layout.unit * chunk.source_dtype.itemsize
    return CONVERT_ALIGNMENT


def _elements(kind: ElementType | BlockPlane | Codes, nbytes: int) -> int:
    if isinstance(kind, BlockPlane | Codes):
        return nbytes // kind.source_bytes * QUANT_BLOCK
    if isinstance(kind, QuantFormat):
        return nbytes // kind.source_bytes * kind.layout.unit
    return nbytes // kind.itemsize


def _dense(kind: ElementType) -> DType:
    assert isinstance(kind, DType), f"{kind.value} has no byte offsets"
    return kind
