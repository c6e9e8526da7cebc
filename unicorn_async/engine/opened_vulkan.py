"""Vulkan's devices, of which one is opened for a model; that needs nothing of the model, and is imported first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.background import run_to_end
from unicorn_async.engine.user_folders import cache_directory, tuning_folder
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.device_info import device_candidates
from unicorn_async.gpu.instance import Instance
from unicorn_async.ops.matrix_fragments import find_matrix_fragments
from unicorn_async.resources import resource_dir
from unicorn_async.tune.choices import use_tuning

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.instance_start import InstanceStart


@dataclass(frozen=True, slots=True)
class OpenedVulkan:
    """The instance, its devices, those that may run a model, best first, and the only one of these, already open."""

    instance: Instance
    devices: tuple[DeviceInfo, ...]
    candidates: tuple[DeviceInfo, ...]
    device: Device | None


def open_vulkan(options: EngineConfig, stack: AsyncExitStack, vulkan: InstanceStart | None) -> OpenedVulkan:
    """Open the instance, and the device too where there is no choice: that need not wait for the model's files."""
    create = Instance.create if vulkan is None else vulkan.take
    instance = create(validation=options.validation)
    stack.push_async_callback(run_to_end, instance.close)
    devices = instance.devices()
    candidates = device_candidates(devices, options.device, allow_software=options.allow_software)
    only = len(candidates) == 1 and not options.attends_elsewhere
    device = open_device(instance, candidates[0], options, stack) if only else None
    return OpenedVulkan(instance, devices, candidates, device)


def open_device(instance: Instance, info: DeviceInfo, options: EngineConfig, stack: AsyncExitStack) -> Device:
    """Open a device, find what it can do, and give it what was measured for it; `stack` closes it.

    Raises:
        DeviceError: it can't be opened.
    """
    device = _opened(instance, info)
    stack.push_async_callback(run_to_end, device.close)
    find_matrix_fragments(device)
    if options.tuning:
        use_tuning(device, tuning_folder())
    return device


def _opened(instance: Instance, info: DeviceInfo) -> Device:
    return Device.open(instance, info, cache_dir=cache_directory(), shader_dir=resource_dir("shaders"))


def opened_beside(device: Device, instance: Instance, info: DeviceInfo) -> Device:
    """Open another device; one of the same GPU has its compiled kernels elsewhere, or it would replace the first's."""
    folder = cache_directory() / "attention" if info.index == device.info.index else cache_directory()
    return Device.open(instance, info, cache_dir=folder, shader_dir=resource_dir("shaders"))
