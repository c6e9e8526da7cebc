"""Which chunks travel together through one staging slot, in one submission. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.tensor import aligned
from unicorn_async.weights.chunk import CONVERT_ALIGNMENT, Transform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unicorn_async.weights.chunk import AnyChunk

SMALL_BYTES = 256 << 10  # a submission costs as much as copying such a chunk


@dataclass(frozen=True, slots=True)
class Parcel:
    """Chunks of one layer, each with its offset in the slot; one that is not `staged` is a single chunk."""

    chunks: tuple[AnyChunk, ...]
    offsets: tuple[int, ...]
    staged: bool

    @property
    def layer(self) -> int:
        """The layer that all chunks are of."""
        return self.chunks[0].layer

    @property
    def nbytes(self) -> int:
        """Bytes of a slot that the parcel takes."""
        return self.offsets[-1] + self.chunks[-1].nbytes

    @property
    def read_bytes(self) -> int:
        """Bytes to read, without the room between chunks."""
        return sum(chunk.nbytes for chunk in self.chunks)


def make_parcels(
    chunks: Iterable[AnyChunk],
    is_staged: Callable[[AnyChunk], bool],
    *,
    small_bytes: int = SMALL_BYTES,
    slot_bytes: int,
) -> tuple[Parcel, ...]:
    """Put a layer's small staged chunks together, copies and conversions apart; the order of the layers stays.

    A parcel of small chunks stands where its first one stood, and is at most `slot_bytes` large.
    """
    parcels: list[Parcel] = []
    open_parcels: dict[tuple[int, bool], int] = {}  # index of a parcel that takes more, by layer and kind
    for chunk in chunks:
        staged = is_staged(chunk)
        if not staged or chunk.nbytes > small_bytes:
            parcels.append(Parcel((chunk,), (0,), staged))
            continue
        kind = (chunk.layer, chunk.transform is Transform.COPY)
        index = open_parcels.get(kind)
        if index is not None:
            parcel = parcels[index]
            offset = aligned(parcel.nbytes, CONVERT_ALIGNMENT)
            if offset + chunk.nbytes <= slot_bytes:
                parcels[index] = Parcel((*parcel.chunks, chunk), (*parcel.offsets, offset), staged=True)
                continue
        open_parcels[kind] = len(parcels)
        parcels.append(Parcel((chunk,), (0,), staged=True))
    return tuple(parcels)
