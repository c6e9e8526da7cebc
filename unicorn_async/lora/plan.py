"""Which adapters change which weights, and what of them has to be on the device for it. Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.tensor import DType
from unicorn_async.weights.chunk import CONVERT_ALIGNMENT, Chunk, Transform, split
from unicorn_async.weights.plan import CHUNK_BYTES, DestTensor, LoadPlan, in_runs
from unicorn_async.weights.row_order import RowOrder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from unicorn_async.checkpoint.source_tensor import TensorEntry
    from unicorn_async.lora.adapter import LoraAdapter, LoraPair
    from unicorn_async.weights.row_order import HeadOrder
    from unicorn_async.weights.wanted import WantedTensor

_EXPERTS = ".experts."  # in the names of their weights, whatever the family


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """What one adapter adds to one weight (rows, columns): scale · left · right.

    `left` and `right` are destinations of the factors' plan; a step of a row, of a rank or of a column in them is so
    many elements. `scale` includes the adapter's weight.
    """

    left: str
    right: str
    columns: int
    rank: int
    left_row: int
    left_rank: int
    right_rank: int
    right_column: int
    scale: float


@dataclass(frozen=True, slots=True)
class LoraPlan:
    """The changes of each weight, by its canonical name, in the adapters' order, and the load of their factors.

    `factors` has one layer; `file` of its chunks counts `adapters`.
    """

    adapters: tuple[LoraAdapter, ...]
    changes: Mapping[str, tuple[PlannedChange, ...]]
    factors: LoadPlan


def make_lora_plan(
    adapters: Sequence[LoraAdapter], wanted: Iterable[WantedTensor], tied: Collection[str] = ()
) -> LoraPlan:
    """Check adapters against a model's weights, and plan their factors' load as F32; `tied` names those that are one.

    Raises:
        UnsupportedModelError: an adapter changes what the model has not, experts or their router, or the head of a
            model that shares it with the embeddings.
        CheckpointError: a factor does not have the weight's shape, or a scale is too large for a float.
    """
    wants = {want.name: want for want in wanted}
    changes: dict[str, list[PlannedChange]] = {}
    destinations: list[DestTensor] = []
    chunks: list[Chunk] = []
    for index, adapter in enumerate(adapters):
        for pair in adapter.pairs.values():
            _check_target(adapter, pair, wants.get(pair.target), tied)
            names = {}
            for entry in (pair.a, pair.b):
                names[entry.name] = dest = f"{index}:{entry.name}"
                destinations.append(DestTensor(dest, entry.shape, DType.F32, 0, dest))
                want = wants[pair.target] if entry is pair.b else None
                whole = _chunk(index, entry, dest, None if want is None else want.head_order)
                for run in in_runs(whole, () if want is None else want.runs, entry.shape[0]):
                    _check_place(adapter, pair, run)
                    chunks += split(run, CHUNK_BYTES)
            a, b = names[pair.a.name], names[pair.b.name]
            changes.setdefault(pair.target, []).append(_change(adapter, pair, a, b))
    chunks.sort(key=lambda chunk: (chunk.file, chunk.offset))
    factors = LoadPlan(tuple(destinations), tuple(chunks), (0,) if chunks else (), ())
    return LoraPlan(tuple(adapters), {target: tuple(items) for target, items in changes.items()}, factors)


def _check_target(adapter: LoraAdapter, pair: LoraPair, want: WantedTensor | None, tied: Collection[str]) -> None:
    where = f"adapter {adapter.path}: tensor {pair.a.name!r}"
    if pair.target in tied:
        raise UnsupportedModelError(
            f"{where}: the model's output head is tied to its embeddings, neither can be changed alone"
        )
    shape = () if want is None else want.shape
    is_router = want is not None and want.as_f32 and len(shape) == 2
    if _EXPERTS in pair.target or is_router:
        raise UnsupportedModelError(f"{where}: adapters of experts and of their routers are not supported")
    if len(shape) != 2:
        raise UnsupportedModelError(f"{where}: the model has no matrix {pair.target!r}")
    if want is not None and want.is_kept:
        raise UnsupportedModelError(f"{where}: adapters of {pair.target!r}, which is taken apart, are not supported")
    if pair.shape != shape:
        raise CheckpointError(
            f"{where} of shape {list(pair.a.shape)} and its lora_B of {list(pair.b.shape)} change a weight of shape "
            f"{list(pair.shape)}; {pair.target!r} has {list(shape)}"
        )


def _check_place(adapter: LoraAdapter, pair: LoraPair, chunk: Chunk) -> None:
    if chunk.dest_offset % CONVERT_ALIGNMENT:
        where = f"adapter {adapter.path}: tensor {pair.b.name!r} of rank {pair.rank}"
        raise UnsupportedModelError(
            f"{where}: rows of {pair.target!r} lie in groups, and one begins at byte {chunk.dest_offset}, "
            f"expected a multiple of {CONVERT_ALIGNMENT}"
        )


def _chunk(file: int, entry: TensorEntry, dest: str, order: HeadOrder | None) -> Chunk:
    """A factor's load; rows of B are those of the weight, and come into its order."""
    return Chunk(
        file=file,
        offset=entry.offset,
        nbytes=entry.nbytes,
        dest=dest,
        first_element=0,
        transform=Transform.TO_F32,
        source_dtype=DType(entry.dtype),
        dest_dtype=DType.F32,
        layer=0,
        row_permutation=None if order is None else RowOrder(order, entry.nbytes // entry.shape[0]),
    )


def _change(adapter: LoraAdapter, pair: LoraPair, a: str, b: str) -> PlannedChange:
    columns, scale = pair.shape[1], pair.scale * adapter.weight
    try:
        struct.pack("<f", scale)
    except OverflowError as exc:
        raise CheckpointError(f"adapter {adapter.path}: scale {scale} of {pair.target!r} is no float") from exc
    width = pair.a.shape[1]
    if pair.is_embedding:
        return PlannedChange(a, b, columns, pair.rank, 1, width, 1, pair.rank, scale)
    return PlannedChange(b, a, columns, pair.rank, pair.rank, 1, width, 1, scale)
