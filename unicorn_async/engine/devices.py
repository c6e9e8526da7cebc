"""Vulkan's devices, of which one is opened for a model; that needs nothing of the model, and is imported first."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.background import end_task, run_to_end
from unicorn_async.engine.user_folders import cache_directory, tuning_folder
from unicorn_async.gpu.choice import device_candidates
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.instance import Instance
from unicorn_async.ops.matrix_fragments import find_matrix_fragments
from unicorn_async.resources import resource_dir

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AsyncExitStack

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.instance_start import InstanceStart


@dataclass(frozen=True, slots=True)
class Devices:
    """The instance, its devices, those that may run a model, best first, and the only one of these, already open."""

    instance: Instance
    all: tuple[DeviceInfo, ...]
    candidates: tuple[DeviceInfo, ...]
    only: Device | None


@asynccontextmanager
async def opening_devices(
    options: EngineConfig, stack: AsyncExitStack, vulkan: InstanceStart | None
) -> AsyncIterator[asyncio.Task[Devices]]:
    """Open Vulkan in a thread beside the block, which does not end before the thread: `stack` gets what that opens."""
    opening = asyncio.create_task(run_to_end(lambda: open_devices(options, stack, vulkan)), name="open Vulkan")
    try:
        yield opening
    finally:
        await end_task(opening)


def open_devices(options: EngineConfig, stack: AsyncExitStack, vulkan: InstanceStart | None) -> Devices:
    """Open the instance, and the device too where there is no choice: that need not wait for the model's files.

    The instance is that of `vulkan`, if it has begun already.
    """
    create = Instance.create if vulkan is None else vulkan.take
    instance = create(validation=options.validation)
    stack.push_async_callback(run_to_end, instance.close)
    devices = instance.devices()
    candidates = device_candidates(devices, options.device, allow_software=options.allow_software)
    only = len(candidates) == 1 and not options.attends_elsewhere
    device = open_device(instance, candidates[0], options, stack) if only else None
    return Devices(instance, devices, candidates, device)


def open_device(instance: Instance, info: DeviceInfo, options: EngineConfig, stack: AsyncExitStack) -> Device:
    """Open a device, find what it can do, and give it what was measured for it; `stack` closes it.

    Raises:
        DeviceError: it can't be opened.
    """
    device = Device.open(instance, info, cache_dir=cache_directory(), shader_dir=resource_dir("shaders"))
    stack.push_async_callback(run_to_end, device.close)
    find_matrix_fragments(device)
    folder = tuning_folder()
    if options.tuning and folder.path_of(device.info).exists():
        from unicorn_async.tune.choices import use_tuning  # most starts need not wait for it

        use_tuning(device, folder)
    return device


def open_beside(device: Device, instance: Instance, info: DeviceInfo) -> Device:
    """Open another device; one of the same GPU has its compiled kernels elsewhere, or it would replace the first's."""
    folder = cache_directory() / "attention" if info.index == device.info.index else cache_directory()
    return Device.open(instance, info, cache_dir=folder, shader_dir=resource_dir("shaders"))
