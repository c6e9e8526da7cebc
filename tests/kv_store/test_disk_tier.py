"""Who reads and writes waits no longer than its patience lasts, and nothing that the disk still has is in use twice."""

from __future__ import annotations

import asyncio
import errno
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.threads import allow_threads
from unicorn_async.daemon_threads import DaemonThreads
from unicorn_async.errors import CacheError
from unicorn_async.kv_store.block_file import file_nbytes
from unicorn_async.kv_store.disk_tier import DiskTier
from unicorn_async.scheduler.fetch_costs import FetchCosts

from .test_keeper import keeper_of
from .toy_store import NAMES, NBYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unicorn_async.scheduler.kept_blocks import BlockName

    from .toy_store import ToyStore

FOREVER = float("inf")


def tier_of(store: ToyStore, patience_s: float = 60.0) -> DiskTier:
    return DiskTier(cast("Any", store), FetchCosts(), 16, patience_s=patience_s)


async def write_all(store: ToyStore, tier: DiskTier, names: Iterable[BlockName]) -> None:
    for name in names:
        store.save(name)
        tier.offer(name)
        while await tier.write_next():
            pass


async def test_the_blocks_used_longest_ago_go_first(store: ToyStore) -> None:
    await write_all(store, tier_of(store), NAMES[:5])
    assert list(store.folder.files) == NAMES[2:5]
    assert store.kept.disk_bytes == 3 * file_nbytes(NBYTES)
    assert store.problems == []


async def test_what_a_start_finds_beyond_its_limit_is_removed(store: ToyStore) -> None:
    size = file_nbytes(NBYTES)
    store.folder.files = dict.fromkeys(NAMES[:5], b"")
    store.folder.noted = NAMES[:5]
    store.open_disk = lambda: dict.fromkeys(NAMES[:5], size)
    tier = tier_of(store)
    await tier.open()
    assert (store.kept.num_on_disk, store.kept.disk_bytes) == (3, 3 * size)
    assert tier.wake.is_set()
    assert await tier.write_next()
    assert list(store.folder.files) == NAMES[2:5]
    assert not await tier.write_next()


