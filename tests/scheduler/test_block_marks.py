"""What is remembered of a waiting sequence's blocks is what looking at all of them says, and costs no look at each."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.block_changes import _MOST_CHANGES, BlockChanges
from unicorn_async.scheduler.block_manager import BlockGroup, BlockManager
from unicorn_async.scheduler.block_marks import BlockMarks
from unicorn_async.scheduler.block_pool import BlockPool
from unicorn_async.scheduler.kept_blocks import HostSlots, KeptBlocks
from unicorn_async.scheduler.sequence import Sequence

from .made_scheduler import make_scheduler
from .test_kept_state_prefixes import KeepingWorld
from .world import random_world

if TYPE_CHECKING:
    from unicorn_async.scheduler.scheduler import Scheduler

TEXT = tuple(range(4000))  # 1,000 blocks of 4
Looks = list[bytes]


def request(prompt: tuple[int, ...], *, client: str = "", max_tokens: int = 1) -> Sequence:
    return Sequence("r", prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True), seed=0, client=client)


def step(scheduler: Scheduler) -> None:
    batch = scheduler.schedule()
    assert batch is not None
    scheduler.commit(batch, [7] * batch.num_samples, step_s=0.01)


def crowded(*, kept: KeptBlocks | None = None, num_state_copies: int = 0, window: int = 0) -> Scheduler:
    """A device where one sequence decodes, and five wait behind 1,000 blocks that are there, for whom room lacks."""
    groups = (BlockGroup(0, 1700), *([BlockGroup(window, 1700)] if window else []))
    scheduler = make_scheduler(
        groups=groups,
        max_context=8000,
        max_num_batched_tokens=512,
        in_order=True,
        shares_prefixes=True,
        kept=kept,
        num_state_copies=num_state_copies,
        num_spare_states=0 if num_state_copies else None,
        kept_tokens=4,
    )
    if scheduler.kept_prefixes is not None:
        scheduler.kept_prefixes.is_open = True
    scheduler.add(request((*TEXT, 1)))
    while scheduler.has_work:
        step(scheduler)
    scheduler.add(request(tuple(range(10_000, 12_700)), client="anna", max_tokens=400))
    for _ in range(10):
        step(scheduler)
    for number in range(5):
        scheduler.add(request((*TEXT, *range(20_000 + number, 20_400 + number)), client=f"client {number}"))
    step(scheduler)
    assert (scheduler.num_running, scheduler.num_waiting) == (1, 5)
    return scheduler


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """The keys of blocks that were looked for."""
    found: Looks = []

    def counted(owner: type, name: str) -> None:
        look = getattr(owner, name)

        def counting(self: object, *given: object) -> object:
            found.append(given[-1])  # type: ignore[arg-type]
            return look(self, *given)

        monkeypatch.setattr(owner, name, counting)

    for owner, name in ((BlockPool, "knows"), (BlockPool, "is_used"), (HostSlots, "find"), (KeptBlocks, "knows")):
        counted(owner, name)
    return found


@pytest.mark.parametrize("window", [0, 64])
@pytest.mark.parametrize("num_state_copies", [0, 4])
@pytest.mark.parametrize("keeps", [False, True])
def test_who_waits_costs_few_looks_a_step(looks: Looks, *, window: int, num_state_copies: int, keeps: bool) -> None:
    kept = KeptBlocks([1] * (1 + (window > 0) + (num_state_copies > 0)), disk_limit=100) if keeps else None
    scheduler = crowded(kept=kept, num_state_copies=num_state_copies, window=window)
    looks.clear()
    for _ in range(8):  # two blocks are filled meanwhile
        step(scheduler)
    assert scheduler.num_waiting == 5
    assert len(looks) < 100


def test_a_block_that_goes_is_found_no_more(looks: Looks) -> None:
    blocks = BlockManager([BlockGroup(0, 30)], 4)
    first = request(TEXT[:80])
    blocks.grow(first, 80)
    blocks.know(first, 80)
    waiting = request(TEXT[:81])
    assert (blocks.find(waiting, 20), blocks.num_shared(waiting, 20)) == (20, (20,))
    blocks.release(first)
    assert (blocks.find(waiting, 20), blocks.num_shared(waiting, 20)) == (20, (0,))
    other = request(TEXT[100:160])
    blocks.grow(other, 60)  # 10 were free, and of the others the last ones go
    looks.clear()
    assert blocks.find(waiting, 20) == 15
    assert len(looks) == 5
    blocks.release(other)
    again = request(TEXT[:81])
    blocks.claim(again, blocks.find(again, 20))
    blocks.grow(again, 80)
    blocks.know(again, 80)
    assert (blocks.find(waiting, 20), blocks.num_shared(waiting, 20)) == (20, (20,))


def test_who_has_its_place_remembers_nothing() -> None:
    blocks = BlockManager([BlockGroup(0, 30)], 4)
    first, second = request(TEXT[:80]), request(TEXT[:81])
    blocks.grow(first, 80)
    blocks.know(first, 80)
    blocks.find(second, 20)
    assert second.block_marks
    blocks.claim(second, 20)
    assert not second.block_marks
    assert not second.block_numbers


@pytest.mark.parametrize("num_changes", [0, 1, 7, _MOST_CHANGES, _MOST_CHANGES + 1])
def test_whatever_changes_the_marks_say_what_holds(num_changes: int) -> None:
    random, changes = Random(num_changes), BlockChanges()
    held = {number.to_bytes() for number in range(40)}
    sequence = request(TEXT[:4])
    sequence.block_keys = [number.to_bytes() for number in range(60)]
    marks = BlockMarks([held.__contains__], [BlockChanges(), changes])
    assert bytes(marks.of(sequence)[0]) == b"\1" * 40 + b"\0" * 20
    for _ in range(num_changes):
        key = random.randrange(80).to_bytes()
        held ^= {key}
        changes.note(key)
    sequence.block_keys += [number.to_bytes() for number in range(60, 70)]
    assert list(marks.of(sequence)[0]) == [key in held for key in sequence.block_keys]
    held.clear()
    changes.note_all()
    assert not any(marks.of(sequence)[0])


def reference(manager: BlockManager, sequence: Sequence, most: int, kept: KeptBlocks | None) -> int:
    """Return what `find` says, by a look at each block for each place."""

    def is_there(group: int, number: int) -> bool:
        key = sequence.block_keys[number]
        return manager.pools[group].knows(key) or (kept is not None and kept.knows(group, key))

    for found in range(most, 0, -1):
        firsts = [manager._first_seen(group, found) for group in manager.groups]
        if all(is_there(group, number) for group, first in enumerate(firsts) for number in range(first, found)):
            return found
    return 0


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What is found, in all worlds, each compared with a look at all blocks."""
    find, num_shared, results = BlockManager.find, BlockManager.num_shared, []
    kept_of: dict[BlockMarks, KeptBlocks] = {}
    marks_with = BlockManager.marks_with

    def noting(self: BlockManager, knows: object, changes: object) -> BlockMarks:
        marks = marks_with(self, knows, changes)  # type: ignore[arg-type]
        if getattr(knows, "__name__", "") == "knows":
            kept_of[marks] = knows.__self__  # type: ignore[attr-defined]
        return marks

    def finding(self: BlockManager, sequence: Sequence, most: int, marks: BlockMarks | None = None) -> int:
        found = find(self, sequence, most, marks)
        assert found == reference(self, sequence, most, None if marks is None else kept_of[marks])
        results.append(found)
        return found

    def sharing(self: BlockManager, sequence: Sequence, num_blocks: int) -> tuple[int, ...]:
        shared = num_shared(self, sequence, num_blocks)
        firsts = [self._first_seen(group, num_blocks) for group in self.groups]
        used = [
            sum(pool.is_used(key) for key in sequence.block_keys[first:num_blocks])
            for pool, first in zip(self.pools, firsts, strict=True)
        ]
        assert list(shared) == used
        return shared

    monkeypatch.setattr(BlockManager, "marks_with", noting)
    monkeypatch.setattr(BlockManager, "find", finding)
    monkeypatch.setattr(BlockManager, "num_shared", sharing)
    return results


def test_in_any_world_what_is_remembered_is_what_a_look_at_all_says(compared: list[int]) -> None:
    for seed in range(12):
        world = replace(random_world(seed), in_order=True, shares=True, keeps=seed % 2 > 0, grows=seed % 3 == 0)
        world.run(num_requests=20)
        world.check_outcome()
    assert sum(found > 0 for found in compared) > 100


@pytest.mark.parametrize("seed", range(6))
def test_in_any_world_of_states_too(compared: list[int], seed: int) -> None:
    random = Random(seed)
    world = KeepingWorld(random, num_slots=(40, 3), num_copies=random.choice((1, 3)), num_blocks=110)
    for number in range(15):
        text = random.choice((TEXT[:200], TEXT[1:160]))[: random.randint(20, 160)]
        world.add((*text, number))
        for _ in range(random.randint(0, 6)):
            world.step()
    world.run()
    world.check_end()
    assert max(compared) > 0
