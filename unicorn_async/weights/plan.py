"""Which bytes of a checkpoint go where in device memory, in which order, and what is done to them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

from unicorn_async.config import WeightScheme
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.tensor import BlockPlane, DType, QuantFormat, QuantTensor
from unicorn_async.weights.chunk import CONVERT_ALIGNMENT, Chunk, PlaneChunk, Transform, coalesced, split
from unicorn_async.weights.column_order import check_orders, order_chunk, order_name
from unicorn_async.weights.packed import packed_chunks, value_chunk
from unicorn_async.weights.row_order import HeadOrder, RowOrder
from unicorn_async.weights.wanted import find_tensor

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from unicorn_async.checkpoint.checkpoint import Checkpoint
    from unicorn_async.checkpoint.source_tensor import SourceTensor
    from unicorn_async.tensor import ElementType
    from unicorn_async.weights.chunk import PlannedChunk
    from unicorn_async.weights.row_order import RowRun
    from unicorn_async.weights.wanted import FoundTensor, WantedTensor

CHUNK_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class DestTensor:
    """One tensor of the model in device memory, row-major.

    `whole` is the name of the tensor whose rows it has some of; its own name unless parts differ in their types. One
    that `is_order` has the order of that tensor's columns, see `order_name`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: ElementType
    layer: int
    whole: str
    is_order: bool = False

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        if isinstance(self.dtype, QuantFormat):
            return QuantTensor.size(self.shape, self.dtype)
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class TensorPart:
    """Where one tensor of the checkpoint lies in its destination; `name` is canonical, `source_name` the file's."""

    name: str
    source_name: str
    first_element: int
    num_elements: int
    stacked: int = 1  # matrices that it is


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Destinations and chunks, both in the order of the layers.

    `layers` are the layers' numbers in activation order. `ignored` are canonical names that the model does not know.
    `device_types` says what each wanted tensor becomes, by the whole destination that it is for and its canonical name,
    `parts` which of them a destination has, in the order of their elements.
    """

    destinations: tuple[DestTensor, ...]
    chunks: tuple[PlannedChunk, ...]
    layers: tuple[int, ...]
    ignored: tuple[str, ...]
    device_types: Mapping[tuple[str, str], ElementType] = field(default_factory=dict)
    parts: Mapping[str, tuple[TensorPart, ...]] = field(default_factory=dict)

    @property
    def bytes_to_read(self) -> int:
        """Bytes of all chunks, as the checkpoint has them; what is beside a plane counts with each part of it."""
        return sum(chunk.read_bytes for chunk in self.chunks)

    @property
    def dest_bytes(self) -> int:
        """Bytes of all destinations, without padding between them."""
        return sum(dest.nbytes for dest in self.destinations)

    def parts_of(self, chunk: Chunk) -> Iterator[TensorPart]:
        """Cut a chunk into its tensors; elements of their parts are counted from the destination's start."""
        for part in self.parts[chunk.dest]:
            first = max(part.first_element, chunk.first_element)
            last = min(part.first_element + part.num_elements, chunk.first_element + chunk.num_elements)
            if first < last:
                yield replace(part, first_element=first, num_elements=last - first)


