"""Copies of states that lie outside the device's memory: a sequence begins with that of its own text, or without."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, cast

import pytest

from unicorn_async.scheduler.kept_blocks import BlockName, KeptBlocks
from unicorn_async.scheduler.kept_state_prefixes import KeptStatePrefixes
from unicorn_async.scheduler.request import FinishReason

from .test_state_prefixes import TEXT, World
from .toy_keeper import ToyKeeper

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.scheduler.kept_prefixes import BlockCopy
    from unicorn_async.scheduler.sequence import Sequence

    from .toy_gpu import ToyGPU

STATES = 1  # their group, behind that of blocks


class Rows:
    """A world's states as what a keeper copies, at once; blocks hold nothing here."""

    submitted = ()

    def __init__(self, states: dict[int, tuple[int, ...]]) -> None:
        self.states = states

    def submit_copy(self, copy: Callable[[], None]) -> None:
        copy()

    def run_copies(self) -> None:
        pass

    def content(self, copy: BlockCopy) -> list[tuple[int, ...] | None]:
        return [self.states[copy.block] if copy.name.group == STATES else None]

    def set_content(self, copy: BlockCopy, content: list[tuple[int, ...] | None]) -> None:
        if copy.name.group == STATES:
            assert content[0] is not None
            self.states[copy.block] = content[0]


class KeepingWorld(World):
    """A world whose blocks and copies go to slots and to a disk, and come back."""

    def __init__(
        self,
        choice: Random,
        *,
        num_slots: tuple[int, int] = (40, 8),
        block_nbytes: int = 1,
        fails: float = 0.0,
        **given: int,
    ) -> None:
        kept = KeptBlocks([block_nbytes, 1], disk_limit=choice.choice((40, 200)))
        for slots, count in zip(kept.slots, num_slots, strict=True):
            slots.add(count)
        super().__init__(kept=kept, **given)  # type: ignore[arg-type]
        self.keeper = ToyKeeper(choice, self.scheduler, cast("ToyGPU", Rows(self.states)), kept, fails=fails)

    @property
    def prefixes(self) -> KeptStatePrefixes:
        assert isinstance(self.scheduler.prefixes, KeptStatePrefixes)
        return self.scheduler.prefixes

    def step(self, *, known_only: bool = False) -> None:
        self.keeper.act(3)
        super().step(known_only=known_only)

    def save_all(self) -> None:
        for _ in range(60):
            self.keeper.save()
            self.keeper.settle()

    def check_end(self) -> None:
        while self.keeper.pending or self.keeper.restoring or self.prefixes.restores:
            self.keeper.restore()
            self.keeper.settle()
        super().check_end()
        prefixes = self.prefixes
        assert not (prefixes._rows or prefixes._awaited or prefixes._running or prefixes._copies._pins)
        assert len(prefixes._unsaved) <= prefixes._copies.count
        for slots in self.keeper.kept.slots:
            assert not slots._pins
            assert sorted([*slots._free, *slots._known.values()]) == list(range(slots.count))


def test_a_state_that_the_device_has_lost_comes_back() -> None:
    world = KeepingWorld(Random(0), num_copies=1)
    first = world.add(TEXT)
    assert world.run() == len(TEXT) + 3
    world.save_all()
    world.add(tuple(range(500, 560)))  # whose copy takes the only row
    world.run()
    world.save_all()
    again = world.add((*TEXT, 7, 8))
    assert world.run() == 6 + 3
    assert (again.num_prompt_found, first.finish_reason) == (76, FinishReason.LENGTH)
    world.check_end()


def test_a_kept_state_with_which_another_sequence_began_is_used_before_its_blocks() -> None:
    world = KeepingWorld(Random(0), num_copies=2)
    world.add(TEXT)
    world.run()
    world.save_all()
    world.add((*TEXT, 7, 8))
    while world.scheduler.has_work:
        World.step(world)
    used = world.prefixes.take_released(100, wants_disk=False).used
    assert used[0].group == STATES
    assert STATES not in [name.group for name in used[1:]]


def test_a_state_that_the_disk_lacks_goes_there_when_it_comes_back_from_the_host() -> None:
    world = KeepingWorld(Random(0), num_copies=1)
    world.add(TEXT)
    world.run()
    world.save_all()
    kept = world.keeper.kept
    names = [BlockName(STATES, key) for key in kept.slots[STATES]._known]
    for name in names:  # by whichever of its failures
        kept.drop_from_disk(name)
        world.keeper.disk.pop(name, None)
    world.add(tuple(range(500, 560)))  # whose copy takes the only row
    world.run()
    world.add((*TEXT, 7, 8))
    world.run()
    world.save_all()
    assert kept.is_on_disk(names[0])
    world.check_end()


