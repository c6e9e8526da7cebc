"""Who gets proposals, and what becomes of them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.block_manager import BlockGroup
from unicorn_async.scheduler.request import FinishReason
from unicorn_async.scheduler.sequence import PENDING, Sequence
from unicorn_async.scheduler.speculation import Speculation
from unicorn_async.scheduler.step_costs import StepCosts

from .made_scheduler import EOS, make_scheduler, schedule
from .speculating import PROMPT, add, begun, proposed, speculating

if TYPE_CHECKING:
    from unicorn_async.scheduler.scheduler import Scheduler


def test_right_proposals_are_tokens_and_the_first_wrong_one_ends_them() -> None:
    scheduler, _ = speculating()
    sequence = add(scheduler)
    batch = begun(scheduler)
    assert proposed(batch)[:3] == [5, 6, 7]
    assert scheduler.schedule() is None  # where it goes on is not known
    sampled = [5, 6, 70, *range(80, 80 + batch.num_samples - 3)]
    assert [result.token_id for result in scheduler.commit(batch, sampled)] == [5, 6, 70]
    assert sequence.output_ids == [4, 5, 6, 70]
    following = schedule(scheduler)
    (part,) = [item for item in following.scheduled if not item.proposal]
    assert (part.start, part.token_ids, part.is_given) == (len(PROMPT) + 3, (70,), True)
    assert scheduler.speculation is not None
    assert scheduler.speculation.num_right == 2


def test_what_the_model_itself_predicts_is_waited_for_while_that_pays() -> None:
    costs = StepCosts((1, 2, 4, 8, 16))
    for size in 3 * (1, 2, 4, 8, 16):
        costs.observe(size, 1.0 if size == 1 else 1.4)
    scheduler = make_scheduler(speculation=Speculation(costs, 16, predicts=True), max_num_seqs=8, max_context=200)
    sequence = Sequence("r", (1, 2, 3), SamplingParams(max_tokens=150), seed=0)
    scheduler.add(sequence)
    batch = schedule(scheduler)
    assert batch.predicts and batch.num_drafts
    assert scheduler.schedule() is None  # it waits for what comes behind its first token
    scheduler.commit(batch, [4], predicted=[(5,)])
    batch = schedule(scheduler)
    assert proposed(batch) == [5]
    scheduler.commit(batch, [5, 6], predicted=[(6,), (7,)])
    assert sequence.output_ids == [4, 5, 6]
    lengths, num_without = [], 0
    while sequence.finish_reason is None:  # from here on all that is predicted is wrong
        batch = schedule(scheduler)
        assert batch.predicts
        num_without += not batch.num_drafts
        if proposed(batch):
            lengths.append(len(sequence.output_ids))
        sampled = [100 + len(sequence.output_ids)] * batch.num_samples
        scheduler.commit(batch, sampled, predicted=[(9,)] * batch.num_samples if batch.num_drafts else [])
    assert len(lengths) > 2
    assert any(after - before >= 60 for before, after in pairwise(lengths))  # and then it is tried again
    assert num_without > 60


def test_a_draft_that_a_step_has_no_room_for_is_not_proposed_behind_its_token() -> None:
    costs = StepCosts((1, 2, 4, 8, 16))
    scheduler = make_scheduler(speculation=Speculation(costs, 16), num_spare_states=0)
    sequence = Sequence("r", (1, 2, 3), SamplingParams(max_tokens=30), seed=0)
    scheduler.add(sequence)
    scheduler.commit(schedule(scheduler), [4])
    sequence.drafted, sequence.draft_count = (5, 6), 2
    assert not proposed(schedule(scheduler))
    assert (sequence.drafted, sequence.draft_count) == ((), 0)


def test_more_sequences_than_a_step_has_room_for_wait_for_no_drafts() -> None:
    costs = StepCosts((1, 2))
    for size in 3 * (1, 2):
        costs.observe(size, 1.0)
    speculation = Speculation(costs, 16, predicts=True)
    scheduler = make_scheduler(speculation=speculation, max_num_batched_tokens=2)
    running = [Sequence("r", (number,), SamplingParams(max_tokens=20), seed=0) for number in range(3)]
    for sequence in running:
        scheduler.add(sequence)
    num_decoding = 0
    while scheduler.has_work:
        batch = schedule(scheduler)
        scheduler.commit(batch, [5] * batch.num_samples)
        num_decoding = max(num_decoding, sum(one.is_decoding for one in scheduler.running))
        if len(scheduler.running) == 3:
            assert not speculation.wish_drafts(scheduler.running, 0, lambda _: 0)
            assert not any(sequence.awaits_draft for sequence in running)
    assert num_decoding == 3
    assert {len(sequence.output_ids) for sequence in running} == {20}


def test_a_draft_is_not_proposed_behind_a_token_that_a_step_beside_a_prompt_is_to_sample() -> None:
    scheduler, _ = speculating()
    sequence = add(scheduler)
    batch = begun(scheduler)
    scheduler.commit(batch, [5] * batch.num_samples)
    other = Sequence("other", (21, 22, 23), SamplingParams(max_tokens=30), seed=0)
    scheduler.add(other)
    sequence.drafted, sequence.draft_count = (50, 60), 2
    beside = schedule(scheduler)
    assert {item.sequence for item in beside.scheduled} == {sequence, other}
    following = schedule(scheduler)
    assert [item.sequence for item in following.scheduled if not item.proposal] == [sequence, other]
    assert not {50, 60} & set(proposed(following))
    assert not sequence.awaits_draft


def predicting(**given: Any) -> tuple[Scheduler, StepCosts]:
    costs = StepCosts((1, 2, 4, 8, 16))
    for size in 3 * (1, 2, 4, 8, 16):
        costs.observe(size, 1.0)
    return make_scheduler(speculation=Speculation(costs, 16, predicts=True), max_num_seqs=8, **given), costs


def answer_right(scheduler: Scheduler, drafting_s: float) -> list[int]:
    """Have all that is predicted to one sequence be right; returns how many tokens were each time."""
    counts = []
    while scheduler.has_work:
        batch = schedule(scheduler)
        first = batch.scheduled[0].start + batch.scheduled[0].num_tokens
        sampled = [100 + first + row for row in range(batch.num_samples)]
        counts.append(batch.num_drafts)
        more = [tuple(token + 1 + number for number in range(batch.num_drafts)) for token in sampled]
        spent_s = drafting_s * (batch.num_drafts - 1)
        scheduler.commit(batch, sampled, step_s=1.0 + spent_s, predicted=more, drafting_s=spent_s)
    return counts


def test_the_model_predicts_the_more_tokens_the_less_each_costs() -> None:
    most = []
    for drafting_s in (0.01, 0.3, 3.0):
        scheduler, _ = predicting(max_context=200)
        sequence = Sequence("r", (1, 2, 3), SamplingParams(max_tokens=150), seed=0)
        scheduler.add(sequence)
        counts = answer_right(scheduler, drafting_s)
        assert sequence.output_ids == [103 + number for number in range(150)]
        assert scheduler.blocks_used == (0,)
        most.append(max(counts[-8:-4]))
    assert most[0] == 7 > most[1] > most[2] == 1


def test_what_the_model_predicts_gets_blocks_for_its_positions_or_is_not_predicted() -> None:
    found = []
    for num_free in (0, 1):
        scheduler, _ = predicting(groups=(BlockGroup(0, 8),))
        scheduler.add(Sequence("r", (1, 2, 3, 4, 5, 6), SamplingParams(max_tokens=20), seed=0))
        scheduler.commit(schedule(scheduler), [7], predicted=[(9,)])
        pool = scheduler._blocks.pools[0]
        while pool.num_free > num_free:
            pool.allocate(None)
        batch = schedule(scheduler)
        end = batch.scheduled[-1].start + 1
        assert len(batch.scheduled[0].sequence.block_tables[0]) * 4 >= end + batch.num_drafts - 1
        found.append((end, batch.num_drafts))
    assert found == [(8, 5), (8, 7)]


def test_what_becomes_of_a_prediction_is_counted_of_its_own_tokens_alone() -> None:
    scheduler, _ = speculating()
    sequence = Sequence("r", PROMPT, SamplingParams(max_tokens=30), seed=0, prediction_ids=(4, 40, 41, 42, 43))
    scheduler.add(sequence)
    batch = begun(scheduler)
    assert proposed(batch)[:2] == [40, 41]
    right = 2
    scheduler.commit(batch, [40, 41, *[70] * (batch.num_samples - right)])
    wrong = len(proposed(batch)) - right
    assert (sequence.num_predicted_right, sequence.num_predicted_wrong) == (right, wrong)
    for token in (5, 6, 7):  # as the prompt has it
        batch = schedule(scheduler)
        scheduler.commit(batch, [token] * batch.num_samples)
    batch = schedule(scheduler)
    assert proposed(batch)[:1] == [8]
    scheduler.commit(batch, [8] * batch.num_samples)
    assert (sequence.num_predicted_right, sequence.num_predicted_wrong) == (right, wrong)


def test_the_end_of_a_prediction_leaves_a_step_as_it_is() -> None:
    scheduler, _ = speculating()
    scheduler.add(Sequence("r", (60, 61), SamplingParams(max_tokens=30), seed=0, prediction_ids=(4,)))
    prefill, batch = schedule(scheduler), schedule(scheduler)  # the prediction's only token is on its way
    assert not batch.has_proposals
    assert schedule(scheduler).scheduled[0].token_ids == (PENDING,)  # and the next step waits for nobody
    scheduler.commit(prefill, [4])


def test_the_first_proposals_come_behind_a_token_that_nobody_has_seen() -> None:
    scheduler, _ = speculating()
    sequence = add(scheduler)
    prefill, batch = schedule(scheduler), schedule(scheduler)
    assert batch.scheduled[0].token_ids == (PENDING,)
    assert proposed(batch)[:2] == [5, 6]
    scheduler.commit(prefill, [4])
    assert len(scheduler.commit(batch, [5] * batch.num_samples)) == 2
    assert sequence.output_ids == [4, 5, 5]


@pytest.mark.parametrize(("sampled", "output"), [([5, EOS, 7, 8], [4, 5]), ([EOS], [4, EOS]), ([5, 6], [4, 5, 6])])
def test_an_answer_ends_among_proposals(sampled: list[int], output: list[int]) -> None:
    scheduler, _ = speculating()
    sequence = add(scheduler, max_tokens=3)
    batch = begun(scheduler)
    assert batch.num_samples <= 2  # no more than may come
    scheduler.commit(batch, [*sampled, *[0] * 16][: batch.num_samples])
    assert sequence.output_ids[: len(output)] == output
    assert sequence.finish_reason is not None
    assert not scheduler.has_work
    assert scheduler.blocks_used == (0,)


def test_who_leaves_with_proposals_in_flight_gives_everything_back() -> None:
    scheduler, _ = speculating()
    sequence = add(scheduler)
    batch = begun(scheduler)
    assert batch.has_proposals
    scheduler.finish(sequence, FinishReason.CANCELLED)
    assert scheduler.blocks_used != (0,)
    assert scheduler.commit(batch, [5] * batch.num_samples) == []
    assert not scheduler.has_work
    assert scheduler.blocks_used == (0,)


def test_what_comes_of_proposals_is_counted_with_the_next_step() -> None:
    scheduler, _ = speculating()
    sequence = add(scheduler, presence_penalty=0.5)
    batch = begun(scheduler)
    scheduler.commit(batch, [5, 6, 70, *range(80, 80 + batch.num_samples - 3)])
    following = schedule(scheduler)
    assert [item.num_uncounted for item in following.scheduled] == [2]  # 6 and 70; 5 came as without
    scheduler.commit(following, [71])
    assert (schedule(scheduler).scheduled[0].num_uncounted, sequence.num_uncounted) == (0, 0)


def test_nothing_is_proposed_beside_prompts_nor_beside_many() -> None:
    scheduler, _ = speculating()
    add(scheduler)
    batch = begun(scheduler)
    add(scheduler)
    scheduler.commit(batch, [5] * batch.num_samples)
    assert not schedule(scheduler).has_proposals
    crowded, _ = speculating()
    for _ in range(5):
        add(crowded, max_tokens=60)
    for _ in range(8):
        batch = schedule(crowded)
        assert not batch.has_proposals
        crowded.commit(batch, [4] * batch.num_samples)


def test_a_step_samples_no_more_than_it_may() -> None:
    scheduler, _ = speculating(max_sampled=4)
    add(scheduler)
    assert begun(scheduler).num_samples == 4


def test_the_time_that_the_device_waited_for_commands_to_be_recorded_is_not_taken_for_a_proposal_s() -> None:
    scheduler, costs = speculating()
    add(scheduler)
    scheduler.commit(schedule(scheduler), [4], step_s=1.0, start_s=10.0)
    batch = schedule(scheduler)
    scheduler.commit(batch, [5] * batch.num_samples, step_s=2.0, start_s=15.0, was_late=True)
    after = schedule(scheduler)
    scheduler.commit(after, [6] * after.num_samples, step_s=1.0, start_s=47.0, was_late=True)
    assert costs.gap_s == 0.0


def test_the_time_that_the_device_waited_behind_proposals_is_noted() -> None:
    scheduler, costs = speculating()
    add(scheduler)
    scheduler.commit(schedule(scheduler), [4], step_s=1.0, start_s=10.0)
    batch = schedule(scheduler)
    assert costs.gap_s == 0.0
    scheduler.commit(batch, [5] * batch.num_samples, step_s=2.0, start_s=15.0)
    after = schedule(scheduler)
    scheduler.commit(after, [6] * after.num_samples, step_s=1.0, start_s=17.25)
    assert costs.gap_s == 0.25
