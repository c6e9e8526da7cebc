"""A copy that could not be submitted is taken for none and costs nobody a request, and what waits has its bounds."""

from __future__ import annotations

import errno
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.threads import allow_threads
from unicorn_async.errors import DeviceLostError, OutOfMemoryError
from unicorn_async.kv_store.keeper import BlockKeeper
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.block_keys import extend_keys
from unicorn_async.scheduler.block_manager import BlockGroup, BlockManager
from unicorn_async.scheduler.fetch_costs import FetchCosts
from unicorn_async.scheduler.kept_blocks import BlockName
from unicorn_async.scheduler.kept_prefixes import KeptPrefixes, Restore
from unicorn_async.scheduler.sequence import Sequence

from .toy_store import NAMES

if TYPE_CHECKING:
    from unicorn_async.scheduler.block_pool import BlockPool

    from .toy_store import ToyStore

BLOCK_SIZE = 4


def keeper_of(store: ToyStore, *, num_released: int = 0) -> BlockKeeper:
    """Return the keeper of a device on which sequences have left so many blocks."""
    blocks = BlockManager([BlockGroup(0, 8)], BLOCK_SIZE)
    prefixes, pool = KeptPrefixes(blocks, store.kept), blocks.pools[0]
    for name in NAMES[:num_released]:
        block = pool.allocate()
        pool.know(block, name.key)
        pool.free([block])
    return BlockKeeper(cast("Any", store), cast("Any", SimpleNamespace(kept_prefixes=prefixes)), BLOCK_SIZE)


async def test_what_a_lost_device_has_not_copied_is_not_written(store: ToyStore) -> None:
    keeper = keeper_of(store, num_released=2)
    store.saving.error = DeviceLostError("the device is lost")
    with pytest.raises(DeviceLostError):
        await keeper._save_some()
    await keeper._flush()
    assert store.folder.files == {}
    assert store.kept.slots[0].num_known == 0


@pytest.mark.parametrize(
    ("error", "told"), [(OutOfMemoryError("none is left"), "none is left"), (MemoryError(), "MemoryError")]
)
async def test_a_copy_to_the_host_that_finds_no_memory_is_left_out(
    store: ToyStore, error: Exception, told: str
) -> None:
    keeper = keeper_of(store, num_released=2)
    store.saving.error = error
    assert not await keeper._save_some()
    assert store.problems == [f"copying blocks: {told}"]
    assert store.kept.slots[0].num_known == 0
    assert not store.kept.slots[0]._pins


async def test_who_waits_for_a_copy_that_finds_no_memory_is_told(store: ToyStore) -> None:
    keeper = keeper_of(store)
    store.save(NAMES[0])
    store.restoring.error = OutOfMemoryError("none is left")
    assert not await keeper._restore(Restore(cast("Any", None), deque([(NAMES[0], 5)]), 0))
    assert store.problems == ["copying blocks: none is left"]
    assert not keeper._prefixes._blocks.pools[0].knows(NAMES[0].key)
    assert not store.kept.slots[0]._pins


def used_by(pool: BlockPool, names: list[BlockName]) -> list[int]:
    """Have a sequence with a text's blocks, shared or computed; returns them."""
    blocks = []
    for name in names:
        blocks.append(pool.share(name.key) if pool.knows(name.key) else pool.allocate())
        pool.know(blocks[-1], name.key)
    return blocks


async def save_and_write(keeper: BlockKeeper) -> None:
    while await keeper._save_some() or await keeper.disk.write_next():
        pass


def order_of_going(store: ToyStore) -> list[BlockName]:
    """Return which blocks in the slots, and then which on the disk, go first."""
    kept = store.kept
    slots = [BlockName(0, key) for key in kept.slots[0]._known]
    on_disk = kept.make_room_on_disk(kept.disk_limit)
    assert on_disk is not None
    assert list(on_disk) == store.folder.noted, "a later start would find another order"
    return [*slots, *on_disk]


