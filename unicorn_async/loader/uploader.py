"""The device's side of a load: copies, conversions, and the timeline that says which layers are active."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeAlias

from unicorn_async.background import run_to_end
from unicorn_async.errors import DeviceError
from unicorn_async.gpu.command import CommandPool
from unicorn_async.gpu.timeline import Timeline
from unicorn_async.loader.submitter import Submitter
from unicorn_async.weights.chunk import RawChunk, Transform

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.queue import Queue
    from unicorn_async.loader.allocator import BackgroundAllocator
    from unicorn_async.loader.staging import StagingBuffer
    from unicorn_async.weights.chunk import AnyChunk, PlannedChunk

ConvertRecorder: TypeAlias = "Callable[[CommandRecorder, int, int, PlannedChunk], None]"
"""Records a chunk's transform: (recorder, the chunk's address, address of the whole destination, chunk)."""

Preparation: TypeAlias = "Callable[[], object]"
"""Compiles what a `ConvertRecorder` records; it blocks, and is called in a thread before the first transform."""


class Uploader:
    """Records and submits what brings chunks to their places; one event loop uses it.

    Copies go to the transfer queue, conversions to it as well where it can compute, else to the compute queue.
    `timeline` counts active layers: value n is signalled once the first n layers of the plan are in device memory. It
    is always signalled by a queue submission made after the layers' last bytes were written, so that waiting for it
    on the device also makes visible what the CPU wrote into mapped memory. `close` keeps the timeline: who waits for
    layers may need it longer, and closes it. What an `allocator` brings is in `places` before its chunks are.
    `prepare` is called before the first conversion, or by `be_prepared`.
    """

    def __init__(
        self,
        device: Device,
        places: Mapping[str, ArenaSlice],
        convert: ConvertRecorder,
        allocator: BackgroundAllocator | None = None,
        prepare: Preparation | None = None,
    ) -> None:
        self.timeline = Timeline(device, name="layers-timeline")
        self._places = places
        self._allocator = allocator
        self._convert = convert
        self._prepare = prepare  # None once that is done
        self._preparation_turn = asyncio.Lock()
        self._device = device
        self._copy_queue = device.transfer
        self._convert_queue = device.transfer if device.transfer.has_compute else device.compute
        self._pools: dict[Queue, CommandPool] = {}
        self._submitter = Submitter(self._copy_queue, self._convert_queue, self.timeline)

    @property
    def pending(self) -> tuple[tuple[Timeline, int], ...]:
        """What to wait for until all that was submitted is done."""
        return self._submitter.pending

    @property
    def num_activated(self) -> int:
        """Layers whose activation is submitted."""
        return self._submitter.num_activated

    def has_direct_target(self, chunk: AnyChunk) -> bool:
        """Whether a chunk can be read into its place; otherwise it has to be staged.

        That is an expectation while the place is not there.
        """
        if chunk.transform is not Transform.COPY:
            return False
        if self._allocator is not None:
            return self._allocator.is_mappable(chunk.dest)
        return self._places[chunk.dest].buffer.is_mappable

    async def direct_target(self, chunk: AnyChunk) -> memoryview:
        """Return the place of a chunk that has such a target; the driver maps it in a thread."""
        place = self._places[chunk.dest]
        if place.buffer.view is None:
            await run_to_end(lambda: place.buffer.mapped)
        mapped = place.mapped
        assert mapped is not None, "it has a direct target"
        return mapped[chunk.dest_offset : chunk.dest_offset + chunk.nbytes]

    async def submit(self, placed: Sequence[tuple[AnyChunk, int]], buffer: StagingBuffer) -> tuple[Timeline, int]:
        """Bring staged chunks from their offsets in the buffer to their places, in one submission.

        The chunks are all copied or all converted. Returns the timeline value at which the buffer is free; cancelled,
        it is free once `close` has returned.
        """
        copies = placed[0][0].transform is Transform.COPY
        if self._prepare is not None and not copies:
            await self.be_prepared()
        queue = self._copy_queue if copies else self._convert_queue
        recorder = self._pool(queue).recorder(buffer.commands.get(queue))
        for chunk, offset in placed:
            self._record(recorder, chunk, buffer, offset)
        recorder.barrier()
        commands = buffer.commands[queue] = recorder.end()
        return queue.timeline, await self._submitter.submit(queue, commands)

    async def be_prepared(self) -> None:
        """Compile what conversions need, unless that is done; who knows of one to come need not wait for it."""
        async with self._preparation_turn:  # in a thread: a compiler may take a tenth of a second
            if self._prepare is not None:
                await run_to_end(self._prepare)
                self._prepare = None

    def _record(self, recorder: CommandRecorder, chunk: AnyChunk, buffer: StagingBuffer, offset: int) -> None:
        place = self._places[chunk.dest]
        if isinstance(chunk, RawChunk) or chunk.transform is Transform.COPY:
            recorder.copy(buffer.memory, offset, place.buffer, place.offset + chunk.dest_offset, chunk.nbytes)
            return
        self._convert(recorder, buffer.memory.address + offset, place.address, chunk)

    async def activate_next(self) -> None:
        """Signal one layer more once all that was submitted is done; it returns once that is submitted."""
        await self._submitter.activate_next()

    def close(self) -> None:
        """Wait for what was submitted, and free the command buffers."""
        self._submitter.close()
        for timeline, value in self._submitter.pending:
            with contextlib.suppress(DeviceError):  # a lost device runs nothing any more
                timeline.wait(value)
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()

    def _pool(self, queue: Queue) -> CommandPool:
        if queue not in self._pools:
            self._pools[queue] = CommandPool(self._device, queue)
        return self._pools[queue]
