"""Sequences that begin alike share blocks and begin with a copy of the state, which is that of their own text."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING

import pytest

from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.block_manager import BlockGroup
from unicorn_async.scheduler.request import FinishReason
from unicorn_async.scheduler.sequence import Sequence
from unicorn_async.scheduler.speculation import Speculation
from unicorn_async.scheduler.state_copies import StateCopies

from .foreseeing import AnyCosts, Foreseeing
from .made_scheduler import make_scheduler

if TYPE_CHECKING:
    from unicorn_async.scheduler.batch import Batch
    from unicorn_async.scheduler.kept_blocks import KeptBlocks

TEXT = tuple(range(100, 180))  # 20 blocks of 4
NUM_SEQS = 6


def token_behind(tokens: tuple[int, ...]) -> int:
    return sum((index % 7 + 1) * token for index, token in enumerate(tokens)) % 50


class World:
    """A scheduler, and a device whose states are the very tokens that made them."""

    def __init__(
        self,
        *,
        num_copies: int = 8,
        num_blocks: int = 200,
        num_frames: int = 1,
        num_tokens: int = 64,
        kept_tokens: int = 4,
        num_spares: int = 0,
        random: Random | None = None,
        kept: KeptBlocks | None = None,
    ) -> None:
        self.random = random
        self.scheduler = make_scheduler(
            speculation=None if random is None else Speculation(AnyCosts(random), 16),
            num_spare_states=num_spares,
            groups=(BlockGroup(0, num_blocks),),
            in_order=True,
            shares_prefixes=True,
            num_state_copies=num_copies,
            kept_tokens=kept_tokens,
            max_context=400,
            max_num_seqs=NUM_SEQS,
            max_num_batched_tokens=num_tokens,
            max_waiting=100,
            kept=kept,
        )
        self.num_frames = num_frames
        self.num_copies = num_copies
        self.kept_tokens = kept_tokens
        self.num_spares = num_spares
        self.states: dict[int, tuple[int, ...]] = {}
        self.texts: dict[Sequence, list[int]] = {}
        self.in_flight: deque[tuple[Batch, list[int]]] = deque()
        self.num_computed = 0

    def add(self, prompt: tuple[int, ...], *, salt: str = "", max_tokens: int = 4, **sampling: object) -> Sequence:
        params = SamplingParams(**{"max_tokens": max_tokens, "ignore_eos": True} | sampling)
        sequence = Sequence("r", prompt, params, seed=0, cache_salt=salt)
        self.scheduler.add(sequence)
        self.texts[sequence] = list(prompt)
        if self.random is not None:
            text = list(prompt)
            for _ in range(max_tokens):
                text.append(token_behind(tuple(text)))
            sequence.proposer = Foreseeing(self.random, 0.8, text[len(prompt) :])
        return sequence

    def step(self, *, known_only: bool = False) -> None:
        batch = self.scheduler.schedule(known_only=known_only)
        if batch is not None:
            self.in_flight.append((batch, self._compute(batch)))
        if self.in_flight and (batch is None or len(self.in_flight) >= self.num_frames):
            self.scheduler.commit(*self.in_flight.popleft())

    def run(self) -> int:
        """Run until nothing is left to do; returns how many tokens were computed."""
        before = self.num_computed
        while self.scheduler.has_work:
            self.step()
        return self.num_computed - before

    def check_end(self) -> None:
        prefixes = self.scheduler.prefixes
        assert not prefixes._planned and not prefixes._ends and not prefixes._of_answers and not prefixes._to_come
        rows = [*prefixes._copies._free, *prefixes._copies._known.values()]
        assert sorted(rows) == list(range(NUM_SEQS, NUM_SEQS + self.num_copies))
        assert self.scheduler.blocks_used == (0,)
        first_spare = NUM_SEQS + self.num_copies
        assert sorted(self.scheduler._states._free) == list(range(NUM_SEQS))
        assert sorted(self.scheduler._states._spares) == list(range(first_spare, first_spare + self.num_spares))

    def _compute(self, batch: Batch) -> list[int]:
        given = dict(batch.given)
        assert not {copy for *_, copy in batch.kept} & set(given.values()), "a step writes what it reads"
        starts: dict[Sequence, tuple[int, int]] = {}
        behind: dict[Sequence, tuple[int, ...]] = {}
        left: dict[int, tuple[int, ...]] = {}
        sampled = []
        for item in batch.scheduled:
            own, text = item.sequence.state_index, self.texts[item.sequence]
            stop, source = item.start + item.num_tokens, given.get(item.sequence, own)
            if item.proposal:
                state = (*behind[item.sequence], *item.token_ids)
            else:
                starts[item.sequence] = item.start, stop
                before = self.states[source] if item.start else ()
                assert before == tuple(text[: item.start]), "a sequence goes on behind a state that is not its text's"
                state = tuple(text[:stop])
            row = own if item.state_row < 0 else item.state_row
            assert row not in left and row not in given.values()
            assert item.state_row != source, "what a run's first tokens are to find is overwritten"
            left[row] = behind[item.sequence] = state
            self.num_computed += item.num_tokens
            if item.samples:
                sampled.append(token_behind(state))
                if state == tuple(text[:stop]):
                    text[stop:] = sampled[-1:]
        self.states.update(left)
        for sequence, position, copy in batch.kept:
            start, stop = starts[sequence]
            assert position == stop or (start < position < stop and (position - start) % self.kept_tokens == 0)
            self.states[copy] = tuple(self.texts[sequence][:position])
        return sampled


def test_a_prompt_that_was_there_goes_on_behind_its_last_block() -> None:
    world = World()
    world.add(TEXT)
    assert world.run() == 80 + 3
    again = world.add(TEXT)
    assert world.run() == 4 + 3
    assert again.num_prompt_found == 76
    world.check_end()


def test_a_turn_of_a_conversation_goes_on_in_the_last_answer() -> None:
    world = World()
    first = world.add(TEXT, max_tokens=40)
    world.run()
    second = world.add((*TEXT, *first.output_ids, 1, 2, 3))
    world.run()
    assert second.num_prompt_found == 112  # every 16 tokens of an answer, of 119 that were computed
    third = world.add((*TEXT, 1, 2, 3))  # whose template leaves the answer out
    world.run()
    assert third.num_prompt_found == 76
    world.check_end()


def test_what_begins_alike_at_once_is_computed_once() -> None:
    world = World(num_frames=2, num_tokens=16)
    sequences = [world.add((*TEXT, *range(number, number + 5)), max_tokens=1) for number in range(12)]
    assert world.run() == 80 + 12 * 5
    assert [sequence.num_prompt_found for sequence in sequences] == [0] + [80] * 11
    world.check_end()


def test_where_two_prompts_part_the_third_goes_on() -> None:
    world = World()
    found = []
    for number in range(3):
        found.append(world.add((*TEXT[:60], *range(number, number + 10))))
        world.run()
    assert [sequence.num_prompt_found for sequence in found] == [0, 0, 60]


def test_who_waits_for_a_prompt_computes_it_when_that_one_is_cancelled() -> None:
    world = World(num_tokens=16)
    first, second = world.add(TEXT), world.add(TEXT)
    world.step()
    world.scheduler.finish(first, FinishReason.CANCELLED)
    world.run()
    assert (second.num_prompt_found, len(second.output_ids)) == (0, 4)
    world.check_end()


def test_only_who_has_the_same_salt_gets_a_copy() -> None:
    world = World()
    world.add(TEXT, salt="one")
    world.run()
    other, same = world.add(TEXT, salt="two"), world.add(TEXT, salt="one")
    world.run()
    assert (other.num_prompt_found, same.num_prompt_found) == (0, 76)


def test_short_prompts_are_not_cut_for_a_copy() -> None:
    world = World()
    for _ in range(2):
        assert world.add(TEXT[:32], max_tokens=1).num_prompt_found is None
        assert world.run() == 32
    assert world.scheduler._num_steps == 2


def test_a_prompt_has_no_step_more_for_its_copy_where_it_can_be_made_within_one() -> None:
    world = World(num_tokens=100, kept_tokens=8)
    prompt = TEXT[:79]
    found = [world.add(prompt, max_tokens=1)]
    assert (world.run(), world.scheduler._num_steps) == (79, 1)
    found.append(world.add(prompt, max_tokens=1))
    assert (world.run(), world.scheduler._num_steps) == (7, 2)
    world.add(tuple(range(6)), max_tokens=1)
    assert [sequence.num_prompt_found for sequence in found] == [0, 72]


def test_a_step_is_cut_where_a_copy_can_t_be_made_within_it() -> None:
    world = World(num_tokens=54, kept_tokens=8)
    prompt = TEXT[:79]
    world.add(prompt, max_tokens=1)
    assert (world.run(), world.scheduler._num_steps) == (79, 3)  # 54, 22 up to the end of a block, 3
    again = world.add(prompt, max_tokens=1)
    world.run()
    assert again.num_prompt_found == 76


def test_the_copy_that_was_not_used_for_longest_goes_first() -> None:
    copies = StateCopies(4, 2)
    for key in (b"a", b"b"):
        row = copies.take()
        assert row is not None
        copies.keep(row, key)
    copies.use(b"b")
    copies.use(b"a")
    assert copies.take() is None  # the step in the making reads both
    copies.end_step()
    row = copies.take()
    assert row == 5 and not copies.knows(b"b") and copies.knows(b"a")
    assert (copies.take(), copies.take()) == (4, None)
    copies.keep(row, b"c")
    copies.drop(4)
    copies.forget(b"b")
    copies.forget(b"c")
    assert sorted(copies._free) == [4, 5] and not copies.num_known


def test_of_two_copies_of_a_state_one_stays() -> None:
    copies = StateCopies(0, 2)
    rows = copies.take(), copies.take()
    for row in rows:
        assert row is not None
        copies.keep(row, b"a")
    assert (copies.use(b"a"), copies._free) == (rows[0], [rows[1]])


@pytest.mark.parametrize("seed", range(40))
def test_in_any_world_every_sequence_goes_on_behind_its_own_text(seed: int) -> None:
    random = Random(seed)
    world = World(
        num_copies=random.choice((1, 2, 5, 30)),
        num_blocks=random.choice((110, 160, 400)),
        num_frames=random.choice((1, 2, 3)),
        num_tokens=random.choice((7, 16, 64)),
        kept_tokens=random.choice((4, 8, 12, 7)),
        num_spares=random.choice((0, 2, 3, 20, 64)),
        random=random if seed % 2 else None,
    )
    roots = [tuple(random.choices(range(1000), k=random.randint(1, 90))) for _ in range(3)]
    told: list[tuple[int, ...]] = list(roots)
    alive: list[Sequence] = []
    for _ in range(random.randint(50, 150)):
        if random.random() < 0.3 and world.scheduler.num_waiting < 50:
            before = random.choice(told)
            prompt = (
                *before[: random.choice((len(before), random.randint(1, len(before))))],
                *random.choices(range(9), k=7),
            )
            sampling = {"repetition_penalty": 1.1} if random.random() < 0.1 else {}
            if len(prompt) < 250:
                salt = random.choice(("", "", "other"))
                alive.append(world.add(prompt, max_tokens=random.randint(1, 60), salt=salt, **sampling))
                told.append(prompt)
        if alive and random.random() < 0.05:
            world.scheduler.finish(alive.pop(random.randrange(len(alive))), FinishReason.CANCELLED)
        world.step(known_only=random.random() < 0.05)
        for sequence in [one for one in alive if one.finish_reason is not None]:
            alive.remove(sequence)
            told.append((*sequence.prompt_ids, *sequence.output_ids))
    world.run()
    for sequence in alive:
        assert sequence.output_ids == world.texts[sequence][len(sequence.prompt_ids) :]
    world.check_end()