async def test_of_a_conversation_the_last_block_goes_first_though_the_first_ones_were_kept_before(
    store: ToyStore,
) -> None:
    keeper = keeper_of(store)
    pool = keeper._prefixes._blocks.pools[0]
    for num_blocks in (2, 3):  # a turn, and the next one
        pool.free(reversed(used_by(pool, NAMES[:num_blocks])))
        await save_and_write(keeper)
    assert order_of_going(store) == NAMES[2::-1] * 2


async def test_a_beginning_that_others_use_yet_goes_behind_what_only_who_left_had(store: ToyStore) -> None:
    keeper = keeper_of(store)
    pool = keeper._prefixes._blocks.pools[0]
    pool.free(used_by(pool, NAMES[:1]))
    await save_and_write(keeper)
    used_by(pool, NAMES[:1])
    pool.free(reversed(used_by(pool, NAMES[:2])))
    await save_and_write(keeper)
    assert order_of_going(store) == NAMES[1::-1] * 2


async def test_what_a_disk_has_not_taken_is_written_when_it_is_used_again_though_the_host_has_it(
    store: ToyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    keeper = keeper_of(store)
    pool, slots = keeper._prefixes._blocks.pools[0], store.kept.slots[0]
    with monkeypatch.context() as patched:
        patched.setattr(store.folder, "write", full)
        pool.free(reversed(used_by(pool, NAMES[:3])))
        await save_and_write(keeper)
    assert store.problems == ["writing a block: No space left on device"]
    assert (slots.num_known, store.kept.num_on_disk) == (3, 0)
    pool.free(reversed(used_by(pool, NAMES[:3])))
    await save_and_write(keeper)
    assert store.kept.num_on_disk == 0, "writing pauses"
    keeper.disk._paused_until = 0.0
    pool.free(reversed(used_by(pool, NAMES[:3])))
    await save_and_write(keeper)
    assert store.folder.noted == NAMES[2::-1]
    assert order_of_going(store) == NAMES[2::-1] * 2
    assert store.counters.stored_blocks == 3
    assert not slots._pins and store.kept._num_unwritten == [0]


async def test_a_block_that_waits_for_the_disk_is_used_and_does_not_wait_twice(store: ToyStore) -> None:
    keeper = keeper_of(store)
    pool = keeper._prefixes._blocks.pools[0]
    for _ in range(2):
        pool.free(used_by(pool, NAMES[:1]))
        while await keeper._save_some():
            pass
    assert store.kept._num_unwritten == [1]
    await save_and_write(keeper)
    assert store.folder.asked == NAMES[:1]
    assert not store.kept.slots[0]._pins and store.kept._num_unwritten == [0]


async def test_of_what_came_back_the_last_block_goes_first(store: ToyStore) -> None:
    keeper = keeper_of(store)
    for name in NAMES[:2]:
        store.save(name)
        keeper.disk.offer(name)
    await save_and_write(keeper)
    assert await keeper._restore(Restore(cast("Any", None), deque([(NAMES[0], 5), (NAMES[1], 6)]), 0))
    await save_and_write(keeper)
    assert order_of_going(store) == NAMES[1::-1] * 2


async def restored(store: ToyStore, keeper: BlockKeeper, *, answers: bool = True) -> Sequence:
    """Have blocks that are on the disk alone not come back, since that takes too long; returns who waited for them."""
    for name in NAMES[:3]:
        store.save(name)
        keeper.disk.offer(name)
    await save_and_write(keeper)
    store.kept.slots[0]._known.clear()
    store.kept.slots[0]._filled.clear()
    store.kept.slots[0].add(3)
    sequence = Sequence("r", (1,), SamplingParams(), seed=0)
    lacking = deque((name, 5 + number) for number, name in enumerate(NAMES[:3]))
    costs = keeper._prefixes.costs
    costs.computed.observe(10**6, 1.0)
    for _ in range(9 if answers else 0):
        costs.read.observe(1 << 30, 1e-3)  # when it was fast yet
    assert costs.pays(12, 3 * 64, 3 * 64)
    if not answers:
        store.folder.answers.clear()
    assert not await keeper._restore(Restore(sequence, lacking, 12))
    assert not costs.pays(12, 3 * 64, 3 * 64)
    return sequence


async def test_what_a_disk_does_not_read_in_time_is_computed(store: ToyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FetchCosts, "patience_s", lambda *_: 0.01)
    keeper = keeper_of(store)
    assert (await restored(store, keeper, answers=False)).num_restores == 2
    assert keeper.disk.is_on, "it is slow, and no more"


async def test_when_the_rest_would_be_computed_faster_what_has_come_is_kept(
    store: ToyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unicorn_async.kv_store.keeper._COPY_BYTES", 1)
    monkeypatch.setattr("unicorn_async.scheduler.fetch_costs._LEAST_PATIENCE_S", 0.0)
    monkeypatch.setattr(FetchCosts, "patience_s", lambda *_: 600.0)
    monkeypatch.setattr(FetchCosts, "compute_s", lambda *_: 1e-9)
    store.restoring.took_s = 0.0  # the disk alone is slow
    keeper = keeper_of(store)
    monkeypatch.setattr(FetchCosts, "pays", lambda costs, *_: costs.read.each_s < 1e-9)
    assert (await restored(store, keeper)).num_restores == 2
    pool = keeper._prefixes._blocks.pools[0]
    assert [pool.knows(name.key) for name in NAMES[:3]] == [True, True, False]


@pytest.mark.parametrize("is_tried", [False, True])
async def test_what_waited_behind_a_disk_that_was_given_up_is_computed_unless_it_is_a_try(
    *, is_tried: bool, store: ToyStore
) -> None:
    keeper = keeper_of(store)
    store.save(NAMES[0])
    keeper.disk.offer(NAMES[0])
    await save_and_write(keeper)
    sequence = Sequence("r", (1,), SamplingParams(), seed=0)
    costs = keeper._prefixes.costs
    costs.computed.observe(1000, 1.0)
    restore = Restore(sequence, deque([(NAMES[0], 5)]), 12, is_tried=is_tried)
    costs.read.begin_anew(64, 60.0)  # by what was before it
    assert keeper._prefixes.pays_yet(restore), "the host has it"
    store.kept.slots[0]._known.clear()
    store.kept.slots[0]._filled.clear()
    store.kept.slots[0].add(1)
    assert await keeper._restore(restore) == is_tried
    assert sequence.num_restores == (0 if is_tried else 2)
    assert store.folder.read_names == NAMES[: int(is_tried)]


@pytest.mark.parametrize(("read_s", "is_tried"), [(60.0, True), (1e-9, False)])
def test_what_does_not_pay_and_is_waited_for_is_a_try(store: ToyStore, read_s: float, *, is_tried: bool) -> None:
    prefixes = keeper_of(store)._prefixes
    sequence = Sequence("r", tuple(range(BLOCK_SIZE + 1)), SamplingParams(), seed=0)
    store.kept.add_to_disk(BlockName(0, extend_keys(sequence, 1, BLOCK_SIZE)[0]), 64)
    prefixes.costs.computed.observe(1000, 1.0)
    prefixes.costs.read.observe(64, read_s)
    prefixes.begin(sequence, 1)
    (restore,) = prefixes.restores
    assert restore.is_tried == is_tried


def test_blocks_that_are_waited_for_are_used_before_they_have_come(store: ToyStore) -> None:
    prefixes = keeper_of(store)._prefixes
    prefixes.is_open = True
    sequence = Sequence("r", tuple(range(2 * BLOCK_SIZE + 1)), SamplingParams(), seed=0)
    names = [BlockName(0, key) for key in extend_keys(sequence, 2, BLOCK_SIZE)]
    for name in (*names, NAMES[0]):
        store.save(name)
    prefixes.begin(sequence, 2)
    assert list(store.kept.slots[0]._known) == [NAMES[0].key, names[1].key, names[0].key]


def test_half_of_the_slots_wait_for_the_disk_at_most(store: ToyStore) -> None:
    prefixes = keeper_of(store, num_released=4)._prefixes
    assert [copy.name for copy in prefixes.take_released(1 << 20, wants_disk=True).copies] == NAMES[:2]
    assert [copy.name for copy in prefixes.take_released(1 << 20, wants_disk=False).copies] == NAMES[2:4]


def test_nothing_is_left_of_who_waits_no_more(store: ToyStore) -> None:
    prefixes = keeper_of(store)._prefixes
    prefixes.is_open = True
    sequence = Sequence("r", tuple(range(2 * BLOCK_SIZE + 1)), SamplingParams(), seed=0)
    for key in extend_keys(sequence, 2, BLOCK_SIZE):
        store.save(BlockName(0, key))
    found = prefixes.find(sequence)
    assert found == 2
    prefixes.begin(sequence, found)
    assert [restore.sequence for restore in prefixes.restores] == [sequence]
    prefixes.leave(sequence)
    assert not prefixes.restores
    assert not prefixes._to_come


async def test_a_system_without_threads_costs_the_hosts_memory(
    store: ToyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_threads(monkeypatch, 0)
    monkeypatch.setattr(store, "is_complete", lambda group: False)
    keeper = keeper_of(store, num_released=4)
    slots = store.kept.slots[0]
    taken = [slots.take() for _ in range(4)]
    assert None not in taken
    assert not await keeper._save_some()
    assert store.problems == ["allocating the host's memory: toy memory: the system allows none of 1 threads"]


async def test_what_always_has_a_user_is_written_when_the_steps_are_over_that_may_write_it(store: ToyStore) -> None:
    keeper = keeper_of(store)
    prefixes, pool = keeper._prefixes, keeper._prefixes._blocks.pools[0]
    used_by(pool, NAMES[:2])
    left = used_by(pool, NAMES[:2])
    prefixes.take_copies()  # a step is scheduled
    pool.free(reversed(left))
    await save_and_write(keeper)
    assert not store.folder.files
    prefixes.commit(())
    await save_and_write(keeper)
    assert store.folder.noted == NAMES[1::-1]
    assert not store.kept.slots[0]._pins
    prefixes.commit(())
    await save_and_write(keeper)
    assert store.counters.stored_blocks == 2


def test_what_is_in_use_is_not_copied_to_the_host_alone(store: ToyStore) -> None:
    prefixes = keeper_of(store)._prefixes
    pool = prefixes._blocks.pools[0]
    used_by(pool, NAMES[:2])
    pool.free(reversed(used_by(pool, NAMES[:2])))
    assert prefixes.take_released(1 << 20, wants_disk=False).copies == []


def test_a_block_that_was_in_use_and_is_another_sequence_s_meanwhile_is_not_copied(store: ToyStore) -> None:
    prefixes = keeper_of(store)._prefixes
    pool = prefixes._blocks.pools[0]
    held = used_by(pool, NAMES[:1])
    pool.free(used_by(pool, NAMES[:1]))
    prefixes.take_copies()
    assert prefixes.take_released(1 << 20, wants_disk=True).copies == []
    pool.free(held)
    for _ in range(8):
        pool.allocate()
    pool.know(held[0], NAMES[0].key)  # by a step that is not submitted
    prefixes.commit(())
    assert prefixes.take_released(1 << 20, wants_disk=True).copies == []


def test_of_what_is_in_use_no_more_is_copied_at_a_time_than_of_the_rest(store: ToyStore) -> None:
    prefixes = keeper_of(store)._prefixes
    pool = prefixes._blocks.pools[0]
    used_by(pool, NAMES[:3])
    pool.free(reversed(used_by(pool, NAMES[:3])))
    assert [copy.name for copy in prefixes.take_released(1, wants_disk=True).copies] == [NAMES[2]]
    assert [copy.name for copy in prefixes.take_released(1 << 20, wants_disk=True).copies] == NAMES[1::-1]
