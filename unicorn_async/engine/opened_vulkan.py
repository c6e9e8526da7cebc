"""Vulkan's devices, of which one is opened for a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.background import run_to_end
from unicorn_async.engine.hybrid.opening import FarChoice
from unicorn_async.engine.memory_plan import MemoryPlan, choose_device
from unicorn_async.engine.tuning import use_tuning
from unicorn_async.engine.user_folders import cache_directory, tuning_folder
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.device_info import device_candidates
from unicorn_async.gpu.instance import Instance
from unicorn_async.ops.matrix_fragments import find_matrix_fragments
from unicorn_async.resources import resource_dir

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from unicorn_async.config import EngineConfig
    from unicorn_async.engine.model_on_disk import ModelOnDisk
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
    device = _open_device(instance, candidates[0], options, stack) if only else None
    return OpenedVulkan(instance, devices, candidates, device)


def _open_device(instance: Instance, info: DeviceInfo, options: EngineConfig, stack: AsyncExitStack) -> Device:
    device = _opened(instance, info)
    stack.push_async_callback(run_to_end, device.close)
    find_matrix_fragments(device)
    if options.tuning:
        use_tuning(device, tuning_folder())
    return device


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
    return opened.device or _open_device(opened.instance, info, options, stack), memory_plan


def _opened(instance: Instance, info: DeviceInfo) -> Device:
    return Device.open(instance, info, cache_dir=cache_directory(), shader_dir=resource_dir("shaders"))


def opened_beside(device: Device, instance: Instance, info: DeviceInfo) -> Device:
    """Open another device; one of the same GPU has its compiled kernels elsewhere, or it would replace the first's."""
    folder = cache_directory() / "attention" if info.index == device.info.index else cache_directory()
    return Device.open(instance, info, cache_dir=folder, shader_dir=resource_dir("shaders"))
