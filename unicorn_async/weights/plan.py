"""Which bytes of a checkpoint go where in device memory, in which order, and what is done to them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

from unicorn_async.config import WeightScheme
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.tensor import BlockPlane, DType, QuantFormat, QuantTensor
from unicorn_async.weights.chunk import CONVERT_ALIGNMENT, Chunk, PlaneChunk, Transform, coalesced, split
from unicorn_async.weights.column_order import check_order, check_orders, order_chunk, order_name
from unicorn_async.weights.packed import check_packed, packed_chunks
from unicorn_async.weights.row_order import HeadOrder, RowOrder
from unicorn_async.weights.rules import WeightKind, device_type

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from unicorn_async.checkpoint.checkpoint import Checkpoint
    from unicorn_async.checkpoint.source_tensor import SourceTensor
    from unicorn_async.tensor import ElementType
    from unicorn_async.weights.chunk import PlannedChunk
    from unicorn_async.weights.row_order import RowRun

CHUNK_BYTES = 32 << 20
_TYPES: Mapping[str, ElementType] = {kind.value: kind for kind in (*DType, *QuantFormat)}
_FILE_TYPES: tuple[ElementType, ...] = (*DType, *(kind for kind in QuantFormat if kind.source_bytes))


@dataclass(frozen=True, slots=True)
class WantedTensor:
    """One tensor of the checkpoint that a model needs.

    `name` is canonical, `shape` what the configuration says. `layer` is -1 for the embeddings, then 0 to L - 1, and L
    for the final norm and the head. Its rows go to row `row_offset` of the destination `dest`, which several may share.
    `as_f32` asks for F32 (norm weights, biases). `is_table` marks embeddings and output head. With a `head_order` the
    rows of heads lie in that order in the file, with `runs` all its rows as these say. A `stacked` one is so many
    matrices there, in a dimension of its own. Of one that `is_transposed` dense ones of the file
    have rows for columns. One that `is_gathered` may have its columns sorted by groups: its input is gathered likewise.
    """

    name: str
    shape: tuple[int, ...]
    layer: int
    dest: str
    row_offset: int = 0
    as_f32: bool = False
    is_table: bool = False
    head_order: HeadOrder | None = None
    stacked: int = 1
    runs: tuple[RowRun, ...] = ()
    is_transposed: bool = False
    is_gathered: bool = False

    @property
    def file_shape(self) -> tuple[int, ...]:
        """The shape that it has in the file."""
        rows, *others = self.shape
        return self.shape if self.stacked == 1 else (self.stacked, rows // self.stacked, *others)

    @property
    def kind(self) -> WeightKind:
        """What it is for the rules of the types."""
        return WeightKind.VECTOR if self.as_f32 else WeightKind.TABLE if self.is_table else WeightKind.MATRIX


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
    `device_types` says what each wanted tensor becomes, by its canonical name, `parts` which of them a destination
    has, in the order of their elements.
    """

    destinations: tuple[DestTensor, ...]
    chunks: tuple[PlannedChunk, ...]
    layers: tuple[int, ...]
    ignored: tuple[str, ...]
    device_types: Mapping[str, ElementType] = field(default_factory=dict)
    parts: Mapping[str, tuple[TensorPart, ...]] = field(default_factory=dict)

    @property
    def bytes_to_read(self) -> int:
        """Bytes of all chunks, as the checkpoint has them."""
        return sum(chunk.nbytes for chunk in self.chunks)

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
        UnsupportedModelError: a tensor's dtype can't be used, or not by the scheme or an adapter, or the parts of one
            destination differ in theirs and are not all quantised.
    """
    groups: dict[str, list[_Part]] = {}
    for want in wanted:
        source = _find(checkpoint, want)
        kind = _final_type(want, source, scheme)
        groups.setdefault(want.dest, []).append(_Part(want, source, kind, _is_adapted(want, source, adapted)))
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
    device_types = {part.want.name: part.kind for group in parts.values() for part in group}
    ignored = tuple(name for name in checkpoint.tensors if name not in device_types)
    places = {dest.name: _places(parts[dest.name]) for dest in matrices}
    return LoadPlan(tuple(destinations), pieces, layers, ignored, device_types, places)


def _pieces(chunk: PlannedChunk, chunk_bytes: int) -> Iterator[PlannedChunk]:
    return chunk.split(chunk_bytes) if isinstance(chunk, PlaneChunk) else split(chunk, chunk_bytes)


def file_types() -> tuple[str, ...]:
    """Return the types that weights may have in a file, as files call them."""
    return tuple(kind.value for kind in _FILE_TYPES)


def _find(checkpoint: Checkpoint, want: WantedTensor) -> SourceTensor:
    source = checkpoint.tensors.get(want.name)
    if source is None:
        raise CheckpointError(f"{checkpoint.path}: tensor {want.name!r} of shape {list(want.file_shape)} is missing")
    kind = _TYPES.get(source.dtype)
    if (kind not in _FILE_TYPES and source.packing is None) or (want.as_f32 and not isinstance(kind, DType)):
        usable = [known.value for known in _FILE_TYPES if not want.as_f32 or isinstance(known, DType)]
        raise UnsupportedModelError(
            f"{checkpoint.path}: tensor {source.name!r}: dtype {source.dtype} is not supported, "
            f"only {', '.join(usable)}"
        )
    shape = want.file_shape
    if _is_turned(want, source):
        *outer, rows, columns = shape
        shape = (*outer, columns, rows)
    if _without_ones(source.shape) != _without_ones(shape):  # one format keeps dimensions that another leaves out
        raise CheckpointError(
            f"{checkpoint.path}: tensor {source.name!r}: {checkpoint.config_name} asks for shape {list(shape)}, "
            f"the file has {list(source.shape)}"
        )
    return source


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _final_type(want: WantedTensor, source: SourceTensor, scheme: WeightScheme) -> ElementType:
    kind = _TYPES[source.dtype]
    if isinstance(kind, QuantFormat) and scheme is not WeightScheme.AUTO:
        raise UnsupportedModelError(
            f"tensor {source.name!r} is quantised as {source.dtype} already, so its weights can't become {scheme.value}"
        )
    final = device_type(want.kind, kind, scheme)
    if _is_turned(want, source) and final is not kind:
        raise UnsupportedModelError(
            f"tensor {source.name!r} has rows for columns in the file, so its weights can't become {scheme.value}: "
            "load it as it is, or use another checkpoint (in MXFP4, or GGUF)"
        )
    if isinstance(final, QuantFormat) and want.shape[-1] % final.layout.unit:
        raise UnsupportedModelError(
            f"tensor {source.name!r}: rows of {want.shape[-1]} elements are no whole blocks of {final.value}, "
            f"which have {final.layout.unit}"
        )
    if source.packing is not None and isinstance(final, QuantFormat):
        check_packed(source, want.shape, want.stacked, final)
        check_order(source, is_gathered=want.is_gathered)
    return final


def _is_adapted(want: WantedTensor, source: SourceTensor, adapted: Collection[str]) -> bool:
    if want.name not in adapted:
        return False
    if isinstance(_TYPES[source.dtype], QuantFormat):
        raise UnsupportedModelError(
            f"tensor {source.name!r} is quantised as {source.dtype} already, and an adapter changes it: "
            "blend before quantising, from an F32, F16 or BF16 checkpoint"
        )
    if _is_turned(want, source):
        raise UnsupportedModelError(
            f"tensor {source.name!r} has rows for columns in the file, and an adapter changes it"
        )
    return True


def _is_turned(want: WantedTensor, source: SourceTensor) -> bool:
    return want.is_transposed and isinstance(_TYPES[source.dtype], DType)


@dataclass(frozen=True, slots=True)
class _Part:
    """A tensor of the checkpoint, the type that it gets on the device, and whether adapters change it."""

    want: WantedTensor
    source: SourceTensor
    kind: ElementType
    is_adapted: bool


def _separated(whole: str, group: list[_Part]) -> Iterator[tuple[str, list[_Part]]]:
    """Keep parts of one type together; of different types, some quantised, they become destinations of their own."""
    group.sort(key=lambda part: part.want.row_offset)
    first, *others = group
    other = next((part for part in others if part.kind is not first.kind), None)
    if other is None:
        yield whole, group
        return
    if not any(isinstance(part.kind, QuantFormat) for part in group):
        raise UnsupportedModelError(
            f"tensors {first.source.name!r} ({first.source.dtype}) and {other.source.name!r} ({other.source.dtype}) "
            "are used as one and must have the same dtype; --weights f16 gives them one"
        )
    for index, part in enumerate(group):
        yield f"{whole}.{index}", [part]


def _destination(name: str, group: list[_Part]) -> DestTensor:
    first = group[0].want
    rows = 0
    for want in (part.want for part in group):
        offset = want.row_offset - first.row_offset
        assert offset == rows, f"{name}: rows of {want.name} begin at {offset}, expected {rows}"
        assert want.shape[1:] == first.shape[1:] and want.layer == first.layer, f"{name}: its parts do not fit"
        rows += want.shape[0]
    return DestTensor(name, (rows, *first.shape[1:]), group[0].kind, first.layer, first.dest)


def _order(name: str, group: list[_Part]) -> tuple[DestTensor, PlaneChunk] | None:
    check_orders([part.source for part in group])
    want, kind, packing = group[0].want, group[0].kind, group[0].source.packing
    if packing is None or packing.order is None:
        return None
    assert isinstance(kind, QuantFormat), "codes stay codes"
    dest = DestTensor(order_name(name), want.shape[-1:], DType.F32, want.layer, name, is_order=True)
    return dest, order_chunk(packing, dest.name, kind, want.layer, want.shape[-1])


def _places(group: list[_Part]) -> tuple[TensorPart, ...]:
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


def _runs(part: _Part, dest: DestTensor, first_row: int) -> Sequence[PlannedChunk]:
    whole, scales = _whole(part, dest, first_row), part.source.scales
    if packing := part.source.packing:
        want, codes = part.want, replace(whole, source_dtype=packing.codes)
        by_rows: list[PlannedChunk] = []
        if packing.codes.is_by_rows:
            by_rows += in_runs(codes, want.runs, want.shape[0])
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
    return in_runs(whole, part.want.runs, part.want.shape[0])


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


def _whole(part: _Part, dest: DestTensor, first_row: int) -> Chunk:
    want, source = part.want, part.source
    chunk = Chunk(
        source.file,
        source.offset,
        source.nbytes,
        dest.name,
        (want.row_offset - first_row) * prod(dest.shape[1:]),
        _transform(part, dest.dtype),
        _TYPES[source.dtype],
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


def _transform(part: _Part, dest: ElementType) -> Transform:
    source = _TYPES[part.source.dtype]
    if part.is_adapted:
        return Transform.BLEND
    if _is_turned(part.want, part.source):
        return Transform.TRANSPOSE
    if isinstance(source, QuantFormat):
        return Transform.RELAYOUT
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
