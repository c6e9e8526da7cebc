"""Who gets proposals, and what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from unicorn_async.config import SamplingParams
from unicorn_async.grammar import Grammar
from unicorn_async.scheduler.request import FinishReason
from unicorn_async.scheduler.sequence import PENDING, Sequence
from unicorn_async.scheduler.speculation import Speculation
from unicorn_async.scheduler.step_costs import StepCosts

from .made_scheduler import EOS, make_scheduler, schedule

if TYPE_CHECKING:
    from unicorn_async.scheduler.batch import Batch
    from unicorn_async.scheduler.scheduler import Scheduler

PROMPT = (1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3)


def speculating(max_sampled: int = 16) -> tuple[Scheduler, StepCosts]:
    costs = StepCosts((1, 2, 4, 8, 16))
    for _ in range(3):
        costs.observe(1, 1.0)
    return make_scheduler(speculation=Speculation(costs, max_sampled), max_num_seqs=8), costs


def add(scheduler: Scheduler, **sampling: object) -> Sequence:
    sequence = Sequence("r", PROMPT, SamplingParams(**({"max_tokens": 30} | sampling)), seed=0)
    scheduler.add(sequence)
    return sequence


def proposed(batch: Batch) -> list[int]:
    return [item.token_ids[0] for item in batch.scheduled if item.proposal]


def begun(scheduler: Scheduler, *, first: int = 4) -> Batch:
    scheduler.commit(schedule(scheduler), [first])
    return schedule(scheduler)


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


@pytest.mark.parametrize("asked", [{"presence_penalty": 0.5}, {"repetition_penalty": 1.2}, {"grammar": True}])
def test_nothing_is_proposed_where_choices_depend_on_tokens_in_other_ways(asked: dict[str, object]) -> None:
    scheduler, _ = speculating()
    sequence = add(scheduler, **({"grammar": Grammar.choice(["a"])} if "grammar" in asked else asked))
    sequence.mask = b"first"
    scheduler.commit(schedule(scheduler), [4])
    sequence.mask = b"next"
    assert not schedule(scheduler).has_proposals


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
