"""Sequences that begin alike share the blocks of what they have in common."""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING

import pytest

from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler import found_counts
from unicorn_async.scheduler.block_manager import BlockGroup
from unicorn_async.scheduler.request import FinishReason
from unicorn_async.scheduler.sequence import Sequence

from .made_scheduler import make_scheduler, schedule, sizes

if TYPE_CHECKING:
    from unicorn_async.scheduler.scheduler import Scheduler

TEXT = tuple(range(100, 160))  # 15 blocks of 4


def add(
    scheduler: Scheduler, prompt: tuple[int, ...], *, salt: str = "", want_logits: bool = False, **sampling: object
) -> Sequence:
    params = SamplingParams(**{"max_tokens": 4, "ignore_eos": True} | sampling)
    sequence = Sequence("r", prompt, params, seed=0, want_logits=want_logits, cache_salt=salt)
    scheduler.add(sequence)
    return sequence


def run(scheduler: Scheduler, token: int = 7) -> int:
    """Run until nothing is left to do; returns how many tokens were computed."""
    computed = 0
    while scheduler.has_work:
        batch = schedule(scheduler)
        computed += batch.num_tokens
        scheduler.commit(batch, [token] * batch.num_samples)
    return computed


def sharing(groups: tuple[BlockGroup, ...] = (BlockGroup(0, 100),), **options: int) -> Scheduler:
    return make_scheduler(
        groups=groups, in_order=True, shares_prefixes=True, **{"max_context": 80, "max_num_seqs": 16} | options
    )


def test_a_prompt_that_was_there_is_computed_from_its_last_block_on() -> None:
    scheduler = sharing(max_num_batched_tokens=64)
    add(scheduler, TEXT)
    assert run(scheduler) == 60 + 3
    again = add(scheduler, TEXT)
    assert sizes(schedule(scheduler)) == [(again, 56, 4)]  # a token at least, and whole blocks
    assert again.num_prompt_found == 56


def test_a_turn_of_a_conversation_goes_on_behind_the_last_answer() -> None:
    scheduler = sharing(max_num_batched_tokens=64)
    first = add(scheduler, TEXT[:30], max_tokens=12)
    run(scheduler)
    second = add(scheduler, (*TEXT[:30], *first.output_ids, 1, 2, 3))
    assert sizes(schedule(scheduler)) == [(second, 40, 5)]  # of 41 positions that were computed


def test_what_comes_at_once_is_computed_once_and_held_once() -> None:
    scheduler = sharing((BlockGroup(0, 34),), max_num_batched_tokens=16)
    sequences = [add(scheduler, (*TEXT, number), max_tokens=2) for number in range(16)]
    prefilled = most_running = 0
    while any(sequence.num_prompt_found is None for sequence in sequences):
        batch = schedule(scheduler)
        prefilled += sum(item.num_tokens for item in batch.scheduled if not item.is_decode)
        most_running = max(most_running, scheduler.num_running)
        if scheduler.num_running == 16:
            assert scheduler.blocks_used == (15 + 16,)
        scheduler.commit(batch, [7] * batch.num_samples)
    assert [sequence.num_prompt_found for sequence in sequences] == [0] + [60] * 15
    assert prefilled == 61 + 15
    assert most_running == 16  # though 16 prompts of their own would not fit
    run(scheduler)
    assert scheduler.blocks_used == (0,)


def test_who_waits_for_a_prompt_computes_it_when_that_one_is_cancelled() -> None:
    scheduler = sharing(max_num_batched_tokens=16)
    first, second = add(scheduler, TEXT), add(scheduler, (*TEXT[:40], *range(20)))
    batch = schedule(scheduler)
    assert sizes(batch) == [(first, 0, 16)]
    scheduler.finish(first, FinishReason.CANCELLED)
    scheduler.commit(batch, [])
    assert sizes(schedule(scheduler)) == [(second, 16, 16)]


def test_a_different_beginning_shares_nothing_behind_it() -> None:
    scheduler = sharing(max_num_batched_tokens=64)
    add(scheduler, TEXT)
    run(scheduler)
    other = add(scheduler, (TEXT[0] + 1, *TEXT[1:]))
    assert sizes(schedule(scheduler)) == [(other, 0, 60)]


def test_only_who_has_the_same_salt_shares() -> None:
    scheduler = sharing(max_num_batched_tokens=64)
    add(scheduler, TEXT, salt="one")
    run(scheduler)
    other, same = add(scheduler, TEXT, salt="two"), add(scheduler, TEXT, salt="one")
    assert sizes(schedule(scheduler)) == [(other, 0, 60), (same, 56, 4)]


