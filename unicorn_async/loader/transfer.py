"""Which chunks travel together through one staging buffer, in one submission. Pure."""

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
class Transfer:
    """Chunks of one layer, each with its offset in the buffer; one that is not `staged` is a single chunk."""

    chunks: tuple[AnyChunk, ...]
    offsets: tuple[int, ...]
    staged: bool

    @property
    def layer(self) -> int:
        """The layer that all chunks are of."""
        return self.chunks[0].layer

    @property
    def nbytes(self) -> int:
        """Bytes of a buffer that the transfer takes."""
        return self.offsets[-1] + self.chunks[-1].nbytes

    @property
    def read_bytes(self) -> int:
        """Bytes to read, without the room between chunks."""
        return sum(chunk.read_bytes for chunk in self.chunks)


def make_transfers(
    chunks: Iterable[AnyChunk],
    is_staged: Callable[[AnyChunk], bool],
    *,
    small_bytes: int = SMALL_BYTES,
    buffer_bytes: int,
) -> tuple[Transfer, ...]:
    """Put a layer's small staged chunks together, copies and conversions apart; the order of the layers stays.

    A transfer of small chunks stands where its first one stood, and is at most `buffer_bytes` large.
    """
    transfers: list[Transfer] = []
    open_parcels: dict[tuple[int, bool], int] = {}  # index of a transfer that takes more, by layer and kind
    for chunk in chunks:
        staged = is_staged(chunk)
        if not staged or chunk.nbytes > small_bytes:
            transfers.append(Transfer((chunk,), (0,), staged))
            continue
        kind = (chunk.layer, chunk.transform is Transform.COPY)
        index = open_parcels.get(kind)
        if index is not None:
            transfer = transfers[index]
            offset = aligned(transfer.nbytes, CONVERT_ALIGNMENT)
            if offset + chunk.nbytes <= buffer_bytes:
                transfers[index] = Transfer((*transfer.chunks, chunk), (*transfer.offsets, offset), staged=True)
                continue
        open_parcels[kind] = len(transfers)
        transfers.append(Transfer((chunk,), (0,), staged=True))
    return tuple(transfers)