async def test_what_can_not_be_removed_at_the_start_is_told_and_holds_nobody_up(
    store: ToyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(names: Iterable[BlockName]) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(store.folder, "remove", refuse)
    store.open_disk = lambda: dict.fromkeys(NAMES[:4], file_nbytes(NBYTES))
    tier = tier_of(store)
    await tier.open()
    assert await tier.write_next()
    assert tier.takes_blocks
    assert store.problems == ["removing blocks beyond the limit: Permission denied"]
    assert store.kept.disk_bytes == 4 * file_nbytes(NBYTES)
    await write_all(store, tier, NAMES[4:5])  # for which one of them would have to go
    assert store.problems[1:] == ["writing a block: Permission denied"]
    assert store.kept.disk_bytes == 4 * file_nbytes(NBYTES) and not store.kept.is_on_disk(NAMES[4])


async def test_a_limit_without_room_for_a_block_is_told(store: ToyStore) -> None:
    store.kept.disk_limit = 10
    await write_all(store, tier_of(store), NAMES[:1])
    assert store.problems == [f"writing a block: {file_nbytes(NBYTES)} bytes needed, 10 are allowed"]
    assert not store.kept.slots[0]._pins


async def test_a_block_for_whose_copy_the_host_has_no_memory_is_neither_written_nor_read(
    store: ToyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    tier = tier_of(store)
    await write_all(store, tier, NAMES[:1])
    monkeypatch.setattr(store, "copy_in", refuse)
    monkeypatch.setattr(store, "copy_out", refuse)
    slot = store.kept.slots[0].take()
    assert slot is not None
    assert not await tier.read([(NAMES[0], slot)], FOREVER)
    await write_all(store, tier, NAMES[1:2])
    assert store.problems == ["reading a block: MemoryError", "writing a block: MemoryError"]
    assert tier.is_on and not tier.takes_blocks  # for a while


async def test_who_waits_for_a_disk_that_does_not_answer_goes_on_and_the_disk_comes_back(store: ToyStore) -> None:
    await write_all(store, tier_of(store), NAMES[:1])
    tier = tier_of(store, patience_s=0.001)
    for name in NAMES[1:5]:  # the slot of the first one is another's
        store.save(name)
    store.folder.answers.clear()
    slots = store.kept.slots[0]
    slot = slots.take()
    assert slot is not None
    assert not await tier.read([(NAMES[0], slot)], FOREVER)
    slots.release(slot)
    assert not tier.is_on
    assert slot not in {slots.take() for _ in range(3)}  # the disk may still write to it
    assert store.problems == ["waiting for the disk: no answer within 0.001 s"]
    assert store.counters.disk == "off: no answer within 0.001 s"
    store.folder.answers.set()
    assert await asyncio.to_thread(store.threads.close, 120) == []
    await asyncio.sleep(0)  # what the threads have left to the loop
    await asyncio.sleep(0)
    assert tier.is_on
    assert store.counters.disk == "on"
    assert slots.take() == slot


class HastyTier(DiskTier):
    """Gives reads up as soon as one of them was begun."""

    async def _wait_for_reads(self, reads: Sequence[asyncio.Future[Any]], until_s: float) -> None:
        assert await asyncio.to_thread(self._store.folder.is_read.wait, 60)  # type: ignore[union-attr]
        await super()._wait_for_reads(reads, 0.0)


async def test_what_has_not_come_in_time_is_given_up_and_not_begun_any_more(store: ToyStore) -> None:
    tier = HastyTier(cast("Any", store), FetchCosts(), 16, patience_s=60.0)
    await write_all(store, tier, NAMES[:3])
    slots = store.kept.slots[0]
    slots._known.clear()
    slots._filled.clear()
    slots.add(3)
    taken = [cast("int", slots.take()) for _ in range(3)]
    store.folder.answers.clear()
    assert not await tier.read(list(zip(NAMES, taken, strict=False)), FOREVER)
    for slot in taken:
        slots.release(slot)
    assert tier.is_on and store.problems == []
    assert len(slots._pins) == 3, "the disk may write to them yet"
    store.folder.answers.set()
    both = threading.Barrier(2)  # of the threads
    await asyncio.gather(*(store.threads.begin("the rest", both.wait) for _ in range(2)))
    assert 1 <= len(store.folder.read_names) <= 2
    assert not slots._pins


async def test_a_disk_that_does_not_answer_long_after_it_was_given_up_is_off(
    store: ToyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_told = asyncio.Event()
    monkeypatch.setattr(store, "failed", lambda *_: is_told.set())
    tier = HastyTier(cast("Any", store), FetchCosts(), 16, patience_s=0.01)
    await write_all(store, tier_of(store), NAMES[:1])
    store.folder.answers.clear()
    slot = store.kept.slots[0].take()
    assert slot is not None
    assert not await tier.read([(NAMES[0], slot)], FOREVER)
    await is_told.wait()
    assert not tier.is_on
    assert store.counters.disk == "off: no answer within 0.01 s"


async def test_what_was_given_up_and_can_not_be_read_later_is_forgotten(store: ToyStore) -> None:
    tier = HastyTier(cast("Any", store), FetchCosts(), 16, patience_s=60.0)
    await write_all(store, tier, NAMES[:2])
    store.folder.answers.clear()
    del store.folder.files[NAMES[0]]

    def gone(name: BlockName, into: memoryview) -> None:
        store.folder.is_read.set()
        store.folder.answers.wait()
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    store.folder.read = gone  # type: ignore[method-assign]
    slot = store.kept.slots[0].take()
    assert slot is not None
    assert not await tier.read([(NAMES[0], slot)], FOREVER)
    assert store.kept.is_on_disk(NAMES[0])
    store.folder.answers.set()
    (late,) = tier._late
    await asyncio.wait([late])
    assert not store.kept.is_on_disk(NAMES[0]) and store.kept.is_on_disk(NAMES[1])
    assert store.problems == []


async def test_behind_the_end_nobody_looks_at_reads_that_were_given_up(store: ToyStore) -> None:
    tier = HastyTier(cast("Any", store), FetchCosts(), 16, patience_s=600.0)
    await write_all(store, tier, NAMES[:1])
    store.folder.answers.clear()
    slot = store.kept.slots[0].take()
    assert slot is not None
    assert not await tier.read([(NAMES[0], slot)], FOREVER)
    (late,) = tier._late
    keeper = keeper_of(store)
    keeper.disk = tier
    running = asyncio.create_task(keeper.run(lambda: None))
    await asyncio.sleep(0)  # it has begun
    running.cancel()
    await asyncio.wait([running])
    assert late.cancelling()
    await asyncio.wait([late])
    assert tier.is_on and not tier._late and store.problems == []


async def test_what_the_disk_has_lost_is_forgotten_and_the_rest_is_known(store: ToyStore) -> None:
    tier = tier_of(store)
    await write_all(store, tier, NAMES[:2])
    store.kept.slots[0]._known.clear()
    store.kept.slots[0]._filled.clear()
    store.kept.slots[0].add(2)

    def gone(name: BlockName, into: memoryview) -> None:
        if name == NAMES[0]:
            raise FileNotFoundError(2, "No such file or directory", "/somewhere")
        into[:] = store.folder.files[name]

    store.folder.read = gone  # type: ignore[method-assign]
    wanted = [(name, cast("int", store.kept.slots[0].take())) for name in NAMES[:2]]
    assert not await tier.read(wanted, FOREVER)
    assert store.problems == ["reading a block: No such file or directory"]
    assert not store.kept.is_on_disk(NAMES[0])
    assert store.kept.slots[0].find(NAMES[1].key) == wanted[1][1]
    assert bytes(store.view(0, wanted[1][1])) == NAMES[1].key * 4


async def test_a_write_that_nobody_waits_for_any_more_is_not_begun_again(store: ToyStore) -> None:
    tier = tier_of(store)
    store.save(NAMES[0])
    tier.offer(NAMES[0])
    store.folder.answers.clear()
    writing = asyncio.create_task(tier.write_next())
    assert await asyncio.to_thread(store.folder.is_asked.wait, 60)
    writing.cancel()
    await asyncio.wait([writing])
    assert store.kept.slots[0]._pins, "the thread reads it"
    store.folder.answers.set()
    assert await tier.write_next()
    assert store.folder.asked == [NAMES[0]]
    assert store.kept.is_on_disk(NAMES[0])
    assert not store.kept.slots[0]._pins


async def test_a_system_without_threads_keeps_the_disk_off(store: ToyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    allow_threads(monkeypatch, 0)
    monkeypatch.setattr(store, "threads", DaemonThreads("disk", 4))
    tier = tier_of(store)
    await tier.open()
    assert store.is_settled.is_set()
    assert store.counters.disk == "off: disk: the system allows none of 4 threads"
    assert store.problems == ["opening the disk's folder: disk: the system allows none of 4 threads"]


async def test_a_folder_that_takes_long_to_open_holds_nobody_up_and_is_used_when_it_is_there(store: ToyStore) -> None:
    folder = store.folder
    store.folder = cast("Any", None)
    folder.answers.clear()

    def open_disk() -> dict[BlockName, int]:
        folder.answers.wait()
        store.folder = folder
        return {NAMES[0]: file_nbytes(NBYTES)}

    store.open_disk = open_disk
    tier = tier_of(store, patience_s=0.001)
    await tier.open()
    assert store.is_settled.is_set()
    assert not tier.is_on
    assert store.counters.disk == "off: no answer within 0.001 s"
    folder.answers.set()
    assert await asyncio.to_thread(store.threads.close, 120) == []
    await asyncio.sleep(0)  # what the threads have left to the loop
    await asyncio.sleep(0)
    assert tier.is_on
    assert store.counters.disk == "on"
    assert store.kept.is_on_disk(NAMES[0])


async def test_a_folder_that_could_not_be_had_is_opened_later(store: ToyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unicorn_async.kv_store.disk_tier._AGAIN_S", 0.001)
    folder, tries = store.folder, list[str]()
    store.folder = cast("Any", None)

    def open_disk() -> dict[BlockName, int]:
        tries.append(store.counters.disk)
        if len(tries) < 4:
            raise CacheError("another process keeps this model's blocks there")
        store.folder = folder
        return {NAMES[0]: file_nbytes(NBYTES)}

    store.open_disk = open_disk
    tier = tier_of(store)
    await tier.open()
    assert store.is_settled.is_set() and not tier.is_on
    await tier.open_again()
    assert tries == ["off", *["off: another process keeps this model's blocks there"] * 3]
    assert store.problems == ["opening the disk's folder: another process keeps this model's blocks there"]
    assert (tier.is_on, store.counters.disk, store.kept.is_on_disk(NAMES[0])) == (True, "on", True)
    await tier.open_again()  # at once


@pytest.mark.parametrize("in_write", [True, False])
async def test_what_was_in_a_folder_that_was_taken_away_is_forgotten(*, in_write: bool, store: ToyStore) -> None:
    tier = tier_of(store)
    await write_all(store, tier, NAMES[:2])
    store.folder.anew = {NAMES[3]: file_nbytes(NBYTES)}
    if in_write:
        await write_all(store, tier, NAMES[2:3])
    else:
        tier.use([NAMES[0]])
        assert await tier.write_next()
    assert [store.kept.is_on_disk(name) for name in NAMES[:4]] == [False, False, in_write, True]
    assert store.kept.disk_bytes == (1 + in_write) * file_nbytes(NBYTES)
    assert store.problems == ["keeping the disk's folder: it was taken away, and made anew"]


@pytest.mark.parametrize("in_write", [True, False])
async def test_a_folder_that_can_not_be_had_anew_is_off_and_empty_and_opened_later(
    *, in_write: bool, store: ToyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> int:
        folder.is_open = False
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory")

    def open_disk() -> dict[BlockName, int]:
        store.folder = folder
        return {NAMES[3]: file_nbytes(NBYTES)}

    monkeypatch.setattr("unicorn_async.kv_store.disk_tier._AGAIN_S", 0.001)
    tier, folder = tier_of(store), store.folder
    await write_all(store, tier, NAMES[:2])
    monkeypatch.setattr(folder, "write" if in_write else "used", lost)
    store.open_disk = open_disk
    if in_write:
        await write_all(store, tier, NAMES[2:3])
    else:
        tier.use([NAMES[0]])
        assert await tier.write_next()
    assert (tier.is_on, store.counters.disk) == (False, "off: Not a directory")
    assert (store.kept.num_on_disk, store.kept.disk_bytes) == (0, 0)
    assert store.problems == ["keeping the disk's folder: Not a directory"]
    assert not store.kept.slots[0]._pins
    tier.wake.clear()
    keeping = asyncio.create_task(tier.keep_open())
    await asyncio.wait_for(tier.wake.wait(), 60)
    assert (tier.takes_blocks, store.counters.disk, store.kept.is_on_disk(NAMES[3])) == (True, "on", True)
    assert not keeping.done()
    keeping.cancel()
