"""A small scheduler, sequences for it, and its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.block_manager import BlockGroup
from unicorn_async.scheduler.scheduler import Scheduler
from unicorn_async.scheduler.sequence import Sequence

if TYPE_CHECKING:
    from unicorn_async.scheduler.batch import Batch
    from unicorn_async.scheduler.kept_blocks import KeptBlocks
    from unicorn_async.scheduler.speculation import Speculation
    from unicorn_async.scheduler.step_budget import StepBudget

EOS = 99


def make_scheduler(
    *,
    groups: tuple[BlockGroup, ...] = (BlockGroup(0, 100),),
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 16,
    max_context: int = 64,
    max_waiting: int = 8,
    max_logit_rows: int = 64,
    step_budget: StepBudget | None = None,
    speculation: Speculation | None = None,
    in_order: bool = False,
    reads_again: bool = False,
    grows: bool = False,
    shares_prefixes: bool = False,
    num_state_copies: int = 0,
    num_spare_states: int | None = None,
    kept_tokens: int = 1,
    kept: KeptBlocks | None = None,
) -> Scheduler:
    return Scheduler(
        groups=groups,
        block_size=4,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_context=max_context,
        max_waiting=max_waiting,
        max_logit_rows=max_logit_rows,
        eos_token_ids=(EOS,),
        step_budget=step_budget,
        speculation=speculation,
        in_order=in_order,
        reads_again=reads_again,
        grows=grows,
        shares_prefixes=shares_prefixes,
        num_state_copies=num_state_copies,
        num_spare_states=num_spare_states,
        kept_tokens=kept_tokens,
        kept=kept,
    )


def add(scheduler: Scheduler, num_prompt: int, *, want_logits: bool = False, **sampling: object) -> Sequence:
    prompt_ids = tuple(range(10, 10 + num_prompt))
    sequence = Sequence("r", prompt_ids, SamplingParams(**sampling), seed=0, want_logits=want_logits)
    scheduler.add(sequence)
    return sequence


def schedule(scheduler: Scheduler) -> Batch:
    batch = scheduler.schedule()
    assert batch is not None
    return batch


def sizes(batch: Batch) -> list[tuple[Sequence, int, int]]:
    return [(item.sequence, item.start, item.num_tokens) for item in batch.scheduled]
