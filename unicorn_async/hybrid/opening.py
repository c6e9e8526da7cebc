"""Opens the device that attends, where that is not the one that runs the model.

What an NPU or a second device needs is imported where it is asked for: other starts need not wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.background import run_to_end
from unicorn_async.config import AttentionKind
from unicorn_async.hybrid.busy import BusyTrack
from unicorn_async.hybrid.opened_far import OpenedFar
from unicorn_async.hybrid.report import AttentionInfo
from unicorn_async.memory.plan import attention_shape, max_logit_rows
from unicorn_async.ops.attention import GpuAttention
from unicorn_async.step.frame import FrameLimits

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.memory.far_plan import FarPlan
    from unicorn_async.memory.kv_plan import KVPlan
    from unicorn_async.models.spec import ModelSpec


async def open_far_attention(
    near: Device,
    model: ModelSpec,
    options: EngineConfig,
    kv_plan: KVPlan,
    plan: FarPlan,
    open_device: Callable[[DeviceInfo], Device],
    stack: AsyncExitStack,
) -> OpenedFar:
    """Open what attends and allocate its part; `stack` gets what has to be closed.

    Raises:
        DeviceError: it can't be opened, it does not fit, or an NPU's kernels answer wrongly.
    """
    if plan.npu is not None:
        from unicorn_async.hybrid.npu_opening import open_npu

        return await open_npu(near, model, options, kv_plan, plan.npu, stack)
    from unicorn_async.hybrid.vulkan_attention import VulkanFarAttention

    track, far = BusyTrack(), plan.info
    assert far is not None

    def make() -> tuple[VulkanFarAttention, FrameLimits]:
        device = open_device(far)
        stack.push_async_callback(run_to_end, device.close)
        gpu = GpuAttention(far, device.kernels, attention_shape(model, options), soft_cap=model.attention.soft_cap)
        limits = FrameLimits.of(options, kv_plan, [gpu.plan], max_logit_rows(options))
        attention = VulkanFarAttention(near, device, model, options, kv_plan, gpu, limits, track)
        stack.push_async_callback(run_to_end, attention.close)
        return attention, limits

    attention, limits = await run_to_end(make)
    exchange = attention.exchanges[0]
    info = AttentionInfo(
        AttentionKind.VULKAN,
        plan.device,
        is_software=far.is_software,
        exchange=exchange.kind.value,
        reason=exchange.reason,
        kv_dtype=options.kv_dtype.value,
        kv_cache_bytes=kv_plan.nbytes,
    )
    shape = attention_shape(model, options).handed_over
    twin = attention.far if far.index == near.info.index else None
    return OpenedFar(attention, track, info, limits, shape, twin)
