"""Biases of single tokens, and tokens that would end an answer too early: of a step's rows, in mapped memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.background import run_to_end
from unicorn_async.config import MAX_BIASED_TOKENS
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.sample_rows import SAMPLE_BIAS, sample_biases

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unicorn_async.config import SamplingParams
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.memory import Buffer
    from unicorn_async.scheduler.batch import Batch

ROW_BIASES = 1 + MAX_BIASED_TOKENS  # room of a row: their number, and they


class BiasRows:
    """One frame's biases, (rows, ROW_BIASES) SAMPLE_BIAS, which `prepare` allocates; close it when no step reads them.

    Most engines are never asked for any, and have no memory for them.
    """

    def __init__(self, device: Device, max_rows: int, name: str) -> None:
        self._device = device
        self._max_rows = max_rows
        self._name = name
        self._buffer: Buffer | None = None
        self._rows: NDArray[np.void] | None = None
        self._nbytes = 0
        self._written: list[tuple[SamplingParams, frozenset[int]] | None] = [None] * max_rows

    async def prepare(self, batch: Batch) -> None:
        """Allocate the memory if the batch has a bias and there is none yet, in a thread.

        Raises:
            OutOfMemoryError: it can't be allocated.
        """
        if self._buffer is None and any(item.sequence.sampling.has_biases for item in batch.scheduled):
            await run_to_end(self._allocate)

    @property
    def address(self) -> int:
        """Where the device finds them; they are prepared."""
        assert self._buffer is not None
        return self._buffer.address

    @property
    def nbytes(self) -> int:
        """Size of the memory; 0 until it is prepared."""
        return self._nbytes

    def write(self, index: int, params: SamplingParams, banned: frozenset[int]) -> None:
        """Write a row's biases, unless they are there from the step before; `banned` tokens must not come."""
        assert self._rows is not None
        written = self._written[index]
        if written is None or written[0] is not params or written[1] is not banned:
            biases = sample_biases(params, banned)
            self._rows[index, : len(biases)] = biases
            self._written[index] = (params, banned)

    def close(self) -> None:
        """Free the memory."""
        self._rows = None  # first, so that the mapping can be released
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None

    def _allocate(self) -> None:
        # Before: who compares it with what is allocated never finds more than that.
        nbytes = self._nbytes = self._max_rows * ROW_BIASES * SAMPLE_BIAS.itemsize
        buffer = self._device.memory.allocate(nbytes, MemoryKind.ARGUMENTS, name=self._name)
        assert buffer.mapped is not None
        self._rows = np.frombuffer(buffer.mapped[:nbytes], SAMPLE_BIAS).reshape(self._max_rows, ROW_BIASES)
        self._buffer = buffer
