"""The scheduler and the loop of a model that was opened."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from unicorn_async.config import AttentionKind
from unicorn_async.engine.cache_growth import CacheGrowth
from unicorn_async.engine.engine_loop import EngineLoop
from unicorn_async.engine.speculation import make_speculation
from unicorn_async.ops.runs import KEPT_TOKENS
from unicorn_async.scheduler.scheduler import Scheduler
from unicorn_async.scheduler.step_budget import StepBudget
from unicorn_async.step.buckets import bucket_sizes

if TYPE_CHECKING:
    from unicorn_async.config import EngineConfig
    from unicorn_async.engine.drafter import Drafter
    from unicorn_async.engine.guides import Guides
    from unicorn_async.engine.opened_model import OpenedModel
    from unicorn_async.kv_store.keeper import BlockKeeper


def make_loop(model: OpenedModel, guides: Guides) -> tuple[Scheduler, EngineLoop, Drafter | None]:
    """Return them, as the model's options and its plan of memory want them."""
    config, runner, states = model.options, model.runner, model.memory_plan.states
    scheduler = Scheduler(
        groups=model.memory_plan.kv.groups,
        block_size=config.block_size,
        max_num_seqs=config.max_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_context=model.memory_plan.kv.max_context,
        max_waiting=config.max_waiting,
        max_logit_rows=runner.max_logit_rows,
        eos_token_ids=() if model.tokenizer is None else model.tokenizer.eos_token_ids,
        step_budget=_step_budget(config),
        speculation=make_speculation(config, predicts=model.files.config.predicts),
        in_order=not config.attends_elsewhere,
        reads_again=model.files.config.shares_keys,
        grows=model.kv_pool is not None,
        shares_prefixes=_shares_prefixes(model),
        num_state_copies=states.num_copies,
        num_spare_states=states.num_spare if states.nbytes else None,
        kept_tokens=KEPT_TOKENS,
        side_by_side=config.attention.kind is AttentionKind.NPU,
        kept=None if model.kv_store is None else model.kv_store.kept,
    )
    growth = None if model.kv_pool is None else CacheGrowth(model.kv_pool)
    on_step = None if model.step_times is None else partial(model.step_times.observe, model.attention.kind)
    drafter = _make_drafter(model, scheduler)
    keeper = _make_keeper(model, scheduler)
    return scheduler, EngineLoop(scheduler, runner, growth, guides, on_step, drafter, keeper), drafter


def _make_keeper(model: OpenedModel, scheduler: Scheduler) -> BlockKeeper | None:
    if model.kv_store is None:
        return None
    from unicorn_async.kv_store.keeper import BlockKeeper  # few engines have one

    return BlockKeeper(model.kv_store, scheduler, model.options.block_size)


def _make_drafter(model: OpenedModel, scheduler: Scheduler) -> Drafter | None:
    if model.draft is None:
        return None
    from unicorn_async.engine.drafter import Drafter  # few models have one

    return Drafter(model.draft, model, scheduler)


def _shares_prefixes(model: OpenedModel) -> bool:
    """Whether sequences that begin alike share blocks; where a layer's state is of all before, by copies of states."""
    config, states = model.options, model.memory_plan.states
    return config.prefix_cache and not config.attends_elsewhere and (not states.nbytes or states.num_copies > 0)


def _step_budget(config: EngineConfig) -> StepBudget | None:
    most = config.max_mixed_step_s
    if most is None:
        return None
    return StepBudget(bucket_sizes(config.max_num_batched_tokens), None if most == "auto" else most)
