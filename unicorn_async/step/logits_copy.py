"""Brings logits of evaluation requests from the device to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.background import run_to_end
from unicorn_async.gpu.command import CommandPool
from unicorn_async.gpu.memory import MemoryKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.memory import Buffer
    from unicorn_async.gpu.queue import CommandBuffer


class LogitsCopy:
    """One frame's copy of logits, in host memory that `prepare` allocates; close it when none is pending."""

    def __init__(self, device: Device, logits: ArenaSlice, vocab_size: int) -> None:
        self._device = device
        self._logits = logits
        self._row_bytes = 4 * vocab_size
        self._pool = CommandPool(device, device.compute)
        self._commands: CommandBuffer | None = None
        self._host: Buffer | None = None
        self._nbytes = 0

    async def prepare(self) -> None:
        """Allocate the host memory, unless it is there, in a thread: a driver takes milliseconds over it.

        Raises:
            OutOfMemoryError: it can't be allocated.
        """
        if self._host is None:
            await run_to_end(self._allocate)

    def commands(self, first_row: int, num_rows: int) -> CommandBuffer:
        """Record the copy of rows of the logits to the start of the host memory, which is prepared."""
        assert self._host is not None
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
        """Size of the host memory; 0 until it is prepared."""
        return self._nbytes

    def close(self) -> None:
        """Free commands and memory."""
        self._pool.close()
        if self._host is not None:
            self._host.close()

    def _allocate(self) -> None:
        self._nbytes = self._logits.nbytes  # before: who compares it with what is allocated never finds more than that
        self._host = self._device.memory.allocate(self._nbytes, MemoryKind.STAGING, name="evaluation logits")