def make_plan(
    checkpoint: Checkpoint,
    wanted: Sequence[WantedTensor],
    *,
    scheme: WeightScheme = WeightScheme.AUTO,
    adapted: Collection[str] = (),
    chunk_bytes: int = CHUNK_BYTES,
) -> LoadPlan:
    """Plan a load: what tensors become is in `weight_rules`.

    `adapted` are the canonical names of those that adapters change. `chunk_bytes` is the largest chunk, a multiple of
    16; a chunk whose rows are permuted has at least one head, any chunk the elements of one quantisation unit.

    Raises:
        CheckpointError: a tensor is missing, or its shape contradicts the configuration.
        UnsupportedModelError: a tensor's dtype can't be used, or not by the scheme or an adapter, or experts differ in
            theirs.
    """
    groups: dict[str, list[FoundTensor]] = {}
    for want in wanted:
        groups.setdefault(want.dest, []).append(find_tensor(checkpoint, want, scheme, adapted))
    orders = {name: order for name, group in groups.items() if (order := _order(name, group)) is not None}
    parts = {name: group for whole, members in groups.items() for name, group in _separated(whole, members)}
    matrices = [_destination(name, group) for name, group in parts.items()]
    destinations = sorted((*matrices, *(dest for dest, _ in orders.values())), key=lambda dest: dest.layer)
    chunks: list[PlannedChunk] = [chunk for _, chunk in orders.values()]
    for dest in matrices:
        first_row = parts[dest.name][0].want.row_offset
        runs = [run for part in parts[dest.name] for run in _runs(part, dest, first_row)]
        chunks += coalesced([run for run in runs if isinstance(run, Chunk)])
        chunks += [run for run in runs if isinstance(run, PlaneChunk)]
    chunks.sort(key=lambda chunk: (chunk.layer, chunk.file, chunk.offset))
    pieces = tuple(piece for chunk in chunks for piece in _pieces(chunk, chunk_bytes))
    layers = tuple(sorted({dest.layer for dest in destinations}))
    device_types = {(part.want.dest, part.want.name): part.kind for group in parts.values() for part in group}
    used = {name for _, name in device_types}
    ignored = tuple(name for name in checkpoint.tensors if name not in used)
    places = {dest.name: _places(parts[dest.name]) for dest in matrices}
    return LoadPlan(tuple(destinations), pieces, layers, ignored, device_types, places)


def _pieces(chunk: PlannedChunk, chunk_bytes: int) -> Iterator[PlannedChunk]:
    return chunk.split(chunk_bytes) if isinstance(chunk, PlaneChunk) else split(chunk, chunk_bytes)


def _separated(whole: str, group: list[FoundTensor]) -> Iterator[tuple[str, list[FoundTensor]]]:
    """Keep parts of one type together; of different types they become destinations of their own."""
    group.sort(key=lambda part: part.want.row_offset)
    first, *others = group
    other = next((part for part in others if part.kind is not first.kind), None)
    if other is None:
        yield whole, group
        return
    if first.want.is_expert:
        is_quantised = any(isinstance(part.kind, QuantFormat) for part in group)
        raise UnsupportedModelError(
            f"tensors {first.source.name!r} ({first.source.dtype}) and {other.source.name!r} ({other.source.dtype}): "
            "experts of one layer have to be of one type; "
            + ("take another file of the model" if is_quantised else "--weights f16 gives them one")
        )
    for index, part in enumerate(group):
        yield f"{whole}.{index}", [part]


def _destination(name: str, group: list[FoundTensor]) -> DestTensor:
    first = group[0].want
    rows = 0
    for want in (part.want for part in group):
        offset = want.row_offset - first.row_offset
        assert offset == rows, f"{name}: rows of {want.name} begin at {offset}, expected {rows}"
        assert want.shape[1:] == first.shape[1:] and want.layer == first.layer, f"{name}: its parts do not fit"
        rows += want.shape[0]
    return DestTensor(name, (rows, *first.shape[1:]), group[0].kind, first.layer, first.dest)


def _order(name: str, group: list[FoundTensor]) -> tuple[DestTensor, PlaneChunk] | None:
    check_orders([part.source for part in group])
    want, kind, packing = group[0].want, group[0].kind, group[0].source.packing
    if packing is None or packing.order is None or not isinstance(kind, QuantFormat):
        return None
    dest = DestTensor(order_name(name), want.shape[-1:], DType.F32, want.layer, name, is_order=True)
    return dest, order_chunk(packing, dest.name, kind, want.layer, want.shape[-1])


