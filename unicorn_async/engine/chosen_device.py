"""The device that a model is to run on, among those that may run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.engine.opened_vulkan import open_device
from unicorn_async.hybrid.opening import FarChoice
from unicorn_async.memory.plan import MemoryPlan, choose_device

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from unicorn_async.config import EngineConfig
    from unicorn_async.engine.model_on_disk import ModelOnDisk
    from unicorn_async.engine.opened_vulkan import OpenedVulkan
    from unicorn_async.gpu.device import Device


def choose_opened(
    on_disk: ModelOnDisk, opened: OpenedVulkan, options: EngineConfig, stack: AsyncExitStack
) -> tuple[Device, MemoryPlan]:
    """Choose the device that a model fits, and open it unless it is open; return it and the model's plan there.

    Raises:
        ConfigError, DeviceError: see `Engine.open`.
    """
    far = FarChoice(on_disk.config, options, opened.devices)
    info, memory_plan = choose_device(
        far.near(opened.candidates),
        on_disk.config,
        options,
        on_disk.plan,
        passing_bytes=on_disk.passing_bytes,
        staging=on_disk.staging,
        far=far.plan,
    )
    return opened.device or open_device(opened.instance, info, options, stack), memory_plan
