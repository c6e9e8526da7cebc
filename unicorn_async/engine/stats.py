"""The counters of an engine, as it tells them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.engine.types import EngineStats

if TYPE_CHECKING:
    from unicorn_async.engine.engine_loop import LoopCounters
    from unicorn_async.hybrid.report import AttentionStats
    from unicorn_async.kv_store.report import KVStoreStats
    from unicorn_async.scheduler.scheduler import Scheduler


def engine_stats(
    counters: LoopCounters, scheduler: Scheduler, attention: AttentionStats | None, kv_store: KVStoreStats | None
) -> EngineStats:
    """Return what a loop and its scheduler have counted, and what they hold now."""
    speculation = scheduler.speculation
    return EngineStats(
        running=scheduler.num_running,
        waiting=scheduler.num_waiting,
        blocks_used=sum(scheduler.blocks_used),
        blocks_total=sum(scheduler.blocks_total),
        blocks_planned=sum(group.num_blocks for group in scheduler.groups),
        steps=counters.steps,
        tokens_generated=counters.tokens_generated,
        tokens_prefilled=counters.tokens_prefilled,
        preemptions=scheduler.num_preemptions,
        fair_preemptions=scheduler.num_fair_preemptions,
        host_us_per_step=1e6 * counters.host_s / max(counters.steps, 1),
        device_s=counters.device_s,
        attention=attention,
        bounded_steps=scheduler.num_bounded_steps,
        prompt_tokens=scheduler.prefixes.num_prompt_tokens,
        prompt_tokens_found=scheduler.prefixes.num_found,
        proposed_tokens=0 if speculation is None else speculation.num_proposed,
        proposed_tokens_right=0 if speculation is None else speculation.num_right,
        drafted_tokens=0 if speculation is None else speculation.num_drafted,
        drafted_tokens_right=0 if speculation is None else speculation.num_drafted_right,
        kv_store=kv_store,
    )
