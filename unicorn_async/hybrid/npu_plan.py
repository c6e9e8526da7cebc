"""What attention on an NPU takes of the host's memory, before anything is allocated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.config import ExchangeKind
from unicorn_async.errors import OutOfMemoryError
from unicorn_async.gpu.budget import USABLE_SHARE, MemoryBudget
from unicorn_async.gpu.host_memory import HostMemory
from unicorn_async.hybrid.interface import NUM_HALVES
from unicorn_async.hybrid.npu_exchange import exchange_bytes
from unicorn_async.hybrid.npu_shared_exchange import shared_bytes
from unicorn_async.memory.far_plan import FarPlan
from unicorn_async.memory.kv_plan import kv_budget, plan_kv_cache, wanted_context
from unicorn_async.npu.attention import NpuOptions
from unicorn_async.npu.pace import FEW_TASKS
from unicorn_async.npu.step import instruction_bytes

if TYPE_CHECKING:
    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.npu.choice import NpuChoice
    from unicorn_async.npu.work import AttentionHeads

_MAX_KEYS_BYTES = (1 << 31) - 1  # of a layer: with its values, what an instruction of the NPU reaches


def npu_options(heads: AttentionHeads, max_context: int, tasks_per_run: int = FEW_TASKS) -> NpuOptions:
    """Return how the NPU's runs are made, so that a context of this length fits however scattered its blocks are."""
    options = NpuOptions(num_runs=NUM_HALVES, tasks_per_run=tasks_per_run)
    return replace(options, instruction_bytes=max(options.instruction_bytes, instruction_bytes(heads, max_context)))


def plan_npu(
    model: ModelSpec,
    options: EngineConfig,
    near: DeviceInfo,
    npu: NpuChoice,
    left: int,
    *,
    host_bytes: int | None = None,
) -> FarPlan:
    """Plan the cache in the host's memory; `host_bytes` is what is free there, None = as it is now.

    It takes a quarter of that at most, or what was asked for: programs of the host use it too. Where the device that
    runs the model has the same memory, it takes no more than the `left` bytes that the model leaves of it.

    Raises:
        ConfigError: as `plan_kv_cache`.
        OutOfMemoryError: it does not fit, or nobody tells what is free.
    """
    free = HostMemory().available_bytes() if host_bytes is None else host_bytes
    if free is None:
        raise OutOfMemoryError("KV cache of the NPU: the host does not tell how much of its memory is free")
    total = int(free * USABLE_SHARE)
    room = MemoryBudget(0, total, total, is_shared=True)
    frames = npu_options(npu.heads, wanted_context(model, options)).run_bytes(npu.heads.layout)
    if options.attention_exchange is not ExchangeKind.COPIED:
        frames += NUM_HALVES * shared_bytes(npu.heads, options)
    exchange = NUM_HALVES * exchange_bytes(npu.heads, options.max_num_batched_tokens)
    budget = kv_budget(room, model, options, weights=0, fast_weights=0, others=frames + exchange)
    if near.shares_host_memory:
        budget = min(budget, left - frames - exchange)
    kv = plan_kv_cache(model, options, budget, max_allocation=_MAX_KEYS_BYTES)
    return FarPlan(kv, exchange + (frames + kv.nbytes if near.shares_host_memory else 0), npu.name, npu=npu)
