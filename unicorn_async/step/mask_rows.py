"""Which tokens may come next, of a step's sequences with a grammar: masks in mapped memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.step.seldom_rows import SeldomRows

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device
    from unicorn_async.scheduler.batch import Batch


class MaskRows(SeldomRows[np.uint8]):
    """One frame's masks, (masks, words) u32, which `prepare` allocates."""

    def __init__(self, device: Device, max_masks: int, name: str) -> None:
        super().__init__(device, MemoryKind.ARGUMENTS, name)
        self._max_masks = max_masks

    async def prepare(self, batch: Batch) -> None:
        """Allocate the memory if the batch has a mask and there is none yet, in a thread.

        Raises:
            OutOfMemoryError: it can't be allocated.
        """
        masks = (item.sequence.mask for item in batch.scheduled if item.samples)
        mask = next((mask for mask in masks if mask is not None), None)
        if mask is not None and not self.is_there:
            await self.allocate(np.dtype(np.uint8), (self._max_masks, len(mask)))

    def write(self, index: int, mask: bytes) -> None:
        """Write a mask, a bit for each token of the vocabulary in whole words; all have the same size."""
        self.array[index] = np.frombuffer(mask, np.uint8)