def test_what_is_of_a_running_sequence_is_saved_later_unless_there_is_no_more_room() -> None:
    for num_copies, is_saved in ((1, True), (2, False)):
        world = KeepingWorld(Random(0), num_copies=num_copies)
        world.add(TEXT, max_tokens=40)
        for _ in range(6):
            World.step(world)
        assert world.prefixes._copies.num_known == 1
        names = [copy.name.group for copy in world.prefixes.take_released(100, wants_disk=False).copies]
        assert (STATES in names) == is_saved


def test_a_state_beside_as_many_blocks_as_are_saved_at_a_time_costs_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("unicorn_async.scheduler.kept_prefixes.MOST_COPIES", 4)
    world = KeepingWorld(Random(0), num_copies=1)
    world.add(TEXT)
    while world.scheduler.has_work:
        World.step(world)
    copies = world.prefixes.take_released(100, wants_disk=False).copies
    assert STATES in [copy.name.group for copy in copies]
    world.keeper.release(copies)
    assert not any(slots._pins for slots in world.keeper.kept.slots)


@pytest.mark.parametrize("seed", range(30))
def test_in_any_world_a_sequence_goes_on_behind_the_state_of_its_own_text(seed: int) -> None:
    random = Random(seed)
    world = KeepingWorld(
        random,
        num_slots=(random.choice((10, 60)), random.choice((2, 3, 20))),
        fails=random.choice((0, 0.05)),
        num_copies=random.choice((1, 2, 4)),
        num_blocks=random.choice((110, 160)),
        num_frames=random.choice((1, 2, 3)),
        num_tokens=random.choice((16, 64)),
        kept_tokens=random.choice((4, 8)),
        num_spares=random.choice((0, 20)),
    )
    texts = [tuple(random.choices(range(1000), k=random.randint(30, 90))) for _ in range(4)]
    alive: list[Sequence] = []
    for _ in range(120):
        if random.random() < 0.25:
            before = random.choice(texts)
            prompt = (
                *before[: random.choice((len(before), random.randint(1, len(before))))],
                *random.choices(range(9), k=7),
            )
            alive.append(world.add(prompt[:250], max_tokens=random.randint(1, 40)))
            texts[random.randrange(4)] = prompt[:250]
        if alive and random.random() < 0.1:
            world.scheduler.finish(alive.pop(random.randrange(len(alive))), FinishReason.CANCELLED)
        world.step()
        alive = [one for one in alive if one.finish_reason is None]
    world.run()
    for sequence in alive:
        assert sequence.output_ids == world.texts[sequence][len(sequence.prompt_ids) :]
    world.check_end()


def test_the_worlds_bring_states_back_and_lose_them_often_enough_to_mean_something() -> None:
    num_restored = 0
    for seed in range(30, 34):
        world = KeepingWorld(Random(seed), num_copies=2, num_blocks=110, fails=0.02)
        for turn in range(12):
            world.add((*(1000 * (turn % 4) + token for token in range(60)), turn))
            world.run()
            world.save_all()
        num_restored += world.keeper.num_restored
        world.check_end()
    assert num_restored > 20


@pytest.mark.parametrize("wants_disk", [False, True])
def test_what_others_begin_with_is_saved_for_the_disk_while_its_sequence_runs(*, wants_disk: bool) -> None:
    world = KeepingWorld(Random(0), num_copies=4)
    world.add(TEXT, max_tokens=100)
    for _ in range(6):
        World.step(world)
    assert STATES not in [copy.name.group for copy in world.prefixes.take_released(100, wants_disk=True).copies]
    again = world.add((*TEXT, 7, 8))
    while again.finish_reason is None:
        World.step(world)
    world.prefixes._unsaved = {key: size for key, size in world.prefixes._unsaved.items() if size == len(TEXT) // 4 - 1}
    names = [copy.name.group for copy in world.prefixes.take_released(100, wants_disk=wants_disk).copies]
    assert (STATES in names) == wants_disk


def test_of_blocks_that_lie_nowhere_a_state_alone_comes_back() -> None:
    world = KeepingWorld(Random(0), num_copies=1, num_blocks=30, num_slots=(0, 8), block_nbytes=0)
    world.add(TEXT)
    world.run()
    world.save_all()
    assert [name.group for name in world.keeper.disk] in ([], [STATES])
    world.add(tuple(range(500, 600)))  # which takes the only row, and blocks of the text
    world.run()
    again = world.add((*TEXT, 7, 8))
    assert world.run() == 6 + 3
    assert again.num_prompt_found == 76
    world.check_end()
