"""How much staging memory a load takes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.loader.chunk import RawChunk
from unicorn_async.loader.open_file import PAGE_BYTES
from unicorn_async.loader.parcel import make_parcels
from unicorn_async.loader.plan import CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.loader.chunk import AnyChunk
    from unicorn_async.loader.plan import LoadPlan

_MAX_SLOTS = 16  # also where they are small: each takes a while to allocate


@dataclass(frozen=True, slots=True)
class RingSize:
    """The slots of a `StagingRing`, and the bytes of each."""

    num_slots: int
    slot_bytes: int

    @classmethod
    def of(cls, sizes: Sequence[int], staging_bytes: int, *, reads_pages: bool) -> RingSize:
        """Return the ring for parcels of these sizes, one at least: `staging_bytes` in all, unless a slot has more.

        Where whole pages are read, a slot has room for a part of a page at both ends.
        """
        slot_bytes = max(sizes)
        if reads_pages:
            slot_bytes = (slot_bytes // PAGE_BYTES + 2) * PAGE_BYTES
        return cls(max(1, min(len(sizes), _MAX_SLOTS, staging_bytes // slot_bytes)), slot_bytes)

    @property
    def nbytes(self) -> int:
        """Size of all slots."""
        return self.num_slots * self.slot_bytes


def most_staged(plan: LoadPlan, staging_bytes: int) -> int:
    """Return the bytes that the ring of a plan's load has at most, from its files or from its entry in the cache."""
    cached = [
        RawChunk(0, start, min(CHUNK_BYTES, dest.nbytes - start), dest.name, start, dest.layer)
        for dest in plan.destinations
        for start in range(0, dest.nbytes, CHUNK_BYTES)
    ]
    return max(_ring_bytes(plan.chunks, staging_bytes), _ring_bytes(cached, staging_bytes))


def _ring_bytes(chunks: Sequence[AnyChunk], staging_bytes: int) -> int:
    largest = max((chunk.nbytes for chunk in chunks), default=0)
    sizes = [parcel.nbytes for parcel in make_parcels(chunks, lambda _: True, slot_bytes=largest)]
    if not sizes:
        return 0
    return max(RingSize.of(sizes, staging_bytes, reads_pages=pages).nbytes for pages in (False, True))
