"""Sequences of a step whose hidden states become embeddings: what the device is told of them, and what it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.pool_parts import BEGINS, ENDS, NORMALISES
from unicorn_async.pooling import Pooling
from unicorn_async.step.seldom_rows import SeldomRows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from unicorn_async.gpu.device import Device
    from unicorn_async.pooling import Embedded
    from unicorn_async.scheduler.batch import Batch, ScheduledSequence


class PooledPart(NamedTuple):
    """Rows of a step that are added to an embedding; `ends` says that they are the last."""

    item: ScheduledSequence
    wanted: Embedded
    row: int
    num_rows: int
    ends: bool

    @property
    def cell(self) -> tuple[int, int, int, int, int, float]:
        """What the device is told of it, as POOL."""
        sequence, takes_all = self.item.sequence, self.wanted.pooling is Pooling.MEAN
        begins = self.item.start == 0 or not takes_all
        flags = BEGINS * begins + ENDS * self.ends + NORMALISES * self.wanted.normalises
        scale = 1.0 / len(sequence.prompt_ids) if takes_all else 1.0
        return sequence.state_index, self.row, self.num_rows, flags, self.wanted.dimensions, scale


def pooled_parts(batch: Batch) -> Iterator[PooledPart]:
    """Return the parts of a batch that have something of an embedding, in order."""
    row = 0
    for item in batch.scheduled:
        wanted, row = item.sequence.embedded, row + item.num_tokens
        if wanted is None:
            continue
        ends = item.start + item.num_tokens == len(item.sequence.prompt_ids)
        if wanted.pooling is Pooling.MEAN:
            yield PooledPart(item, wanted, row - item.num_tokens, item.num_tokens, ends)
        elif ends:
            yield PooledPart(item, wanted, row - 1, 1, ends)


class PooledRows(SeldomRows[np.float32]):
    """One frame's embeddings, (parts, columns) f32, which `prepare` allocates."""

    def __init__(self, device: Device, max_parts: int, name: str) -> None:
        super().__init__(device, MemoryKind.STAGING, name)
        self._max_parts = max_parts

    async def prepare(self, batch: Batch, columns: int) -> None:
        """Allocate the memory if the batch has an embedding and there is none yet, in a thread.

        Raises:
            OutOfMemoryError: it can't be allocated.
        """
        if not self.is_there and any(item.sequence.embedded for item in batch.scheduled):
            await self.allocate(np.dtype(np.float32), (self._max_parts, columns))

    def read(self, batch: Batch) -> tuple[tuple[ScheduledSequence, NDArray[np.float32]], ...]:
        """Return the embeddings of the sequences that have ended with a batch, once its step is done."""
        if not self.is_there:
            return ()
        rows, found = self.array, enumerate(pooled_parts(batch))
        return tuple((part.item, rows[index, : part.wanted.dimensions].copy()) for index, part in found if part.ends)
