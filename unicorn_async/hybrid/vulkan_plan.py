"""What a second Vulkan device that attends has of the KV cache, before anything is allocated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.gpu.arena import block_nbytes
from unicorn_async.gpu.budget import HeapLimits, host_room, memory_budget
from unicorn_async.hybrid.interface import NUM_HALVES
from unicorn_async.hybrid.vulkan_exchange import ExchangeLayout
from unicorn_async.memory.far_plan import FarPlan
from unicorn_async.memory.kv_plan import kv_budget, plan_kv_cache
from unicorn_async.memory.plan import decode_scratch_bytes
from unicorn_async.ops.attention_plan import AttentionPlan
from unicorn_async.ops.kv_cache import AttentionShape

if TYPE_CHECKING:
    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.models.spec import ModelSpec


def plan_vulkan(
    model: ModelSpec,
    options: EngineConfig,
    near: DeviceInfo,
    far: DeviceInfo,
    left: int,
    *,
    host_bytes: int | None = None,
) -> FarPlan:
    """Plan the cache on a second Vulkan device; the model leaves `left` bytes of `near`'s memory.

    `host_bytes` is as in `plan_memory`. Where both devices have one memory, the cache takes a quarter of it at most, or
    what was asked for, and no more than is left. Limits of memory are those of the device that runs the model.

    Raises:
        ConfigError, OutOfMemoryError: as `plan_kv_cache`.
    """
    shape = AttentionShape(model.num_heads, model.num_kv_heads, model.head_dim, options.block_size, options.kv_dtype)
    layout = ExchangeLayout(shape, options.max_num_batched_tokens)
    exchange = NUM_HALVES * layout.nbytes
    queries = options.max_num_batched_tokens * layout.row_bytes
    own = block_nbytes([*decode_scratch_bytes([AttentionPlan.of(far, shape)], options.max_seqs).values(), queries])
    is_twin = near.index == far.index
    one_memory = is_twin or (near.shares_host_memory and far.shares_host_memory)
    limits = HeapLimits(options.vram_bytes, options.gtt_bytes) if is_twin else HeapLimits()
    room = memory_budget(far, limits, host_room(far) if host_bytes is None else host_bytes)
    room = replace(room, is_shared=room.is_shared or one_memory)
    budget = kv_budget(room, model, options, weights=0, fast_weights=0, others=own + exchange)
    if one_memory:
        budget = min(budget, left - own - exchange)
    kv = plan_kv_cache(model, options, budget, max_allocation=far.max_allocation)
    same = " (a second logical device of the same GPU)" if is_twin else ""
    return FarPlan(kv, exchange + (kv.nbytes + own if one_memory else 0), f"{far.name}{same}", far)
