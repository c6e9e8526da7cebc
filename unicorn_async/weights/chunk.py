"""One read of a load, and what the device does to it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import lcm
from typing import TYPE_CHECKING, TypeAlias

from unicorn_async.tensor import DType, QuantFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unicorn_async.tensor import ElementType
    from unicorn_async.weights.row_order import RowOrder


CONVERT_ALIGNMENT = 16  # conversion kernels load and store so many bytes at once


class Transform(Enum):
    """What the device does to a chunk."""

    COPY = "copy"
    TO_F16 = "to_f16"
    TO_F32 = "to_f32"
    QUANTIZE = "quantize"
    RELAYOUT = "relayout"  # of blocks that are quantised in the file
    BLEND = "blend"  # adapters' changes added, then converted or quantised


@dataclass(frozen=True, slots=True)
class Chunk:
    """One read: `nbytes` at `offset` of the file, from `first_element` of the destination on after the transform.

    Where there is a `row_permutation`, the chunk is whole heads, and the read puts their rows into the model's order.
    """

    file: int
    offset: int
    nbytes: int
    dest: str
    first_element: int
    transform: Transform
    source_dtype: ElementType
    dest_dtype: ElementType
    layer: int
    row_permutation: RowOrder | None = None

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
    def transform(self) -> Transform:
        """What the device does to it: a copy."""
        return Transform.COPY

    @property
    def row_permutation(self) -> RowOrder | None:
        """Rows are where they belong."""
        return None


AnyChunk: TypeAlias = "Chunk | RawChunk"


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
    if isinstance(chunk.source_dtype, QuantFormat):
        return lcm(8 * chunk.source_dtype.source_bytes, CONVERT_ALIGNMENT)
    if isinstance(chunk.dest_dtype, QuantFormat):
        return chunk.dest_dtype.layout.unit * chunk.source_dtype.itemsize
    return CONVERT_ALIGNMENT


def _elements(kind: ElementType, nbytes: int) -> int:
    if isinstance(kind, QuantFormat):
        return nbytes // kind.source_bytes * kind.layout.unit
    return nbytes // kind.itemsize


def _dense(kind: ElementType) -> DType:
    assert isinstance(kind, DType), f"{kind.value} has no byte offsets"
    return kind
