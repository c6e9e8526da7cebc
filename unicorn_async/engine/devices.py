"""Vulkan's devices, of which one is opened for a model; that needs nothing of the model, and is imported first."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from unicorn_async.background import end_task, run_to_end
from unicorn_async.engine.user_folders import cache_directory, tuning_folder
from unicorn_async.gpu.budget import HeapKind
from unicorn_async.gpu.choice import device_candidates
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.instance import Instance
from unicorn_async.ops.matrix_fragments import find_matrix_fragments
from unicorn_async.resources import resource_dir

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AsyncExitStack

    from unicorn_async.config import EngineConfig
    from unicorn_async.engine.leftovers import Leftovers
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.instance_start import InstanceStart
    from unicorn_async.gpu.left_memory import LeftMemory
    from unicorn_async.gpu.memory import Memory


@dataclass(frozen=True, slots=True)
class Devices:
    """The instance, its devices, those that may run a model, best first, and the only one of these, already open."""

    instance: Instance
    all: tuple[DeviceInfo, ...]
    candidates: tuple[DeviceInfo, ...]
    only: Device | None


@dataclass(frozen=True, slots=True)
class Ending:
    """What is closed when an engine ends: `first` at once, and behind that `last`, with the devices' memory.

    With `left` a server's next model does not wait for the last part, whose memory is then counted there. `memories`
    are those of all devices that were opened.
    """

    first: AsyncExitStack
    last: ExitStack
    left: LeftMemory | None
    memories: list[Memory] = field(default_factory=list)

    @classmethod
    def of(cls, first: AsyncExitStack, leftovers: Leftovers | None) -> Ending:
        """Make `first` close the last part behind everything else, or let `leftovers` take it."""
        last = ExitStack()
        if leftovers is None:
            first.push_async_callback(run_to_end, last.close)
            return cls(first, last, None)
        first.callback(leftovers.take, last)
        return cls(first, last, leftovers.memory)

    def stop_waiting(self) -> None:
        """Have nobody wait for memory any more: all of it is going to be freed."""
        for memory in self.memories:
            memory.stop_waiting()

    def still(self) -> AbstractContextManager[None]:
        """Have nothing that is left freed during the block, for all figures of the memory to be of one time."""
        return nullcontext() if self.left is None else self.left.still()

    def left_heaps(self, info: DeviceInfo) -> tuple[HeapKind, ...]:
        """Return the kinds of memory in which weights outlive their engine: a GPU's own.

        Who finds no room there waits for it. The host's is its programs' too, and nothing tells these to wait.
        """
        return () if self.left is None or info.shares_host_memory else (HeapKind.VRAM,)

    def counted(self, devices: Sequence[DeviceInfo], instance: Instance) -> tuple[DeviceInfo, ...]:
        """Return devices with their memory as of now, and what is left there, if anything may be."""
        left = self.left
        if left is None:
            return tuple(devices)
        return tuple(replace(info, heaps=left.heaps(info, instance.physical(info).heaps)) for info in devices)


@asynccontextmanager
async def opening_devices(
    options: EngineConfig, ending: Ending, vulkan: InstanceStart | None
) -> AsyncIterator[asyncio.Task[Devices]]:
    """Open Vulkan in a thread beside the block, which does not end before the thread: `ending` gets what that opens."""
    opening = asyncio.create_task(run_to_end(lambda: open_devices(options, ending, vulkan)), name="open Vulkan")
    try:
        yield opening
    finally:
        await end_task(opening)


def open_devices(options: EngineConfig, ending: Ending, vulkan: InstanceStart | None) -> Devices:
    """Open the instance, and the device too where there is no choice: that need not wait for the model's files.

    The instance is that of `vulkan`, if it has begun already.
    """
    create = Instance.create if vulkan is None else vulkan.take
    instance = create(validation=options.validation)
    ending.last.callback(instance.close)
    devices = instance.devices()
    candidates = device_candidates(devices, options.device, allow_software=options.allow_software)
    only = len(candidates) == 1 and not options.attends_elsewhere
    device = open_device(instance, candidates[0], options, ending) if only else None
    return Devices(instance, devices, candidates, device)


def open_device(instance: Instance, info: DeviceInfo, options: EngineConfig, ending: Ending) -> Device:
    """Open a device, find what it can do, and give it what was measured for it; `ending` closes it.

    Raises:
        DeviceError: it can't be opened.
    """
    left = ending.left
    device = Device.open(instance, info, cache_dir=cache_directory(), shader_dir=resource_dir("shaders"), left=left)
    ending.memories.append(device.memory)
    if left is not None:
        ending.last.callback(left.remove, device.memory)
        ending.first.callback(left.add, device.memory)
    ending.last.callback(device.close)
    find_matrix_fragments(device)
    folder = tuning_folder()
    if options.tuning and folder.path_of(device.info).exists():
        from unicorn_async.tune.choices import use_tuning  # most starts need not wait for it

        use_tuning(device, folder)
    return device


def open_beside(device: Device, instance: Instance, info: DeviceInfo, ending: Ending) -> Device:
    """Open another device; one of the same GPU has its compiled kernels elsewhere, or it would replace the first's."""
    folder = cache_directory() / "attention" if info.index == device.info.index else cache_directory()
    opened = Device.open(instance, info, cache_dir=folder, shader_dir=resource_dir("shaders"), left=ending.left)
    ending.memories.append(opened.memory)
    return opened
