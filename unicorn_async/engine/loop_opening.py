"""The scheduler and the loop of a model that was opened."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from unicorn_async.config import AttentionKind
from unicorn_async.engine.cache_growth import CacheGrowth
from unicorn_async.engine.engine_loop import EngineLoop
from unicorn_async.engine.speculation import make_speculation
from unicorn_async.scheduler.scheduler import Scheduler
from unicorn_async.scheduler.step_budget import StepBudget
from unicorn_async.step.buckets import bucket_sizes

if TYPE_CHECKING:
    from unicorn_async.config import EngineConfig
    from unicorn_async.engine.guides import Guides
    from unicorn_async.engine.opening import OpenedModel


def make_loop(model: OpenedModel, guides: Guides) -> tuple[Scheduler, EngineLoop]:
    """Return them, as the model's options and its plan of memory want them."""
    config, runner = model.options, model.runner
    scheduler = Scheduler(
        groups=model.memory_plan.kv.groups,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_context=model.memory_plan.kv.max_context,
        max_waiting=config.max_waiting,
        max_logit_rows=runner.max_logit_rows,
        eos_token_ids=() if model.tokenizer is None else model.tokenizer.eos_token_ids,
        step_budget=_step_budget(config),
        speculation=make_speculation(config),
        in_order=not config.attends_elsewhere,
        grows=model.kv_pool is not None,
        shares_prefixes=_shares_prefixes(model),
        side_by_side=config.attention.kind is AttentionKind.NPU,
    )
    growth = None if model.kv_pool is None else CacheGrowth(model.kv_pool)
    on_step = None if model.step_times is None else partial(model.step_times.observe, model.attention.kind)
    return scheduler, EngineLoop(scheduler, runner, growth, guides, on_step)


def _shares_prefixes(model: OpenedModel) -> bool:
    """Whether sequences that begin alike share blocks: not where a layer's state is of all that was before."""
    config = model.options
    has_fixed = any(layer.fixed is not None for layer in model.files.config.layers)
    return config.prefix_cache and not config.attends_elsewhere and not has_fixed


def _step_budget(config: EngineConfig) -> StepBudget | None:
    most = config.max_mixed_step_s
    if most is None:
        return None
    return StepBudget(bucket_sizes(config.max_num_batched_tokens), None if most == "auto" else most)
