"""Biases of single tokens, and tokens that would end an answer too early: of a step's rows, in mapped memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.sample_rows import SAMPLE_BIAS, sample_biases
from unicorn_async.sampling_params import MAX_BIASED_TOKENS
from unicorn_async.step.seldom_rows import SeldomRows

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device
    from unicorn_async.sampling_params import SamplingParams
    from unicorn_async.scheduler.batch import Batch

ROW_BIASES = 1 + MAX_BIASED_TOKENS  # room of a row: their number, and they


class BiasRows(SeldomRows[np.void]):
    """One frame's biases, (rows, ROW_BIASES) SAMPLE_BIAS, which `prepare` allocates."""

    def __init__(self, device: Device, max_rows: int, name: str) -> None:
        super().__init__(device, MemoryKind.ARGUMENTS, name)
        self._written: list[tuple[SamplingParams, frozenset[int]] | None] = [None] * max_rows

    async def prepare(self, batch: Batch) -> None:
        """Allocate the memory if the batch has a bias and there is none yet, in a thread.

        Raises:
            OutOfMemoryError: it can't be allocated.
        """
        if not self.is_there and any(item.sequence.sampling.has_biases for item in batch.scheduled):
            await self.allocate(SAMPLE_BIAS, (len(self._written), ROW_BIASES))

    def write(self, index: int, params: SamplingParams, banned: frozenset[int]) -> None:
        """Write a row's biases, unless they are there from the step before; `banned` tokens must not come."""
        written = self._written[index]
        if written is None or written[0] is not params or written[1] is not banned:
            biases = sample_biases(params, banned)
            self.array[index, : len(biases)] = biases
            self._written[index] = (params, banned)
