"""What the scheduler puts into a step, and how sequences end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest

from unicorn_async.errors import PromptTooLongError, QueueFullError, RequestError
from unicorn_async.scheduler.block_manager import BlockGroup
from unicorn_async.scheduler.request import FinishReason
from unicorn_async.scheduler.sequence import PENDING, Sequence

from .made_scheduler import EOS, add, make_scheduler, schedule, sizes

if TYPE_CHECKING:
    from unicorn_async.scheduler.scheduler import Scheduler
    from unicorn_async.scheduler.step_budget import StepBudget


def test_steps_of_known_tokens_alone_leave_decodes_to_later_steps() -> None:
    scheduler = make_scheduler()
    short, long = add(scheduler, 6), add(scheduler, 40)
    batches = [scheduler.schedule(known_only=True) for _ in range(4)]
    assert [sizes(batch) for batch in batches[:3] if batch is not None] == [
        [(short, 0, 6), (long, 0, 10)],
        [(long, 10, 16)],
        [(long, 26, 14)],
    ]
    assert batches[3] is None
    decodes = schedule(scheduler)
    assert sizes(decodes) == [(short, 6, 1), (long, 40, 1)]
    assert all(item.token_ids == (PENDING,) for item in decodes.scheduled)


def test_a_long_prompt_is_chunked_and_samples_at_its_end_alone() -> None:
    scheduler = make_scheduler()
    sequence = add(scheduler, 20)
    first, second = schedule(scheduler), schedule(scheduler)
    assert sizes(first) == [(sequence, 0, 16)]
    assert sizes(second) == [(sequence, 16, 4)]
    assert [item.samples for batch in (first, second) for item in batch.scheduled] == [False, True]
    assert [item.resets for batch in (first, second) for item in batch.scheduled] == [True, False]
    assert second.scheduled[0].token_ids == (26, 27, 28, 29)
    assert scheduler.commit(first, []) == []
    (result,) = scheduler.commit(second, [5])
    assert (result.sequence, result.token_id, result.finish_reason) == (sequence, 5, None)


def test_several_prompts_share_a_step_in_order_of_arrival() -> None:
    scheduler = make_scheduler()
    one, two, three = (add(scheduler, num_prompt) for num_prompt in (5, 7, 9))
    assert sizes(schedule(scheduler)) == [(one, 0, 5), (two, 0, 7), (three, 0, 4)]


def test_the_next_step_is_scheduled_before_the_token_is_seen() -> None:
    scheduler = make_scheduler()
    sequence = add(scheduler, 3)
    prefill, decode, another = (schedule(scheduler) for _ in range(3))
    assert decode.scheduled[0].token_ids == another.scheduled[0].token_ids == (PENDING,)
    assert (decode.scheduled[0].start, another.scheduled[0].start) == (3, 4)
    assert decode.scheduled[0].is_decode and not prefill.scheduled[0].is_decode
    scheduler.commit(prefill, [5])
    scheduler.commit(decode, [6])
    assert schedule(scheduler).scheduled[0].token_ids == (PENDING,)
    scheduler.commit(another, [7])
    assert sequence.output_ids == [5, 6, 7]


def test_a_token_that_is_known_is_given() -> None:
    scheduler = make_scheduler()
    add(scheduler, 3)
    scheduler.commit(schedule(scheduler), [5])
    assert schedule(scheduler).scheduled[0].token_ids == (5,)


def test_decodes_come_first_and_never_starve_behind_prompts() -> None:
    scheduler = make_scheduler(max_num_seqs=8)
    decoding = [add(scheduler, 2, max_tokens=20) for _ in range(3)]
    scheduler.commit(schedule(scheduler), [1, 1, 1])
    for _ in range(10):
        if scheduler.num_waiting == 0:
            add(scheduler, 40, max_tokens=1)
        batch = schedule(scheduler)
        assert [item.sequence for item in batch.scheduled if item.is_decode][:3] == decoding
        assert batch.num_tokens == 16
        scheduler.commit(batch, [1] * batch.num_samples)


@pytest.mark.parametrize(
    ("sampling", "tokens", "reason"),
    [
        ({}, [1, EOS], FinishReason.STOP),
        ({"ignore_eos": True, "max_tokens": 3}, [1, EOS, 2], FinishReason.LENGTH),
        ({"stop_token_ids": (7,), "ignore_eos": True}, [7], FinishReason.STOP),
        ({"max_tokens": 2}, [1, 2], FinishReason.LENGTH),
        ({"max_tokens": 2}, [1, EOS], FinishReason.STOP),
        ({}, list(range(1, 5)), FinishReason.LENGTH),
    ],
)
def test_a_sequence_ends(sampling: dict[str, object], tokens: list[int], reason: FinishReason) -> None:
    scheduler = make_scheduler(max_context=7)
    sequence = add(scheduler, 3, **sampling)
    results = []
    for token in tokens:
        results += scheduler.commit(schedule(scheduler), [token])
    assert [result.token_id for result in results] == tokens
    assert [result.finish_reason for result in results] == [None] * (len(tokens) - 1) + [reason]
    assert sequence.finish_reason is reason
    assert not scheduler.has_work
    assert scheduler.schedule() is None


def test_nothing_is_scheduled_past_the_last_token() -> None:
    scheduler = make_scheduler()
    add(scheduler, 3, max_tokens=2)
    first, second = schedule(scheduler), schedule(scheduler)
    assert scheduler.schedule() is None
    assert scheduler.has_work
    scheduler.commit(first, [1])
    assert scheduler.commit(second, [2])[0].finish_reason is FinishReason.LENGTH


def test_tokens_after_the_end_are_dropped_and_blocks_wait_for_the_steps_in_flight() -> None:
    scheduler = make_scheduler()
    sequence = add(scheduler, 3)
    first, second = schedule(scheduler), schedule(scheduler)
    assert scheduler.commit(first, [EOS])[0].finish_reason is FinishReason.STOP
    assert scheduler.blocks_used == (1,)
    assert sequence.state_index >= 0
    assert scheduler.commit(second, [5]) == []
    assert sequence.output_ids == [EOS]
    assert scheduler.blocks_used == (0,)
    assert sequence.state_index == -1


def test_a_waiting_sequence_is_cancelled_at_once() -> None:
    scheduler = make_scheduler()
    sequence = add(scheduler, 3)
    scheduler.finish(sequence, FinishReason.CANCELLED)
    scheduler.finish(sequence, FinishReason.STOP)
    assert sequence.finish_reason is FinishReason.CANCELLED
    assert not scheduler.has_work


def test_a_running_sequence_is_cancelled_when_its_steps_have_run() -> None:
    scheduler = make_scheduler()
    sequence, other = add(scheduler, 3), add(scheduler, 3)
    batch = schedule(scheduler)
    scheduler.finish(sequence, FinishReason.CANCELLED)
    scheduler.finish(sequence, FinishReason.CANCELLED)
    assert [item.sequence for item in schedule(scheduler).scheduled] == [other]
    assert [result.sequence for result in scheduler.commit(batch, [1, 2])] == [other]
    assert sequence.output_ids == []
    assert scheduler.blocks_used == (1,)


def test_an_evaluation_computes_every_position_and_samples_nothing() -> None:
    scheduler = make_scheduler(max_context=20)
    sequence = add(scheduler, 20, want_logits=True)
    first, second = schedule(scheduler), schedule(scheduler)
    assert scheduler.schedule() is None
    assert first.num_samples == second.num_samples == 0
    assert scheduler.commit(first, []) == []
    (result,) = scheduler.commit(second, [])
    assert (result.token_id, result.finish_reason) == (None, FinishReason.STOP)
    assert sequence.output_ids == []


def test_a_step_has_no_more_rows_of_logits_than_there_is_memory_for() -> None:
    scheduler = make_scheduler(max_logit_rows=4)
    decoding, evaluated, last = add(scheduler, 2), add(scheduler, 8, want_logits=True), add(scheduler, 2)
    first = schedule(scheduler)
    assert sizes(first) == [(decoding, 0, 2), (evaluated, 0, 3)]
    scheduler.commit(first, [1])
    assert sizes(schedule(scheduler)) == [(decoding, 2, 1), (evaluated, 3, 3)]
    assert sizes(schedule(scheduler)) == [(decoding, 3, 1), (evaluated, 6, 2), (last, 0, 2)]


@pytest.mark.parametrize(("max_num_batched_tokens", "rest"), [(7, (6, 1)), (11, (11, 1))])
def test_one_token_left_of_a_prompt_or_of_a_recomputation_is_no_decode(
    max_num_batched_tokens: int, rest: tuple[int, int]
) -> None:
    scheduler = make_scheduler(groups=(BlockGroup(0, 6),), max_num_batched_tokens=max_num_batched_tokens)
    add(scheduler, 7, max_tokens=7)
    sequence = add(scheduler, 7, max_tokens=12)
    parts: dict[tuple[int, int], list[bool]] = {}
    while scheduler.has_work:
        batch = schedule(scheduler)
        for item in batch.scheduled:
            if item.sequence is sequence:
                parts.setdefault((item.start, item.num_tokens), []).append(item.is_decode)
        scheduler.commit(batch, [5] * batch.num_samples)
    assert scheduler.num_preemptions == 1
    assert parts[rest] == [False]
    assert parts[12, 1] == [True]


def test_no_more_sequences_are_preempted_than_needed() -> None:
    scheduler = make_scheduler(groups=(BlockGroup(0, 9),))
    sequences = [add(scheduler, 3, max_tokens=14) for _ in range(3)]
    batches = [schedule(scheduler) for _ in range(10)]  # 12 positions each: 9 blocks
    for batch in batches:
        assert scheduler.schedule() is None
        scheduler.commit(batch, [5] * batch.num_samples)
    assert scheduler.num_preemptions == 1
    assert [item.sequence for item in schedule(scheduler).scheduled] == sequences[:2]
    assert [sequence.state_index >= 0 for sequence in sequences] == [True, True, False]


def test_a_prompt_waits_until_it_fits() -> None:
    scheduler = make_scheduler(groups=(BlockGroup(0, 6),))
    one, two = add(scheduler, 14, max_tokens=2), add(scheduler, 14, max_tokens=2)
    first = schedule(scheduler)
    assert sizes(first) == [(one, 0, 14)]
    scheduler.commit(first, [1])
    scheduler.commit(schedule(scheduler), [1])
    assert sizes(schedule(scheduler)) == [(two, 0, 14)]


def test_the_latest_arrival_is_preempted_and_goes_on_later_with_its_tokens() -> None:
    scheduler = make_scheduler(groups=(BlockGroup(0, 6),))
    old, new = add(scheduler, 7, max_tokens=12), add(scheduler, 7, max_tokens=12)
    for _ in range(6):  # 7 + 5 positions each: 6 blocks, and no seventh
        batch = schedule(scheduler)
        scheduler.commit(batch, [5] * batch.num_samples)
    assert sizes(schedule(scheduler)) == [(old, 12, 1)]
    assert (new.state_index, new.block_tables, new.output_ids) == (-1, [], [5] * 6)
    assert scheduler.num_preemptions == 1


def test_a_preempted_sequence_keeps_the_token_in_flight_and_is_recomputed() -> None:
    scheduler = make_scheduler(groups=(BlockGroup(0, 6),))
    old, new = add(scheduler, 7, max_tokens=8), add(scheduler, 7, max_tokens=12)
    batches = [schedule(scheduler) for _ in range(6)]
    assert scheduler.schedule() is None  # the newer one's steps in flight use its blocks
    late = add(scheduler, 1, max_tokens=1)
    for batch in batches:
        assert scheduler.schedule() is None
        assert len(scheduler.commit(batch, [5, 6])) == 2
    assert new.output_ids == [6] * 6
    for _ in range(2):
        scheduler.commit(schedule(scheduler), [5])
    assert old.finish_reason is FinishReason.LENGTH
    batch = schedule(scheduler)
    assert sizes(batch) == [(new, 0, 13), (late, 0, 1)]
    assert batch.scheduled[0].token_ids == (*new.prompt_ids, *[6] * 6)
    assert batch.scheduled[0].resets and batch.scheduled[0].samples


def test_a_chunk_shrinks_to_the_blocks_that_are_free() -> None:
    scheduler = make_scheduler(groups=(BlockGroup(4, 3), BlockGroup(0, 100)))
    sequence = add(scheduler, 20, max_tokens=1)
    num_tokens = []
    while scheduler.has_work:
        batch = schedule(scheduler)
        num_tokens.append(batch.num_tokens)
        scheduler.commit(batch, [1] * batch.num_samples)
    assert num_tokens == [12, 8]
    assert sequence.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("in_order", "reads_again", "chunks"),
    [(True, False, [16] * 20), (False, False, [16, 12]), (True, True, [16, 12])],
)
def test_a_prompt_goes_on_through_the_blocks_of_a_window_and_a_step_where_layers_take_steps_in_order(
    in_order: bool, reads_again: bool, chunks: list[int]
) -> None:
    groups = (BlockGroup(0, 100), BlockGroup(9, 7))  # blocks of 4: 8 positions before a step, and its 16
    scheduler = make_scheduler(groups=groups, max_context=400, in_order=in_order, reads_again=reads_again)
    add(scheduler, 320)
    batches = [scheduler.schedule(known_only=True) for _ in range(21)]
    assert [batch.num_tokens for batch in batches if batch is not None] == chunks
    for batch in batches[: len(chunks)]:
        assert batch is not None
        scheduler.commit(batch, [7] * batch.num_samples)
    assert schedule(scheduler).num_tokens == (1 if in_order and not reads_again else 16)


def test_what_can_never_run_is_refused() -> None:
    scheduler = make_scheduler(groups=(BlockGroup(0, 6),), max_context=40)
    with pytest.raises(RequestError, match="expected at least 1 token"):
        add(scheduler, 0)
    with pytest.raises(PromptTooLongError, match="40 tokens leave no room in a context of 40"):
        add(scheduler, 40)
    with pytest.raises(RequestError, match="26 together: need 7 blocks of the KV cache, which has 6"):
        add(scheduler, 20, max_tokens=6)
    add(scheduler, 20, max_tokens=5)
    assert scheduler.num_waiting == 1


def test_a_full_queue_refuses() -> None:
    scheduler = make_scheduler(max_num_seqs=1, max_waiting=1)
    first, _ = add(scheduler, 2), add(scheduler, 2)
    with pytest.raises(QueueFullError, match="at most 1 may"):
        add(scheduler, 2)
    schedule(scheduler)
    with pytest.raises(QueueFullError, match="1 requests wait already"):
        add(scheduler, 2)
    scheduler.finish(first, FinishReason.CANCELLED)
    with pytest.raises(QueueFullError):  # its step is in flight
        add(scheduler, 2)


def test_steps_are_committed_in_order() -> None:
    scheduler = make_scheduler()
    add(scheduler, 2)
    schedule(scheduler)
    second = schedule(scheduler)
    with pytest.raises(AssertionError, match="step 1 is not the oldest in flight"):
        scheduler.commit(second, [1])


@dataclass
class FixedBudget:
    """Has room for so many tokens of prompts, whoever decodes; notes what it is told."""

    room: int
    seen: list[tuple[int, int, float]] = field(default_factory=list)

    def room_beside(self, num_decodes: int) -> int:
        return self.room

    def observe(self, num_decodes: int, num_tokens: int, seconds: float) -> None:
        self.seen.append((num_decodes, num_tokens, seconds))


def decoding(budget: FixedBudget) -> tuple[Scheduler, Sequence]:
    """A scheduler with one sequence that decodes from the next step on."""
    scheduler = make_scheduler(step_budget=cast("StepBudget", budget), max_num_batched_tokens=32)
    first = add(scheduler, 3, max_tokens=40)
    scheduler.commit(schedule(scheduler), [7], step_s=0.5)
    return scheduler, first


def test_prompts_beside_decodes_get_what_the_budget_leaves() -> None:
    scheduler, first = decoding(FixedBudget(9))
    long = add(scheduler, 30)
    assert sizes(schedule(scheduler)) == [(first, 3, 1), (long, 0, 9)]
    assert sizes(schedule(scheduler)) == [(first, 4, 1), (long, 9, 9)]
    assert scheduler.num_bounded_steps == 2


def test_all_prompts_of_a_step_share_what_the_budget_leaves() -> None:
    scheduler, first = decoding(FixedBudget(9))
    short, long = add(scheduler, 6, max_tokens=9), add(scheduler, 30)
    assert sizes(schedule(scheduler)) == [(first, 3, 1), (short, 0, 6), (long, 0, 3)]
    assert sizes(schedule(scheduler)) == [(first, 4, 1), (short, 6, 1), (long, 3, 9)]


@pytest.mark.parametrize("room", [0, 1])
def test_a_prompt_gets_a_block_where_the_budget_leaves_less(room: int) -> None:
    scheduler, first = decoding(FixedBudget(room))
    long = add(scheduler, 30)
    assert sizes(schedule(scheduler)) == [(first, 3, 1), (long, 0, 4)]


def test_prompts_get_all_there_is_while_nobody_decodes() -> None:
    budget = FixedBudget(4)
    scheduler = make_scheduler(step_budget=cast("StepBudget", budget), max_num_batched_tokens=32)
    one, other = add(scheduler, 20, max_tokens=1), add(scheduler, 30, max_tokens=1)
    assert sizes(schedule(scheduler)) == [(one, 0, 20), (other, 0, 12)]
    assert sizes(schedule(scheduler)) == [(other, 12, 18)]
    assert scheduler.num_bounded_steps == 0


def test_a_step_that_has_room_for_all_that_waits_is_not_bounded() -> None:
    scheduler, _ = decoding(FixedBudget(9))
    add(scheduler, 5)
    schedule(scheduler)
    assert scheduler.num_bounded_steps == 0


def test_the_budget_is_told_what_steps_took_where_that_is_known() -> None:
    budget = FixedBudget(9)
    scheduler, _ = decoding(budget)
    add(scheduler, 5)
    scheduler.commit(schedule(scheduler), [7, 7])
    scheduler.commit(schedule(scheduler), [7, 7], step_s=0.25)
    add(scheduler, 5)
    scheduler.commit(schedule(scheduler), [7, 7, 7], step_s=0.125)
    assert budget.seen == [(0, 3, 0.5), (2, 2, 0.25), (2, 7, 0.125)]
