"""Keeps blocks that nobody has outside the device's memory, and brings them back to it, beside the steps."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

from unicorn_async.background import wait_to_end
from unicorn_async.errors import CacheError, DeviceError, OutOfMemoryError
from unicorn_async.kv_store.disk_tier import DiskTier
from unicorn_async.kv_store.restore_pace import RestorePace
from unicorn_async.scheduler.kept_prefixes import MOST_COPIES, BlockCopy

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.kv_store.block_copies import CopyLane
    from unicorn_async.kv_store.store import KVStore
    from unicorn_async.scheduler.kept_blocks import BlockName
    from unicorn_async.scheduler.kept_prefixes import Restore
    from unicorn_async.scheduler.scheduler import Scheduler

_COPY_BYTES = 32 << 20  # at a time: for so long a step may wait for it
_FLUSH_S = 2.0  # for the disk, at the end


class BlockKeeper:
    """Saves what sequences leave, before it is lost, and restores what others wait for, one sequence at a time.

    Copies are submitted between two steps, or before one that is scheduled: what such a step reads or writes has a
    user, who is in it, and is in no copy. See `CopyLane` for what the order guards.
    """

    def __init__(self, store: KVStore, scheduler: Scheduler, block_size: int) -> None:
        assert scheduler.kept_prefixes is not None, "it was made for the store"
        self._store = store
        self._kept = store.kept
        self._scheduler = scheduler
        self._prefixes = scheduler.kept_prefixes
        self._counters = store.counters
        self.disk = DiskTier(store, self._prefixes.costs, block_size)
        self._wakes = (asyncio.Event(), asyncio.Event())
        self._opened = asyncio.Event()
        self._in_copy: list[BlockCopy] = []  # to the host, and submitted
        self._growing = asyncio.Lock()
        self._has_room = True  # for more of the host's memory
        self._on_change: Callable[[], None] = lambda: None

    def open(self) -> None:
        """Bring blocks back from now on: the load is over."""
        self._prefixes.is_open = True
        self._opened.set()

    def wake(self) -> None:
        """Look whether there is something to do."""
        for wake in self._wakes:
            wake.set()

    async def run(self, on_change: Callable[[], None]) -> None:
        """Run until cancelled; `on_change` is called when a sequence may go on.

        Raises:
            DeviceLostError: the device was lost.
        """
        self._on_change = on_change
        try:
            await self._opened.wait()  # a load is not to share its disk, nor its memory
            await self.disk.open()
            async with asyncio.TaskGroup() as group:
                group.create_task(self.disk.keep_open(), name="open the disk's folder")
                group.create_task(self._save_all(), name="save blocks")
                group.create_task(self._write_all(), name="write blocks")
                group.create_task(self._restore_all(), name="restore blocks")
        finally:
            self.disk.end()
            if self.disk.is_on:
                await self._flush()

    async def _flush(self) -> None:
        """Write what is left, as far as a moment allows: a later start finds it."""
        with contextlib.suppress(TimeoutError, DeviceError, OutOfMemoryError):
            async with asyncio.timeout(_FLUSH_S):
                while await self._save_some() or await self.disk.write_next():
                    pass

    async def _save_all(self) -> None:
        while True:
            await self._wakes[0].wait()
            self._wakes[0].clear()
            while await self._save_some():
                pass

    async def _save_some(self) -> bool:
        """Copy some blocks to the host; returns whether there were any."""
        if not self._in_copy:
            await self._grow()
            copies, used, unwritten = self._prefixes.take_released(_COPY_BYTES, wants_disk=self.disk.takes_blocks)
            self._note_left(used, unwritten)
            if not copies or not self._submit(self._store.saving, copies):
                self._release(copies)
                return bool(unwritten)
            self._in_copy = copies
        await self._store.saving.done()
        copies, self._in_copy = self._in_copy, []
        for copy in copies:
            name, slots = copy.name, self._kept.slots[copy.name.group]
            slots.fill(copy.slot, name.key)
            slots.release(copy.slot)
            self._counters.stored_blocks += 1
            self._counters.stored_bytes += self._kept.block_nbytes[name.group]
            self.disk.offer(name, copy.num_blocks)
        return True

    async def _grow(self) -> None:
        """Allocate more of the host's memory, where a group has none left that is free."""
        async with self._growing:
            for group, slots in enumerate(self._kept.slots):
                if not self._has_room or slots.has_free or self._store.slots.is_complete(group):
                    continue
                try:
                    self._store.growing.start()
                    growth = self._store.growing.begin("allocating", partial(self._store.slots.grow, group))
                    await wait_to_end(growth)
                    slots.add(growth.result())
                except (OutOfMemoryError, MemoryError, CacheError) as exc:
                    self._has_room = False
                    self._store.failed("allocating the host's memory", str(exc) or type(exc).__name__)

    async def _write_all(self) -> None:
        while True:
            await self.disk.wake.wait()
            self.disk.wake.clear()
            while await self.disk.write_next():
                self._wakes[0].set()  # more may wait for the disk now

    async def _restore_all(self) -> None:
        while True:
            await self._wakes[1].wait()
            self._wakes[1].clear()
            while self._prefixes.restores:
                restore = self._prefixes.restores.popleft()
                await self._grow()
                if await self._restore(restore):
                    self._prefixes.end_restore(restore)
                else:
                    self._scheduler.restore_failed(restore)
                self._on_change()

    async def _restore(self, restore: Restore) -> bool:
        """Bring blocks back part by part; returns whether all have come that are still waited for."""
        names = [name for name, _ in reversed(restore.lacking)]
        try:
            return await self._restore_parts(restore)
        finally:
            self._note_use(names)

    async def _restore_parts(self, restore: Restore) -> bool:
        if not restore.is_cancelled and not self._prefixes.pays_yet(restore):
            self._prefixes.compute_rest(restore)
            return False
        pace = RestorePace(self._prefixes.costs, restore.num_tokens, self.disk.patience_s)
        while restore.lacking and not restore.is_cancelled:
            copies, to_read = self._next_part(restore)
            if not copies:
                return False
            have_come = not to_read or await self._read(to_read, pace)
            come = copies if have_come else list(takewhile(self._is_in_slot, copies))
            if come and not restore.is_cancelled:
                have_come &= await self._copy_back(come)
            self._release(copies)
            if to_read and not restore.is_cancelled and self._is_too_slow(restore, pace, have_come=have_come):
                pace.give_up(self._kept.block_nbytes[to_read[0][0].group])
                self._prefixes.compute_rest(restore)
                return False
            if not have_come:
                return False
        return True

    async def _read(self, to_read: list[tuple[BlockName, int]], pace: RestorePace) -> bool:
        """Read blocks into their slots as long as there is patience; returns whether all have come."""
        started_s = time.monotonic()
        have_come = await self.disk.read(to_read, pace.until_s)
        come = [name.group for name, slot in to_read if self._kept.slots[name.group].find(name.key) == slot]
        pace.note(sum(map(self._kept.block_nbytes.__getitem__, come)), time.monotonic() - started_s)
        return have_come

    def _is_in_slot(self, copy: BlockCopy) -> bool:
        return self._kept.slots[copy.name.group].find(copy.name.key) == copy.slot

    def _is_too_slow(self, restore: Restore, pace: RestorePace, *, have_come: bool) -> bool:
        """Whether the rest is computed before the disk has read it; what has failed may be tried once more."""
        if not have_come or not restore.lacking:
            return not have_come and pace.is_over
        return not pace.pays_to_go_on(self._prefixes.tokens_left(restore), *self._prefixes.bytes_left(restore))

    async def _copy_back(self, copies: list[BlockCopy]) -> bool:
        """Copy blocks to the device, whose next steps find them there; returns whether that could be submitted."""
        if not self._submit(self._store.restoring, copies):
            return False
        self._prefixes.arrive(copies)
        nbytes = sum(self._kept.block_nbytes[copy.name.group] for copy in copies)
        self._prefixes.costs.copied.observe(nbytes, await self._store.restoring.done())
        self._counters.restored_blocks += len(copies)
        self._counters.restored_bytes += nbytes
        return True

    def _submit(self, lane: CopyLane, copies: list[BlockCopy]) -> bool:
        """Submit copies, if there is the memory for it; who wants them goes without otherwise."""
        try:
            lane.submit(copies)
        except (OutOfMemoryError, MemoryError) as exc:
            self._store.failed("copying blocks", str(exc) or type(exc).__name__)
            return False
        return True

    def _note_use(self, names: list[BlockName]) -> None:
        """Note that blocks were used, the last of their text first."""
        self._kept.use_in_slots(names)
        self.disk.use(names)

    def _note_left(self, used: list[BlockName], unwritten: list[BlockCopy]) -> None:
        """Note that blocks were used, and have those of them written that the disk lacks, in this order."""
        self._kept.use_in_slots(used)
        lacking = {copy.name: copy.num_blocks for copy in unwritten}
        for name in used:
            if name in lacking:
                self.disk.offer(name, lacking[name])
            else:
                self.disk.use([name])
        self._release(unwritten)

    def _release(self, copies: list[BlockCopy]) -> None:
        for copy in copies:
            self._kept.slots[copy.name.group].release(copy.slot)

    def _next_part(self, restore: Restore) -> tuple[list[BlockCopy], list[tuple[BlockName, int]]]:
        """Take the next blocks off what is lacking; their slots are pinned, and some of them to be read first.

        There are none where the first one is gone meanwhile.
        """
        copies: list[BlockCopy] = []
        to_read: list[tuple[BlockName, int]] = []
        nbytes = 0
        while restore.lacking and nbytes < _COPY_BYTES and len(copies) < MOST_COPIES:
            name, block = restore.lacking[0]
            slots = self._kept.slots[name.group]
            if slots.find(name.key) is not None:
                slot: int | None = slots.hold(name.key)
            elif self.disk.is_on and self._kept.is_on_disk(name):
                slot = slots.take()
                to_read += [] if slot is None else [(name, slot)]
            else:
                slot = None
            if slot is None:
                break
            copies.append(BlockCopy(name, block, slot))
            nbytes += self._kept.block_nbytes[name.group]
            restore.lacking.popleft()
        return copies, to_read
