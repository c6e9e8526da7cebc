"""Which bytes of a checkpoint go where in device memory, in which order, and what is done to them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.tensor import DType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from unicorn_async.loader.checkpoint import Checkpoint, SourceTensor

CHUNK_BYTES = 16 << 20
CONVERT_ALIGNMENT = 16  # conversion kernels load and store so many bytes at once
_DTYPE_NAMES = tuple(dtype.value for dtype in DType)


class Transform(Enum):
    """What the device does to a chunk."""

    COPY = "copy"
    TO_F16 = "to_f16"
    TO_F32 = "to_f32"


@dataclass(frozen=True, slots=True)
class WantedTensor:
    """One tensor of the checkpoint that a model needs.

    `name` is canonical, `shape` what config.json says. `layer` is -1 for the embeddings, then 0 to L - 1, and L for the
    final norm and the head. Its rows go to row `row_offset` of the destination `dest`, which several may share.
    `as_f32` asks for F32 (norm weights, biases).
    """

    name: str
    shape: tuple[int, ...]
    layer: int
    dest: str
    row_offset: int = 0
    as_f32: bool = False


@dataclass(frozen=True, slots=True)
class DestTensor:
    """One tensor of the model in device memory, row-major."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    layer: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return _product(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Chunk:
    """One read: `nbytes` at `offset` of the file, to byte `dest_offset` of the destination after the transform."""

    file: int
    offset: int
    nbytes: int
    dest: str
    dest_offset: int
    transform: Transform
    source_dtype: DType
    dest_dtype: DType
    layer: int

    @property
    def num_elements(self) -> int:
        """Elements of the chunk, the same before and after the transform."""
        return self.nbytes // self.source_dtype.itemsize

    @property
    def dest_bytes(self) -> int:
        """Bytes of the chunk after the transform."""
        return self.num_elements * self.dest_dtype.itemsize


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Destinations and chunks, both in the order of the layers.

    `layers` are the layers' numbers in activation order. `ignored` are canonical names that the model does not know.
    """

    destinations: tuple[DestTensor, ...]
    chunks: tuple[Chunk, ...]
    layers: tuple[int, ...]
    ignored: tuple[str, ...]

    @property
    def bytes_to_read(self) -> int:
        """Bytes of all chunks, as the checkpoint has them."""
        return sum(chunk.nbytes for chunk in self.chunks)

    @property
    def dest_bytes(self) -> int:
        """Bytes of all destinations, without padding between them."""
        return sum(dest.nbytes for dest in self.destinations)


def make_plan(checkpoint: Checkpoint, wanted: Sequence[WantedTensor], *, chunk_bytes: int = CHUNK_BYTES) -> LoadPlan:
    """Plan a load: BF16 and F16 stay what they are, F32 matrices become F16, what is wanted as F32 becomes F32.

    `chunk_bytes` is the largest chunk, a multiple of 16.

    Raises:
        CheckpointError: a tensor is missing, or its shape contradicts the configuration.
        UnsupportedModelError: a tensor's dtype can't be used, or the parts of one destination differ in theirs.
    """
    parts: dict[str, list[tuple[WantedTensor, SourceTensor]]] = {}
    for want in wanted:
        parts.setdefault(want.dest, []).append((want, _find(checkpoint, want)))
    destinations = sorted((_destination(name, group) for name, group in parts.items()), key=lambda dest: dest.layer)
    chunks: list[Chunk] = []
    for dest in destinations:
        chunks += _coalesced([_whole(want, source, dest) for want, source in parts[dest.name]])
    chunks.sort(key=lambda chunk: (chunk.layer, chunk.file, chunk.offset))
    pieces = tuple(piece for chunk in chunks for piece in _split(chunk, chunk_bytes))
    layers = tuple(sorted({dest.layer for dest in destinations}))
    known = {want.name for want in wanted}
    return LoadPlan(
        tuple(destinations), pieces, layers, tuple(name for name in checkpoint.tensors if name not in known)
    )


def _find(checkpoint: Checkpoint, want: WantedTensor) -> SourceTensor:
    source = checkpoint.tensors.get(want.name)
    if source is None:
        raise CheckpointError(f"{checkpoint.directory}: tensor {want.name!r} of shape {list(want.shape)} is missing")
    if source.shape != want.shape:
        raise CheckpointError(
            f"{checkpoint.directory}: tensor {source.name!r}: config.json asks for shape {list(want.shape)}, "
            f"the file has {list(source.shape)}"
        )
    if source.dtype not in _DTYPE_NAMES:
        raise UnsupportedModelError(
            f"{checkpoint.directory}: tensor {source.name!r}: dtype {source.dtype} is not supported, "
            f"only {', '.join(_DTYPE_NAMES)}"
        )
    return source


def _final_dtype(want: WantedTensor, source: SourceTensor) -> DType:
    if want.as_f32:
        return DType.F32
    return DType.F16 if source.dtype == DType.F32.value else DType(source.dtype)


def _destination(name: str, group: list[tuple[WantedTensor, SourceTensor]]) -> DestTensor:
    first, first_source = group[0]
    dtype = _final_dtype(first, first_source)
    rows = 0
    for want, source in sorted(group, key=lambda pair: pair[0].row_offset):
        assert want.row_offset == rows, f"{name}: rows of {want.name} begin at {want.row_offset}, expected {rows}"
        assert want.shape[1:] == first.shape[1:] and want.layer == first.layer, f"{name}: its parts do not fit"
        if _final_dtype(want, source) != dtype:
            raise UnsupportedModelError(
                f"tensors {first_source.name!r} ({first_source.dtype}) and {source.name!r} ({source.dtype}) are used "
                "as one and must have the same dtype"
            )
        rows += want.shape[0]
    return DestTensor(name, (rows, *first.shape[1:]), dtype, first.layer)


def _whole(want: WantedTensor, source: SourceTensor, dest: DestTensor) -> Chunk:
    row_bytes = _product(dest.shape[1:]) * dest.dtype.itemsize
    source_dtype = DType(source.dtype)
    transform = Transform.COPY
    if source_dtype is not dest.dtype:
        transform = Transform.TO_F32 if dest.dtype is DType.F32 else Transform.TO_F16
    dest_offset = want.row_offset * row_bytes
    if transform is not Transform.COPY and dest_offset % CONVERT_ALIGNMENT:
        raise UnsupportedModelError(
            f"tensor {source.name!r}: converted to byte {dest_offset} of {dest.name!r}, "
            f"expected a multiple of {CONVERT_ALIGNMENT}"
        )
    return Chunk(
        source.file,
        source.offset,
        source.nbytes,
        dest.name,
        dest_offset,
        transform,
        source_dtype,
        dest.dtype,
        dest.layer,
    )


def _coalesced(chunks: list[Chunk]) -> list[Chunk]:
    """Join chunks of one destination that follow each other both in the file and in the destination."""
    result: list[Chunk] = []
    for chunk in sorted(chunks, key=lambda chunk: chunk.dest_offset):
        last = result[-1] if result else None
        if (
            last is not None
            and (last.file, last.offset + last.nbytes, last.source_dtype)
            == (chunk.file, chunk.offset, chunk.source_dtype)
            and last.dest_offset + last.dest_bytes == chunk.dest_offset
        ):
            result[-1] = _part(last, 0, last.nbytes + chunk.nbytes)
        else:
            result.append(chunk)
    return result


def _split(chunk: Chunk, chunk_bytes: int) -> Iterator[Chunk]:
    for start in range(0, chunk.nbytes, chunk_bytes):
        yield _part(chunk, start, min(chunk_bytes, chunk.nbytes - start))


def _part(chunk: Chunk, start: int, nbytes: int) -> Chunk:
    """`nbytes` of the source from byte `start` of the chunk; both are whole elements."""
    dest_start = start // chunk.source_dtype.itemsize * chunk.dest_dtype.itemsize
    return Chunk(
        chunk.file,
        chunk.offset + start,
        nbytes,
        chunk.dest,
        chunk.dest_offset + dest_start,
        chunk.transform,
        chunk.source_dtype,
        chunk.dest_dtype,
        chunk.layer,
    )


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
