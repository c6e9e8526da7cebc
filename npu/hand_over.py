"""What a layer's hand-over between a GPU and the NPU costs, through memory that both share and through copies."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from unicorn_async.background import run_to_end
from unicorn_async.config import AttentionKind, AttentionTarget, EngineConfig, ExchangeKind
from unicorn_async.errors import UnicornError
from unicorn_async.gpu.choice import select_device
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.instance import Instance
from unicorn_async.hybrid.npu_memory import open_memory
from unicorn_async.hybrid.npu_trial import HandOverTrial
from unicorn_async.memory.kv_plan import KVPlan
from unicorn_async.resources import resource_dir
from unicorn_async.scheduler.block_manager import BlockGroup
from unicorn_async.step.frame import FrameLimits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.npu.attention import AttentionService

# New sequences by their lengths: attention itself is the least that it can be.
STEPS = {"32 sequences of 1 token": (1,) * 32, "a prompt of 128 tokens": (128,)}
_WARM_UP = 2


async def hand_over_costs(attention: AttentionService, wanted: str | None, repeats: int) -> dict[str, Any]:
    """Return a layer's time in each way, from the GPU's q, k and v to its result, with the attention in between.

    `wanted` names the GPU; a software device is taken only if it is named. What keeps the GPU, or one of the ways, from
    being used is told in place of its times.
    """
    async with AsyncExitStack() as stack:

        def open_gpu() -> Device:
            instance = stack.enter_context(Instance.create())
            info = select_device(instance.devices(), wanted, allow_software=wanted is not None)
            return stack.enter_context(Device.open(instance, info, cache_dir=None, shader_dir=resource_dir("shaders")))

        try:
            near = await run_to_end(open_gpu)
        except UnicornError as exc:
            return {"failure": f"{type(exc).__name__}: {exc}"}
        found: dict[str, Any] = {"gpu": f"{near.info.name}, {near.info.driver_name} {near.info.driver_info}"}
        for kind in ExchangeKind:
            try:
                found[kind.value] = await _times(near, attention, kind, repeats)
            except (UnicornError, TimeoutError) as exc:  # a GPU that hangs is a TimeoutError
                found[kind.value] = {"failure": f"{type(exc).__name__}: {exc}"}
        return found


async def _times(near: Device, attention: AttentionService, kind: ExchangeKind, repeats: int) -> dict[str, Any]:
    heads = attention.heads
    num_blocks = max(sum(-(-length // heads.block_size) for length in lengths) for lengths in STEPS.values())
    nbytes = heads.cache_bytes(num_blocks)
    plan = KVPlan((BlockGroup(0, num_blocks),), (0,), (nbytes // 2,), max(map(max, STEPS.values())), nbytes)
    options = EngineConfig(
        attention=AttentionTarget(AttentionKind.NPU),
        attention_exchange=kind,
        block_size=heads.block_size,
        max_num_batched_tokens=max(map(sum, STEPS.values())),
        max_num_seqs=max(map(len, STEPS.values())),
    )
    async with AsyncExitStack() as stack:
        memory = await open_memory(near, attention, options, plan, FrameLimits.of(options, plan, (), 1), stack)
        exchange, cache = memory.exchanges[0], memory.caches[0]
        found = {}
        for name, lengths in STEPS.items():
            trial = HandOverTrial(near, attention, exchange, cache, plan, lengths)
            try:
                found[name] = await _layer_us(trial, repeats)
            finally:
                await attention.drain()
                await asyncio.to_thread(near.wait_idle)
                trial.close()
        return found


async def _layer_us(trial: HandOverTrial, repeats: int) -> dict[str, float]:
    trial.ask(0)
    times: list[float] = []
    for _ in range(repeats + _WARM_UP):
        start = time.perf_counter()
        await trial.attend()
        times.append(time.perf_counter() - start)
    return _percentiles(times[_WARM_UP:])


def _percentiles(times: Sequence[float]) -> dict[str, float]:
    return {name: 1e6 * float(np.percentile(times, share)) for name, share in (("p50", 50), ("p90", 90))}
