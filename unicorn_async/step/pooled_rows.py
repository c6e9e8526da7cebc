"""Sequences of a step whose hidden states become embeddings: what the device is told of them, and what it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from unicorn_async.background import run_to_end
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.pool_parts import BEGINS, ENDS, NORMALISES
from unicorn_async.pooling import Pooling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.memory import Buffer
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


class PooledRows:
    """One frame's embeddings, (parts, columns) f32, which `prepare` allocates; close it when no step writes them.

    Most engines are never asked for any, and have no memory for them.
    """

    def __init__(self, device: Device, max_parts: int, name: str) -> None:
        self._device = device
        self._max_parts = max_parts
        self._name = name
        self._buffer: Buffer | None = None
        self._rows: NDArray[np.float32] | None = None
        self._nbytes = 0

    async def prepare(self, batch: Batch, columns: int) -> None:
        """Allocate the memory if the batch has an embedding and there is none yet, in a thread.

        Raises:
            OutOfMemoryError: it can't be allocated.
        """
        if self._buffer is None and any(item.sequence.embedded for item in batch.scheduled):
            await run_to_end(lambda: self._allocate(columns))

    @property
    def address(self) -> int:
        """Where the device writes them; they are prepared."""
        assert self._buffer is not None
        return self._buffer.address

    @property
    def nbytes(self) -> int:
        """Size of the memory; 0 until it is prepared."""
        return self._nbytes

    def read(self, batch: Batch) -> tuple[tuple[ScheduledSequence, NDArray[np.float32]], ...]:
        """Return the embeddings of the sequences that have ended with a batch, once its step is done."""
        rows, found = self._rows, enumerate(pooled_parts(batch))
        if rows is None:
            return ()
        return tuple((part.item, rows[index, : part.wanted.dimensions].copy()) for index, part in found if part.ends)

    def close(self) -> None:
        """Free the memory."""
        self._rows = None  # first, so that the mapping can be released
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None

    def _allocate(self, columns: int) -> None:
        # Before: who compares it with what is allocated never finds more than that.
        nbytes = self._nbytes = 4 * self._max_parts * columns
        buffer = self._device.memory.allocate(nbytes, MemoryKind.STAGING, name=self._name)
        assert buffer.mapped is not None
        self._rows = np.frombuffer(buffer.mapped[:nbytes], np.float32).reshape(self._max_parts, columns)
        self._buffer = buffer
