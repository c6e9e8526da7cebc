"""Which tokens may come next, of a step's sequences with a grammar: masks in mapped memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.background import run_to_end
from unicorn_async.gpu.memory import MemoryKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.memory import Buffer
    from unicorn_async.scheduler.batch import Batch


class MaskRows:
    """One frame's masks, (masks, words) u32, which `prepare` allocates; close it when no step reads them.

    Most engines never see a grammar, and have no memory for masks.
    """

    def __init__(self, device: Device, max_masks: int, name: str) -> None:
        self._device = device
        self._max_masks = max_masks
        self._name = name
        self._buffer: Buffer | None = None
        self._rows: NDArray[np.uint8] | None = None
        self._nbytes = 0

    async def prepare(self, batch: Batch) -> None:
        """Allocate the memory if the batch has a mask and there is none yet, in a thread.

        Raises:
            OutOfMemoryError: it can't be allocated.
        """
        masks = (item.sequence.mask for item in batch.scheduled if item.samples)
        mask = next((mask for mask in masks if mask is not None), None)
        if mask is not None and self._buffer is None:
            mask_bytes = len(mask)
            await run_to_end(lambda: self._allocate(mask_bytes))

    @property
    def address(self) -> int:
        """Where the device finds them; they are prepared."""
        assert self._buffer is not None
        return self._buffer.address

    @property
    def nbytes(self) -> int:
        """Size of the memory; 0 until it is prepared."""
        return self._nbytes

    def write(self, index: int, mask: bytes) -> None:
        """Write a mask, a bit for each token of the vocabulary in whole words; all have the same size."""
        assert self._rows is not None
        self._rows[index] = np.frombuffer(mask, np.uint8)

    def close(self) -> None:
        """Free the memory."""
        self._rows = None  # first, so that the mapping can be released
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None

    def _allocate(self, mask_bytes: int) -> None:
        self._nbytes = self._max_masks * mask_bytes  # before: who compares it never finds more allocated than that
        buffer = self._device.memory.allocate(self._nbytes, MemoryKind.ARGUMENTS, name=self._name)
        assert buffer.mapped is not None
        self._rows = np.frombuffer(buffer.mapped[: self._nbytes], np.uint8).reshape(self._max_masks, mask_bytes)
        self._buffer = buffer
