"""A scheduler that proposes tokens, and what it proposes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.sequence import Sequence
from unicorn_async.scheduler.speculation import Speculation
from unicorn_async.scheduler.step_costs import StepCosts

from .made_scheduler import make_scheduler, schedule

if TYPE_CHECKING:
    from unicorn_async.scheduler.batch import Batch
    from unicorn_async.scheduler.scheduler import Scheduler

PROMPT = (1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3)


def speculating(max_sampled: int = 16) -> tuple[Scheduler, StepCosts]:
    costs = StepCosts((1, 2, 4, 8, 16))
    for size in 3 * (1, 2, 4, 8, 16):
        costs.observe(size, 1.0)
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