def test_no_salt_stands_for_tokens_before_a_prompt() -> None:
    scheduler = sharing(max_num_batched_tokens=64)
    salt = next(salt for salt in map(str, range(1 << 20)) if is_text(blake2b(salt.encode(), digest_size=16).digest()))
    forged = blake2b(salt.encode(), digest_size=16).digest() + struct.pack("<4I", 1, 2, 3, 4)
    for prompt, given in (((1, 2, 3, 4, 5), salt), (TEXT, forged.decode())):
        add(scheduler, prompt, salt=given)
        run(scheduler)
    other = add(scheduler, (1, 2, 3, 4, *TEXT), salt=salt)
    assert sizes(schedule(scheduler)) == [(other, 4, 60)]


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"repetition_penalty": 1.1}, 56),
        ({"presence_penalty": 0.5}, 56),
        ({"want_logits": True}, 0),
    ],
)
def test_who_needs_the_prompt_s_logits_computes_all(options: dict[str, object], start: int) -> None:
    scheduler = sharing(max_num_batched_tokens=64)
    add(scheduler, TEXT)
    run(scheduler)
    again = add(scheduler, TEXT, **options)
    assert sizes(schedule(scheduler))[0] == (again, start, 60 - start)


def test_a_step_has_no_more_found_tokens_to_count_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_counts, "MAX_COUNTED", 70)
    scheduler = sharing(max_num_batched_tokens=64)
    add(scheduler, TEXT)
    run(scheduler)
    counted = [add(scheduler, TEXT, repetition_penalty=1.1) for _ in range(3)]
    plain = add(scheduler, TEXT)
    assert sizes(schedule(scheduler)) == [(counted[0], 56, 4)]
    assert [part for part in sizes(schedule(scheduler)) if part[1] == 56] == [(counted[1], 56, 4)]
    scheduler.finish(counted[1], FinishReason.CANCELLED)
    later = [part for part in sizes(schedule(scheduler)) if part[1] == 56]
    assert later == [(counted[2], 56, 4), (plain, 56, 4)]


@pytest.mark.parametrize(("prompt", "found"), [(TEXT, 40), ((*TEXT[:40], *TEXT[:20]), 56)])
def test_only_as_many_different_tokens_are_found_as_a_step_can_count(
    prompt: tuple[int, ...], found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(found_counts, "MAX_COUNTED", 41)
    scheduler = sharing(max_num_batched_tokens=64)
    add(scheduler, prompt)
    run(scheduler)
    again = add(scheduler, prompt, repetition_penalty=1.1)
    assert sizes(schedule(scheduler)) == [(again, found, 60 - found)]


def test_a_window_s_blocks_have_to_be_there_too() -> None:
    scheduler = sharing((BlockGroup(0, 40), BlockGroup(9, 40)), max_num_batched_tokens=64)
    add(scheduler, TEXT, max_tokens=1)
    run(scheduler)
    whole, half = add(scheduler, TEXT), add(scheduler, TEXT[:21])
    assert sizes(schedule(scheduler)) == [(whole, 56, 4), (half, 20, 1)]
    full, windowed = whole.block_tables
    assert -1 not in full
    assert windowed[:12] == [-1] * 12  # position 56 sees 48 and later ones
    assert len(windowed) == 15


def test_the_end_of_a_long_prompt_is_lost_before_its_beginning() -> None:
    scheduler = sharing((BlockGroup(0, 20),), max_num_batched_tokens=64)
    add(scheduler, TEXT, max_tokens=1)
    run(scheduler)  # 15 blocks, of 20
    add(scheduler, tuple(range(32)), max_tokens=1)
    run(scheduler)  # 8 blocks: the 5 others, and 3
    again = add(scheduler, TEXT, max_tokens=1)
    assert sizes(schedule(scheduler)) == [(again, 48, 12)]


def test_a_preempted_sequence_finds_what_it_had_computed() -> None:
    scheduler = sharing((BlockGroup(0, 14),), max_num_batched_tokens=64, max_num_seqs=2)
    old, young = add(scheduler, TEXT[:28], max_tokens=10), add(scheduler, tuple(range(20)), max_tokens=20)
    restarts: list[tuple[int, int]] = []
    while scheduler.has_work:
        batch = schedule(scheduler)
        restarts += [(item.start, item.num_tokens) for item in batch.scheduled if item.resets and item.start]
        scheduler.commit(batch, [7] * batch.num_samples)
    assert scheduler.num_preemptions == 1
    [(start, count)] = restarts
    assert (start, count) == (16, 9)  # the older one has taken the blocks behind that
    assert (len(old.output_ids), len(young.output_ids), young.num_prompt_found) == (10, 20, 0)


@pytest.mark.parametrize("shares", [True, False])
def test_prompts_are_counted_once_whether_they_may_be_found_or_not(shares: bool) -> None:
    scheduler = make_scheduler(in_order=True, shares_prefixes=shares, max_num_batched_tokens=64)
    first, second = add(scheduler, TEXT[:40]), add(scheduler, TEXT[:41])
    run(scheduler)
    assert scheduler.prefixes.num_prompt_tokens == 81
    assert (first.num_prompt_found, second.num_prompt_found) == (0, 40 * shares)
    assert scheduler.prefixes.num_found == 40 * shares


def test_a_scheduler_that_shares_nothing_keeps_nothing() -> None:
    scheduler = make_scheduler(in_order=True, max_num_batched_tokens=64)
    for _ in range(2):
        first = add(scheduler, TEXT[:40])
        assert sizes(schedule(scheduler)) == [(first, 0, 40)]
        scheduler.finish(first, FinishReason.CANCELLED)
        scheduler.commit(scheduler._in_flight[0], [7])
