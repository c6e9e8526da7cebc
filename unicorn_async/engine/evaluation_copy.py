"""Brings logits of evaluation requests from the device to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.gpu.command import CommandPool
from unicorn_async.gpu.memory import MemoryKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.command import CommandBuffer
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.memory import Buffer


class EvaluationCopy:
    """One frame's copy of logits, in host memory that is allocated at its first use; close it when none is pending."""

    def __init__(self, device: Device, logits: ArenaSlice, vocab_size: int) -> None:
        self._device = device
        self._logits = logits
        self._row_bytes = 4 * vocab_size
        self._pool = CommandPool(device, device.compute)
        self._commands: CommandBuffer | None = None
        self._host: Buffer | None = None

    def commands(self, first_row: int, num_rows: int) -> CommandBuffer:
        """Record the copy of rows of the logits to the start of the host memory.

        Raises:
            OutOfMemoryError: the host memory can't be allocated.
        """
        if self._host is None:
            self._host = self._device.memory.allocate(self._logits.nbytes, MemoryKind.STAGING, name="evaluation logits")
        recorder = self._pool.recorder(self._commands)
        offset = self._logits.offset + first_row * self._row_bytes
        recorder.barrier()
        recorder.copy(self._logits.buffer, offset, self._host, 0, num_rows * self._row_bytes)
        recorder.barrier()
        recorder.host_barrier()
        self._commands = recorder.end()
        return self._commands

    def read(self, first_row: int, num_rows: int) -> NDArray[np.float32]:
        """Return a copy of rows that were copied, (num_rows, vocabulary)."""
        assert self._host is not None and self._host.mapped is not None
        start = first_row * self._row_bytes
        rows = np.frombuffer(self._host.mapped[start : start + num_rows * self._row_bytes], dtype=np.float32)
        return rows.reshape(num_rows, -1).copy()

    @property
    def nbytes(self) -> int:
        """Size of the host memory; 0 until something was copied."""
        return 0 if self._host is None else self._host.nbytes

    def close(self) -> None:
        """Free commands and memory."""
        self._pool.close()
        if self._host is not None:
            self._host.close()
