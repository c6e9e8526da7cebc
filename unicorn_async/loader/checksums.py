"""Checksums of destinations in device memory, a layer at a time."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from unicorn_async.background import run_to_end
from unicorn_async.errors import DeviceError
from unicorn_async.gpu.command import CommandPool
from unicorn_async.gpu.memory_types import MemoryKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.memory import Buffer
    from unicorn_async.gpu.queue import CommandBuffer
    from unicorn_async.gpu.timeline import Timeline


class ChecksumKernel(Protocol):
    """Computes checksums on the device: a kernel leaves shares of one in mapped memory, the CPU adds them up."""

    def prepare(self) -> None:
        """Compile what is needed; it blocks."""

    def share_bytes(self, nbytes: int) -> int:
        """Return the bytes of the shares for `nbytes`, a multiple of 16."""

    def record(self, recorder: CommandRecorder, *, src: int, nbytes: int, shares: int) -> None:
        """Record computing the shares of `nbytes` from the address `src` on."""

    def combined(self, shares: memoryview) -> str:
        """Return the checksum that the shares make."""


class LayerChecksums:
    """Computes the checksums of destinations; one caller at a time. Close it, which waits for what was submitted.

    The kernel runs on the transfer queue where that can compute, else on the compute queue. It is submitted, and its
    memory allocated, in a thread: while the driver holds that up, the event loop reads on.
    """

    def __init__(
        self,
        device: Device,
        places: Mapping[str, ArenaSlice],
        sizes: Mapping[str, int],
        kernel: ChecksumKernel,
    ) -> None:
        self._device = device
        self._places = places
        self._sizes = sizes
        self._kernel = kernel
        self._queue = device.transfer if device.transfer.has_compute else device.compute
        self._pool: CommandPool | None = None
        self._commands: CommandBuffer | None = None
        self._shares: Buffer | None = None
        self._submitted = 0

    async def checksums(self, names: Sequence[str], waits: Sequence[tuple[Timeline, int]] = ()) -> dict[str, str]:
        """Return the checksums of what the destinations hold once `waits` are reached.

        Raises:
            OutOfMemoryError: there is no room for the shares.
            DeviceLostError: the device is lost.
        """
        if self._pool is None:
            await asyncio.to_thread(self._kernel.prepare)
        ends = list(accumulate(self._kernel.share_bytes(self._sizes[name]) for name in names))
        starts = [0, *ends[:-1]]
        view = await run_to_end(lambda: self._submit(names, starts, ends[-1], waits))
        await self._queue.timeline.reached(self._submitted)
        return {
            name: self._kernel.combined(view[start:stop]) for name, start, stop in zip(names, starts, ends, strict=True)
        }

    async def close(self) -> None:
        """Wait for the device, and free what there is, in a thread."""
        await run_to_end(self._free)

    def _free(self) -> None:
        if self._submitted:
            with contextlib.suppress(DeviceError):  # a lost device runs nothing any more
                self._queue.timeline.wait(self._submitted)
        pool, self._pool, self._commands = self._pool, None, None
        if pool is not None:
            pool.close()
        shares, self._shares = self._shares, None
        if shares is not None:
            shares.close()

    def _submit(
        self, names: Sequence[str], starts: Sequence[int], nbytes: int, waits: Sequence[tuple[Timeline, int]]
    ) -> memoryview:
        """Submit the computation; return the memory that will have the shares, each name's from its start on."""
        if self._pool is None:
            self._pool = CommandPool(self._device, self._queue)
        shares = self._room_for(nbytes)
        recorder = self._pool.recorder(self._commands)
        for name, start in zip(names, starts, strict=True):
            address = self._places[name].address
            self._kernel.record(recorder, src=address, nbytes=self._sizes[name], shares=shares.address + start)
        recorder.host_barrier()
        self._commands = recorder.end()
        others = [(timeline, value) for timeline, value in waits if timeline is not self._queue.timeline]
        self._submitted = self._queue.submit([self._commands], waits=others)
        assert shares.mapped is not None, "staging memory is mapped"
        return shares.mapped

    def _room_for(self, nbytes: int) -> Buffer:
        """Return memory for the shares; nothing on the device uses what there was before."""
        if self._shares is None or self._shares.nbytes < nbytes:
            if self._shares is not None:
                self._shares.close()
                self._shares = None
            self._shares = self._device.memory.allocate(nbytes, MemoryKind.STAGING, name="checksums")
        return self._shares
