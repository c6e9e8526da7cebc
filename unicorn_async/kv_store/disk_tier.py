"""The disk beside the host's slots: what is written there and read back, and what happens when it fails."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from itertools import takewhile
from threading import Event
from typing import TYPE_CHECKING, TypeVar

from unicorn_async.errors import CacheError, CheckpointError
from unicorn_async.kv_store.disk_folder import is_own_lack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from unicorn_async.kv_store.disk_folder import DiskFolder
    from unicorn_async.kv_store.store import KVStore
    from unicorn_async.scheduler.fetch_costs import FetchCosts
    from unicorn_async.scheduler.kept_blocks import BlockName

PATIENCE_S = 10.0  # with a disk that does not answer
_PAUSE_S = 60.0  # behind a write that failed
_AGAIN_S, _MOST_AGAIN_S = 5.0, 60.0  # between two tries to open the folder, at first and at last
_OPENING, _READING, _WRITING = "opening the disk's folder", "reading a block", "writing a block"
_TRIMMING, _KEEPING = "removing blocks beyond the limit", "keeping the disk's folder"
_EXPECTED = (OSError, CheckpointError, MemoryError)
T = TypeVar("T")


class DiskTier:
    """Reads and writes in threads, for whom nobody waits longer than `patience_s`; no failure is anybody's error."""

    def __init__(self, store: KVStore, costs: FetchCosts, block_size: int, *, patience_s: float = PATIENCE_S) -> None:
        self._store = store
        self._kept = store.kept
        self._costs = costs
        self._block_size = block_size
        self.patience_s = patience_s
        # What is to be done in this order: blocks to write, with their slots, pinned; uses to note, without.
        self._queue: dict[tuple[BlockName, int | None], None] = {}
        self._excess: dict[BlockName, int] = {}  # what an earlier start has left beyond this one's limit
        self._writing: asyncio.Future[int] | None = None  # the first of them
        self._leaving: dict[BlockName, int] = {}  # what goes for it, until it has gone
        self._num_stuck = 0  # reads and writes that take longer
        self._paused_until = 0.0
        self._is_lost = asyncio.Event()  # the folder, which was open
        self._late: set[asyncio.Task[None]] = set()  # looks at reads that were given up
        self.wake = asyncio.Event()  # there is something to write

    @property
    def is_on(self) -> bool:
        """Whether blocks may be read."""
        return self._store.folder is not None and not self._num_stuck

    @property
    def takes_blocks(self) -> bool:
        """Whether blocks may be written."""
        return self.is_on and time.monotonic() >= self._paused_until

    async def open(self) -> None:
        """Find what is there, where there is to be a disk."""
        await self._try_open()
        self._store.is_settled.set()

    async def keep_open(self) -> None:
        """Open the folder again, now and whenever it is lost, until cancelled."""
        while True:
            await self.open_again()
            await self._is_lost.wait()
            self._is_lost.clear()

    def end(self) -> None:
        """Look no more at what was given up: threads that are closed leave some of it out."""
        for late in self._late:
            late.cancel()

    async def open_again(self) -> None:
        """Try again now and then, until what was not to be had is: who has the folder may leave it."""
        delay_s = _AGAIN_S
        while self._store.has_disk and self._store.folder is None:
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _MOST_AGAIN_S)
            if not self._num_stuck:
                await self._try_open()

    async def _try_open(self) -> None:
        if not self._store.has_disk:
            return
        try:
            self._store.threads.start()
        except CacheError as exc:
            self._off(exc)
        else:
            await self._open_folder()

    async def _open_folder(self) -> None:
        opening = self._store.threads.begin(_OPENING, self._store.open_disk)
        await self._wait([opening])
        if opening.done():
            self._end_open(opening)
        else:
            opening.add_done_callback(self._end_open)

    def _end_open(self, opening: asyncio.Future[dict[BlockName, int]]) -> None:
        try:
            found = opening.result()
        except _EXPECTED as exc:
            self._off(exc)
        else:
            self._store.counters.disk = "on"
            self._find(found)

    def _find(self, found: Mapping[BlockName, int]) -> None:
        self._kept.find_on_disk(found)
        self._excess = self._kept.make_room_on_disk(0) or {}
        self.wake.set()

    def _off(self, error: BaseException) -> None:
        before, self._store.counters.disk = self._store.counters.disk, f"off: {_reason(error)}"
        if self._store.counters.disk != before:  # the same again is no other failure
            self._store.failed(_OPENING, _reason(error))

    def _find_anew(self, folder: DiskFolder) -> None:
        """Forget what was in a folder that somebody took away."""
        found = folder.found_anew()
        if found is not None:
            self._leaving = {}
            self._find(found)
            self._store.failed(_KEEPING, "it was taken away, and made anew")

    def _lose(self, error: BaseException) -> None:
        """Forget a folder that somebody took away and that can't be had anew, and all that was in it."""
        self._store.folder = None
        self._leaving = {}
        self._find({})
        self._store.counters.disk = f"off: {_reason(error)}"
        self._store.failed(_KEEPING, _reason(error))
        self._is_lost.set()

    def offer(self, name: BlockName, num_blocks: int = 1) -> None:
        """Have a block written that is in a slot, if that may be read back faster than it is computed.

        A state of fixed size is computed with all blocks of its text, `num_blocks`. One that waits already is used.
        """
        if (name, self._kept.slots[name.group].find(name.key)) in self._queue:
            self.use([name])
            return
        if not self.takes_blocks or self._kept.is_on_disk(name):
            return
        if self._costs.disk_pays(num_blocks * self._block_size, self._kept.block_nbytes[name.group]):
            self._queue[name, self._kept.await_writing(name)] = None
            self.wake.set()

    def use(self, names: Iterable[BlockName]) -> None:
        """Note in the files of blocks that they were used, one after the other, behind what is to be written so far."""
        for name in names:
            if self._kept.is_on_disk(name) or (name, self._kept.slots[name.group].find(name.key)) in self._queue:
                self._queue.pop((name, None), None)
                self._queue[name, None] = None
                self.wake.set()

    async def write_next(self) -> bool:
        """Do what comes next: remove what is too much, note uses, or write a block; returns whether there was any.

        What a caller has begun who was cancelled is waited for, and not begun once more.
        """
        if self._excess:
            await self._remove_excess()
            return True
        if not self._queue:
            return False
        name, slot = next(iter(self._queue))
        if slot is None:
            await self._note_uses()
            return True
        if self._writing is None and self.takes_blocks:
            self._writing = self._begin_write(name, slot)
        if self._writing is not None:
            await self._wait([self._writing])
            await asyncio.wait([self._writing])  # however long it takes, the slot is in use
            written, self._writing = self._writing, None
            self._end_write(name, written)
        del self._queue[name, slot]
        self._kept.end_writing(name, slot)
        return True

    async def _remove_excess(self) -> None:
        folder = self._store.folder
        assert folder is not None, "it was found there"
        excess, self._excess = self._excess, {}
        removing = self._store.threads.begin(_TRIMMING, partial(folder.remove, excess))
        await self._wait([removing])
        error = removing.exception() if removing.done() else None
        if error is not None:
            self._kept.stay_on_disk(excess)
            self._store.failed(_TRIMMING, _reason(error))

    async def _note_uses(self) -> None:
        """Note the uses that come before the next block that is to be written."""
        noted = list(takewhile(lambda entry: entry[1] is None, self._queue))
        for entry in noted:
            del self._queue[entry]
        names = [name for name, _ in noted if self._kept.is_on_disk(name)]
        self._kept.use_on_disk(names)
        folder = self._store.folder
        if names and self.is_on and folder is not None:
            noting = self._store.threads.begin("noting the use of blocks", partial(folder.used, names))
            await self._wait([noting])
            self._find_anew(folder)
            error = noting.exception() if noting.done() else None
            if isinstance(error, _EXPECTED) and not folder.is_open:
                self._lose(error)

    def _begin_write(self, name: BlockName, slot: int) -> asyncio.Future[int] | None:
        """Have a thread write a block, and remove others for it; None where there is no room for it."""
        needed = self._store.file_nbytes(name.group)
        gone = self._kept.make_room_on_disk(needed)
        if gone is None:
            self._store.failed(_WRITING, f"{needed} bytes needed, {self._kept.disk_limit} are allowed")
            return None
        folder = self._store.folder
        assert folder is not None, "the disk is on"
        self._leaving = gone

        def write() -> int:
            data = self._store.slots.copy_out(name.group, slot)
            folder.remove(gone)
            self._leaving = {}
            return folder.write(name, data)

        return self._store.threads.begin(_WRITING, write)

    def _end_write(self, name: BlockName, written: asyncio.Future[int]) -> None:
        folder = self._store.folder
        assert folder is not None, "it was written there"
        self._find_anew(folder)
        try:
            nbytes = written.result()
        except _EXPECTED as exc:
            if not folder.is_open:
                self._lose(exc)
                return
            self._kept.stay_on_disk(self._leaving)
            self._paused_until = time.monotonic() + _PAUSE_S
            self._store.failed(_WRITING, _reason(exc))
        else:
            self._kept.add_to_disk(name, nbytes)
            self._store.counters.written_blocks += 1

    async def read(self, wanted: Sequence[tuple[BlockName, int]], until_s: float) -> bool:
        """Read blocks into slots, which are pinned; returns whether all have come. Those that have are known.

        What has not come by the monotonic clock's `until_s` is given up, and not begun any more.
        """
        folder = self._store.folder
        assert folder is not None, "the disk is on"
        started, nbytes, have_all_come = time.perf_counter(), 0, True
        reads, given_up = {}, Event()
        for name, slot in wanted:
            reading = partial(self._read, folder, name, slot, given_up)
            reads[self._store.threads.begin(_READING, reading)] = name, slot
            self._kept.slots[name.group].pin(slot)
        for future, (name, slot) in reads.items():
            future.add_done_callback(partial(self._release, name.group, slot))
        await self._wait_for_reads(list(reads), until_s)
        given_up.set()
        for future, (name, slot) in reads.items():
            if not future.done():
                have_all_come = False
                future.add_done_callback(partial(self._end_late_read, folder, name))
                continue
            error = future.exception()
            if error is None:
                self._kept.slots[name.group].fill(slot, name.key)
                nbytes += self._kept.block_nbytes[name.group]
                self._store.counters.read_blocks += 1
            elif isinstance(error, _EXPECTED):
                have_all_come = False
                self._drop(folder, name, error)
                self._store.failed(_READING, _reason(error))
            else:
                raise error
        self._costs.read.observe(nbytes, time.perf_counter() - started)
        return have_all_come

    def _end_late_read(self, folder: DiskFolder, name: BlockName, reading: asyncio.Future[None]) -> None:
        """Forget what was given up and can't be read after all; the end may be why, and nobody is told of it."""
        error = None if reading.cancelled() else reading.exception()
        if isinstance(error, _EXPECTED):
            self._drop(folder, name, error)

    def _drop(self, folder: DiskFolder, name: BlockName, error: BaseException) -> None:
        """Forget a block whose file was removed when it could not be read; another folder's may be there yet."""
        if folder is self._store.folder and not is_own_lack(error):
            self._kept.drop_from_disk(name)

    def _read(self, folder: DiskFolder, name: BlockName, slot: int, given_up: Event) -> None:
        if given_up.is_set():
            return
        data = memoryview(bytearray(self._kept.block_nbytes[name.group]))
        folder.read(name, data)
        self._store.slots.copy_in(name.group, slot, data)

    async def _wait(self, futures: Sequence[asyncio.Future[T]]) -> None:
        """Wait with patience; what takes longer keeps the disk off until it is done."""
        await asyncio.wait(futures, timeout=self.patience_s)
        self._stick(futures)

    async def _wait_for_reads(self, reads: Sequence[asyncio.Future[T]], until_s: float) -> None:
        """Wait as long as some come, until `until_s`; what a disk has not read long behind that keeps it off, too."""
        pending, since_s = set(reads), time.monotonic()
        while pending:
            left_s = until_s - time.monotonic()
            done, pending = await asyncio.wait(pending, timeout=max(min(left_s, self.patience_s), 0.0))
            if done:
                since_s = time.monotonic()
            silent_s = time.monotonic() - since_s
            if silent_s >= self.patience_s:
                self._stick(reads)
                return
            if pending and time.monotonic() >= until_s:
                late = asyncio.create_task(self._wait_late(pending, self.patience_s - silent_s))
                self._late.add(late)
                late.add_done_callback(self._late.discard)
                return

    async def _wait_late(self, reads: Iterable[asyncio.Future[T]], left_s: float) -> None:
        await asyncio.wait(reads, timeout=left_s)
        self._stick(reads)

    def _stick(self, futures: Iterable[asyncio.Future[T]]) -> None:
        """Keep the disk off until what is not done yet is done."""
        pending = [future for future in futures if not future.done()]
        if pending:
            problem = f"no answer within {self.patience_s:g} s"
            self._store.failed("waiting for the disk", problem)
            self._store.counters.disk = f"off: {problem}"
        for future in pending:
            self._num_stuck += 1
            future.add_done_callback(self._unstick)

    def _unstick(self, future: asyncio.Future[T]) -> None:
        del future
        self._num_stuck -= 1
        if self.is_on:
            self._store.counters.disk = "on"

    def _release(self, group: int, slot: int, future: asyncio.Future[None]) -> None:
        del future
        self._kept.slots[group].release(slot)


def _reason(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
