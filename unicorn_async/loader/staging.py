"""A bounded ring of mapped memory between the files and the device."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unicorn_async.gpu.memory import MemoryKind

if TYPE_CHECKING:
    from unicorn_async.gpu.command import CommandBuffer
    from unicorn_async.gpu.memory import Buffer, Memory
    from unicorn_async.gpu.queue import Queue
    from unicorn_async.gpu.timeline import Timeline


@dataclass(eq=False, slots=True)
class StagingSlot:
    """One slot: its buffer, and the submission that read it last.

    `commands` are command buffers to record anew, by queue; they are not pending once the slot is acquired.
    """

    buffer: Buffer
    used: tuple[Timeline, int] | None = None
    commands: dict[Queue, CommandBuffer] = field(default_factory=dict)

    def view(self, nbytes: int) -> memoryview:
        """Return the first `nbytes` of the slot for the CPU to fill."""
        mapped = self.buffer.mapped
        assert mapped is not None, "staging memory is mapped"
        return mapped[:nbytes]


class StagingRing:
    """Hands out slots; who finds none free waits for the device to be done with the one that was used first.

    It owns the slots' memory until `close`.

    Raises:
        OutOfMemoryError: the slots do not fit.
    """

    def __init__(self, memory: Memory, *, num_slots: int, slot_bytes: int) -> None:
        self._memory = memory
        self._slots: list[StagingSlot] = []
        self._free: asyncio.Queue[StagingSlot] = asyncio.Queue()
        try:
            for index in range(num_slots):
                buffer = memory.allocate(slot_bytes, MemoryKind.STAGING, name=f"staging[{index}]")
                self._slots.append(StagingSlot(buffer))
                self._free.put_nowait(self._slots[-1])
        except BaseException:
            self.close()
            raise

    @property
    def num_free(self) -> int:
        """Slots that are not held, though the device may still read them."""
        return self._free.qsize()

    async def acquire(self) -> StagingSlot:
        """Return a slot that the device does not use; cancelling leaves it in the ring.

        Raises:
            DeviceLostError: the device is lost.
        """
        slot = await self._free.get()
        try:
            if slot.used is not None:
                await slot.used[0].reached(slot.used[1])
        except BaseException:
            self._free.put_nowait(slot)
            raise
        return slot

    def release(self, slot: StagingSlot, timeline: Timeline, value: int) -> None:
        """Give a slot back; it is free once `timeline` has reached `value`."""
        slot.used = (timeline, value)
        self._free.put_nowait(slot)

    def close(self) -> None:
        """Free the memory, each slot's once the device is done with it; no thread may still write to a slot."""
        slots, self._slots = self._slots, []
        for slot in slots:
            if slot.used is None:
                slot.buffer.close()
            else:
                self._memory.release(slot.buffer, timeline=slot.used[0], value=slot.used[1])
        self._memory.collect()
