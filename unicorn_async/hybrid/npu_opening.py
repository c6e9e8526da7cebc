"""Opens an NPU that attends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.config import AttentionKind
from unicorn_async.hybrid.busy import BusyTrack
from unicorn_async.hybrid.npu_attention import NpuFarAttention
from unicorn_async.hybrid.npu_exchange import exchange_shape
from unicorn_async.hybrid.npu_memory import open_memory
from unicorn_async.hybrid.npu_plan import npu_options
from unicorn_async.hybrid.opened_far import OpenedFar
from unicorn_async.hybrid.report import AttentionInfo
from unicorn_async.memory.plan import max_logit_rows
from unicorn_async.npu.opening import open_attention
from unicorn_async.step.frame import FrameLimits

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.device import Device
    from unicorn_async.memory.kv_plan import KVPlan
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.npu.choice import NpuChoice


async def open_npu(
    near: Device, model: ModelSpec, options: EngineConfig, kv_plan: KVPlan, choice: NpuChoice, stack: AsyncExitStack
) -> OpenedFar:
    """Open the NPU and allocate its caches; `stack` gets what has to be closed.

    Raises:
        NpuError: it can't be opened, or its kernels answer wrongly. OutOfMemoryError: it does not fit.
        DeviceError: it can't hand over as is asked for.
    """
    npu = await stack.enter_async_context(
        open_attention(
            choice.heads,
            builds=choice.builds,
            soft_cap=model.attention.soft_cap,
            options=npu_options(choice.heads, kv_plan.max_context, choice.kernels.tasks_per_run),
            host=choice.host,
        )
    )
    track, limits = BusyTrack(), FrameLimits.of(options, kv_plan, (), max_logit_rows(options))
    memory = await open_memory(near, npu, options, kv_plan, limits, stack)
    attention = NpuFarAttention(npu, memory, options, kv_plan, track)
    stack.push_async_callback(attention.close)
    info = AttentionInfo(
        AttentionKind.NPU,
        choice.name,
        is_software=False,
        exchange=memory.kind.value,
        reason=memory.reason,
        kv_dtype="bf16",
        kv_cache_bytes=kv_plan.nbytes,
    )
    return OpenedFar(attention, track, info, limits, exchange_shape(choice.heads))
