"""Copies of blocks between the KV cache and the host's memory, in the order of the queue that runs the steps.

That order is all that guards a block: a step that was submitted before a copy has done with it, and one that is
submitted after it finds the copy done. No step waits on the host for one.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.errors import DeviceError
from unicorn_async.gpu.command import CommandPool, TimestampPool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.memory import Buffer
    from unicorn_async.gpu.queue import CommandBuffer
    from unicorn_async.kv_store.block_places import BlockPlaces
    from unicorn_async.kv_store.slot_memory import SlotMemory
    from unicorn_async.scheduler.kept_prefixes import BlockCopy


class CopyLane:
    """One copy at a time, of as many blocks as are wanted, in one direction; the event loop alone uses it."""

    def __init__(self, device: Device, places: BlockPlaces, slots: SlotMemory, *, to_host: bool) -> None:
        self._queue = device.compute
        self._places = places
        self._slots = slots
        self._to_host = to_host
        self._value = 0
        with contextlib.ExitStack() as made:
            self._commands_pool = CommandPool(device, device.compute)
            made.callback(self._commands_pool.close)
            self._timestamps = TimestampPool(device, 2)
            made.callback(self._timestamps.close)
            self._made = made.pop_all()
        self._commands: CommandBuffer | None = None

    def submit(self, copies: Sequence[BlockCopy]) -> None:
        """Submit the copies of blocks; `done` says when the next ones may be.

        Raises:
            DeviceLostError: the device is lost.
            OutOfMemoryError: the driver ran out of memory.
        """
        recorder = self._commands_pool.recorder(self._commands)
        recorder.timestamp(self._timestamps, 0)
        recorder.barrier()
        for (device, host), regions in self._regions(copies).items():
            if self._to_host:
                recorder.copy_regions(device, host, np.concatenate(regions))
            else:
                recorder.copy_regions(host, device, np.concatenate(regions)[:, [1, 0, 2]])
        recorder.barrier()
        recorder.host_barrier()
        recorder.timestamp(self._timestamps, 1)
        self._commands = recorder.end()
        self._value = self._queue.submit([self._commands])

    async def done(self) -> float:
        """Wait until what was submitted is done; returns how many seconds the device took for it."""
        await self._queue.timeline.reached(self._value)
        start, stop = self._timestamps.read(0, 2)
        return (stop - start) * 1e-9

    def close(self) -> None:
        """Wait for the last copy, and free everything."""
        with contextlib.suppress(DeviceError):  # a lost device runs nothing any more
            self._queue.timeline.wait(self._value)
        self._made.close()

    def _regions(self, copies: Sequence[BlockCopy]) -> dict[tuple[Buffer, Buffer], list[NDArray[np.uint64]]]:
        """Return what is copied between which buffers: (parts, 3), where in the device's, in the host's, and bytes."""
        found: dict[tuple[Buffer, Buffer], list[NDArray[np.uint64]]] = {}
        for copy in copies:
            host, offset = self._slots.place(copy.name.group, copy.slot)
            for device, parts in self._places.parts(copy.name.group, copy.block):
                sizes = parts[:, 1]
                behind = np.cumsum(sizes)
                regions = np.stack([parts[:, 0], np.uint64(offset) + behind - sizes, sizes], axis=1)
                found.setdefault((device, host), []).append(regions)
                offset += int(behind[-1])
        return found
