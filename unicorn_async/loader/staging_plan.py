"""How much staging memory a load takes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.loader.open_file import PAGE_BYTES
from unicorn_async.loader.transfer import make_transfers
from unicorn_async.weights.chunk import RawChunk
from unicorn_async.weights.plan import CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unicorn_async.weights.chunk import AnyChunk
    from unicorn_async.weights.plan import LoadPlan

_MAX_BUFFERS = 16  # also where they are small: each takes a while to allocate
_LEAST_BUFFERS = 2  # one is read into while the device takes the other; who writes the cache's entry has as many


@dataclass(frozen=True, slots=True)
class RingSize:
    """The buffers of a `StagingRing`, and the bytes of each."""

    num_buffers: int
    buffer_bytes: int

    @classmethod
    def of(cls, sizes: Sequence[int], staging_bytes: int, *, reads_pages: bool) -> RingSize:
        """Return the ring for transfers of these sizes, one at least: `staging_bytes` in all, unless a buffer has more.

        It has no more buffers than hold all transfers' bytes. Where whole pages are read, a buffer has room for a part
        of a page at both ends.
        """
        buffer_bytes = max(sizes)
        if reads_pages:
            buffer_bytes = (buffer_bytes // PAGE_BYTES + 2) * PAGE_BYTES
        return cls(min(len(sizes), _MAX_BUFFERS, -(-sum(sizes) // buffer_bytes)), buffer_bytes).within(staging_bytes)

    def within(self, staging_bytes: int) -> RingSize:
        """Return the ring with as many of its buffers as fit into `staging_bytes`, one at least."""
        return RingSize(max(1, min(self.num_buffers, staging_bytes // self.buffer_bytes)), self.buffer_bytes)

    @property
    def nbytes(self) -> int:
        """Size of all buffers."""
        return self.num_buffers * self.buffer_bytes


@dataclass(frozen=True, slots=True)
class StagingNeed:
    """The rings that a load would have without a limit; of those of one of the `streams` it has one at a time.

    A limit is for each ring.
    """

    streams: tuple[tuple[RingSize, ...], ...] = ()

    @classmethod
    def of(cls, plans: Iterable[LoadPlan]) -> StagingNeed:
        """Return what plans need that are carried out at the same time, from their files or from the cache's entry."""
        return cls(tuple(rings for plan in plans if (rings := (*_rings(plan.chunks), *_rings(_cached_chunks(plan))))))

    def nbytes(self, staging_bytes: int) -> int:
        """Return what all rings take at most under a limit, in bytes."""
        return sum(max(ring.within(staging_bytes).nbytes for ring in rings) for rings in self.streams)

    def limit(self, staging_bytes: int, available_bytes: int) -> int:
        """Return the highest limit up to `staging_bytes` under which all rings fit, or that of two buffers at least."""
        buffer_bytes = max((ring.buffer_bytes for rings in self.streams for ring in rings), default=0)
        if self.nbytes(staging_bytes) <= available_bytes:
            return staging_bytes
        limits = (min(staging_bytes, buffers * buffer_bytes) for buffers in range(_MAX_BUFFERS, _LEAST_BUFFERS, -1))
        fitting = (limit for limit in limits if self.nbytes(limit) <= available_bytes)
        return next(fitting, min(staging_bytes, _LEAST_BUFFERS * buffer_bytes))


def _cached_chunks(plan: LoadPlan) -> list[RawChunk]:
    return [
        RawChunk(0, start, min(CHUNK_BYTES, dest.nbytes - start), dest.name, start, dest.layer)
        for dest in plan.destinations
        for start in range(0, dest.nbytes, CHUNK_BYTES)
    ]


def _rings(chunks: Sequence[AnyChunk]) -> list[RingSize]:
    largest = max((chunk.nbytes for chunk in chunks), default=0)
    sizes = [transfer.nbytes for transfer in make_transfers(chunks, lambda _: True, buffer_bytes=largest)]
    most = _MAX_BUFFERS * (largest + 2 * PAGE_BYTES)
    return [RingSize.of(sizes, most, reads_pages=pages) for pages in (False, True)] if sizes else []
