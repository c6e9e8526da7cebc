"""Opens the device that attends, where that is not the one that runs the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.background import run_to_end
from unicorn_async.config import AttentionKind
from unicorn_async.engine.frame import FrameLimits
from unicorn_async.engine.hybrid.far_plan import far_device, near_devices, plan_vulkan
from unicorn_async.engine.hybrid.spans import BusyTrack
from unicorn_async.engine.hybrid.vulkan_attention import VulkanAttention
from unicorn_async.engine.memory_plan import attention_shape, max_logit_rows
from unicorn_async.engine.types import AttentionInfo
from unicorn_async.ops.attention import GpuAttention

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AsyncExitStack

    from unicorn_async.config import EngineConfig, ModelConfig
    from unicorn_async.engine.hybrid.far_plan import FarPlan
    from unicorn_async.engine.hybrid.remote_attention import RemoteAttention
    from unicorn_async.engine.kv_plan import KVPlan
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.kv_cache import AttentionShape


@dataclass(frozen=True, slots=True)
class FarAttention:
    """An opened attention; `track` gets its spans, `shape` is that of the keys and values that it is handed.

    `twin` is its device where that is another logical one of the GPU that runs the model.
    """

    attention: RemoteAttention
    track: BusyTrack
    info: AttentionInfo
    limits: FrameLimits
    shape: AttentionShape
    twin: Device | None = None


class FarChoice:
    """What is asked for to attend, among the devices of this machine."""

    def __init__(self, model: ModelConfig, options: EngineConfig, devices: Sequence[DeviceInfo]) -> None:
        """Find the device.

        Raises:
            ConfigError: there is no such device. MissingFeatureError: it can't be used.
        """
        self._model = model
        self._options = options
        self._vulkan = far_device(options, devices)

    def near(self, candidates: Sequence[DeviceInfo]) -> tuple[DeviceInfo, ...]:
        """Return those of the candidates that may run the model."""
        return near_devices(candidates, self._vulkan)

    def plan(self, near: DeviceInfo) -> FarPlan | None:
        """Plan the cache beside a model on `near`; None where that attends itself.

        Raises:
            ConfigError, OutOfMemoryError: as `plan_kv_cache`.
        """
        return None if self._vulkan is None else plan_vulkan(self._model, self._options, near, self._vulkan)


async def open_far_attention(
    near: Device,
    model: ModelConfig,
    options: EngineConfig,
    kv_plan: KVPlan,
    plan: FarPlan,
    open_device: Callable[[DeviceInfo], Device],
    stack: AsyncExitStack,
) -> FarAttention:
    """Open a second Vulkan device and allocate its part; `stack` gets what has to be closed.

    Raises:
        DeviceError: the device can't be opened, or it does not fit.
    """
    track, far = BusyTrack(), plan.info
    assert far is not None

    def make() -> tuple[VulkanAttention, FrameLimits]:
        device = open_device(far)
        stack.callback(device.close)
        gpu = GpuAttention(far, device.kernels, attention_shape(model, options), soft_cap=model.attention_soft_cap)
        limits = FrameLimits.of(options, kv_plan, gpu.plan, max_logit_rows(options))
        attention = VulkanAttention(near, device, model, options, kv_plan, gpu, limits, track)
        stack.callback(attention.close)
        return attention, limits

    attention, limits = await run_to_end(make)
    exchange = attention.exchanges[0]
    info = AttentionInfo(
        AttentionKind.VULKAN,
        plan.device,
        is_software=far.is_software,
        exchange=exchange.kind.value,
        reason=exchange.reason,
    )
    shape = replace(attention_shape(model, options), block_size=1)
    twin = attention.far if far.index == near.info.index else None
    return FarAttention(attention, track, info, limits, shape, twin)
