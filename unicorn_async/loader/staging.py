"""A bounded ring of mapped memory between the files and the device."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unicorn_async.background import run_to_end
from unicorn_async.errors import MissingFeatureError, OutOfMemoryError
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.loader.open_file import PAGE_BYTES, page_memory

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.memory import Buffer, Memory
    from unicorn_async.gpu.queue import CommandBuffer, Queue
    from unicorn_async.gpu.timeline import Timeline


@dataclass(eq=False, slots=True)
class StagingBuffer:
    """A piece of the ring: its memory, and the submission that read it last.

    `takes_direct_reads` says that it is ordinary memory from a page's start. `commands` are command buffers to record
    anew, by queue; they are not pending once the buffer is acquired.
    """

    memory: Buffer
    takes_direct_reads: bool = False
    used: tuple[Timeline, int] | None = None
    commands: dict[Queue, CommandBuffer] = field(default_factory=dict)

    def view(self, offset: int = 0, nbytes: int | None = None) -> memoryview:
        """Return `nbytes` of the buffer, or all of them, for the CPU to fill."""
        mapped = self.memory.mapped
        assert mapped is not None, "staging memory is mapped"
        return mapped[offset:] if nbytes is None else mapped[offset : offset + nbytes]


class StagingRing:
    """Hands out buffers; who finds none free waits for the device to be done with the one that was used first.

    Buffers are made when they are asked for, because each takes a while to allocate; the ring owns their memory until
    `close`. With `imports` they are ordinary memory that the device was given, if the driver takes it (see
    `can_import`), else memory of the driver's: `near` the device while there is room, else the host's.
    """

    def __init__(
        self, memory: Memory, *, num_buffers: int, buffer_bytes: int, imports: bool = False, near: bool = False
    ) -> None:
        self._memory = memory
        self._num_buffers = num_buffers
        self.buffer_bytes = buffer_bytes
        self._imports = imports
        self._near = near
        self._buffers: list[StagingBuffer] = []
        self._free: asyncio.Queue[StagingBuffer] = asyncio.Queue()
        self._turn = asyncio.Lock()  # a lock is fair; a queue gives what comes back to who asks before others wake up

    @property
    def num_free(self) -> int:
        """Buffers that are not held, though the device may still read them, or that are still to be made."""
        return self._free.qsize() + self._num_buffers - len(self._buffers)

    async def acquire(self) -> StagingBuffer:
        """Return a buffer that the device does not use, to who asks first; cancelling leaves it in the ring.

        Raises:
            DeviceLostError: the device is lost.
            OutOfMemoryError: there is no memory for another buffer.
        """
        async with self._turn:
            if self._free.empty() and len(self._buffers) < self._num_buffers:
                return await self._new_buffer()
            buffer = await self._free.get()
        try:
            if buffer.used is not None:
                await buffer.used[0].reached(buffer.used[1])
        except BaseException:
            self._free.put_nowait(buffer)
            raise
        return buffer

    def release(self, buffer: StagingBuffer, timeline: Timeline, value: int) -> None:
        """Give a buffer back; it is free once `timeline` has reached `value`."""
        buffer.used = (timeline, value)
        self._free.put_nowait(buffer)

    def close(self) -> None:
        """Free the memory, each buffer's once the device is done with it; no thread may still write to a buffer."""
        buffers, self._buffers = self._buffers, []
        for buffer in buffers:
            if buffer.used is None:
                buffer.memory.close()
            else:
                self._memory.release(buffer.memory, timeline=buffer.used[0], value=buffer.used[1])
        self._memory.collect()

    async def _new_buffer(self) -> StagingBuffer:
        """Make a buffer in a thread: the driver may take milliseconds, and others have reads to begin."""
        name, before = f"staging[{len(self._buffers)}]", len(self._buffers)
        try:
            await run_to_end(lambda: self._buffers.append(self._make_buffer(self.buffer_bytes, name)))
        except BaseException:
            if len(self._buffers) > before:
                self._free.put_nowait(self._buffers[-1])
            raise
        return self._buffers[-1]

    def _make_buffer(self, nbytes: int, name: str) -> StagingBuffer:
        if self._imports:
            try:
                return StagingBuffer(self._memory.import_host(page_memory(nbytes), name=name), takes_direct_reads=True)
            except (MissingFeatureError, OutOfMemoryError):  # the driver pins no such memory, or no more of it
                self._imports = False
        if self._near:
            try:
                return StagingBuffer(self._memory.allocate(nbytes, MemoryKind.ARGUMENTS, name=name))
            except OutOfMemoryError:  # another program was faster
                self._near = False
        return StagingBuffer(self._memory.allocate(nbytes, MemoryKind.STAGING, name=name))


def can_import(device: Device) -> bool:
    """Whether the device copies from ordinary memory that starts at a page."""
    return device.info.external_memory_host and device.info.host_pointer_alignment <= PAGE_BYTES