def _places(group: list[FoundTensor]) -> tuple[TensorPart, ...]:
    first_row = group[0].want.row_offset
    row = prod(group[0].want.shape[1:])
    return tuple(
        TensorPart(
            part.want.name,
            part.source.name,
            (part.want.row_offset - first_row) * row,
            prod(part.want.shape),
            part.want.stacked,
        )
        for part in group
    )


def _runs(part: FoundTensor, dest: DestTensor, first_row: int) -> Sequence[PlannedChunk]:
    whole, scales = _whole(part, dest, first_row), part.source.scales
    if packing := part.source.packing:
        want, codes = part.want, replace(whole, source_dtype=packing.codes)
        if whole.transform is Transform.DEQUANTIZE:
            return [value_chunk(whole, part.source, want.runs, want.shape[-1] if want.is_transposed else 0)]
        by_rows: list[PlannedChunk] = []
        if packing.codes.is_by_rows:
            by_rows += in_runs(codes, want.runs, want.file_rows or want.shape[0])
        return [*by_rows, *packed_chunks(whole, packing, want.shape, want.runs, want.head_order)]
    if scales is not None:
        return [
            replace(whole, source_dtype=BlockPlane.MXFP4_CODES),
            replace(
                whole,
                file=scales.file,
                offset=scales.offset,
                nbytes=scales.nbytes,
                source_dtype=BlockPlane.MXFP4_SCALES,
            ),
        ]
    return in_runs(whole, part.want.runs, part.want.file_rows or part.want.shape[0])


def in_runs(chunk: Chunk, runs: Sequence[RowRun], num_rows: int) -> list[Chunk]:
    """Cut the chunk of a tensor of so many rows into these runs of them; without runs it stays whole."""
    if not runs:
        return [chunk]
    nbytes, elements = chunk.nbytes // num_rows, chunk.num_elements // num_rows
    return [
        replace(
            chunk,
            offset=chunk.offset + run.file_row * nbytes,
            nbytes=run.count * nbytes,
            first_element=chunk.first_element + run.row * elements,
        )
        for run in runs
    ]


def _whole(part: FoundTensor, dest: DestTensor, first_row: int) -> Chunk:
    want, source = part.want, part.source
    chunk = Chunk(
        source.file,
        source.offset,
        source.nbytes,
        dest.name,
        (want.row_offset - first_row) * prod(dest.shape[1:]),
        _transform(part, dest.dtype),
        part.source_kind,
        dest.dtype,
        dest.layer,
        _row_order(want, source),
    )
    is_converted = chunk.transform is not Transform.COPY and isinstance(dest.dtype, DType)
    if is_converted and chunk.dest_offset % CONVERT_ALIGNMENT:
        raise UnsupportedModelError(
            f"tensor {source.name!r}: converted to byte {chunk.dest_offset} of {dest.name!r}, "
            f"expected a multiple of {CONVERT_ALIGNMENT}"
        )
    return chunk


def _transform(part: FoundTensor, dest: ElementType) -> Transform:
    source = part.source_kind
    if part.is_adapted:
        return Transform.BLEND
    if part.is_turned:
        return Transform.TRANSPOSE
    if isinstance(source, QuantFormat):
        return Transform.RELAYOUT if isinstance(dest, QuantFormat) else Transform.DEQUANTIZE
    if isinstance(dest, QuantFormat):
        return Transform.QUANTIZE
    if source is dest:
        return Transform.COPY
    return Transform.TO_F32 if dest is DType.F32 else Transform.TO_F16


def _row_order(want: WantedTensor, source: SourceTensor) -> RowOrder | None:
    order = want.head_order
    if source.interleaved_head_rows:
        if order is not None:
            raise UnsupportedModelError(f"tensor {source.name!r}: rows of heads that were put in order already")
        order = HeadOrder.rotary(source.interleaved_head_rows, interleaved=True)
    return None if order is None else RowOrder(order, source.nbytes // source.shape[0])
