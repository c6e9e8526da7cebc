"""The opened device: its queues, memory and kernels, and the register of what lives on it."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections import Counter
from typing import TYPE_CHECKING

from unicorn_async.errors import DeviceLostError, MissingFeatureError
from unicorn_async.gpu.binding import DeviceHandle, check
from unicorn_async.gpu.kernel import KernelLibrary
from unicorn_async.gpu.memory import Memory
from unicorn_async.gpu.physical import EXTENSION_BUDGET, EXTENSION_HOST_MEMORY, EXTENSION_MATRIX
from unicorn_async.gpu.queue import Queue
from unicorn_async.gpu.queue_plan import QueuePlan, plan_queues

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from unicorn_async.gpu.binding import Api, CData
    from unicorn_async.gpu.device_context import Closable
    from unicorn_async.gpu.device_info import DeviceInfo, MemoryHeap
    from unicorn_async.gpu.instance import Instance
    from unicorn_async.gpu.left_memory import LeftMemory
    from unicorn_async.gpu.physical import PhysicalDevice


class Device:
    """A VkDevice with its queues, memory and kernels; close it before its instance.

    `compute` runs kernels; `transfer` copies beside it, and is `compute` itself where the device has one queue only.
    """

    def __init__(
        self,
        instance: Instance,
        physical: PhysicalDevice,
        handle: DeviceHandle,
        plan: QueuePlan,
        shaders: tuple[Path, Path | None],
        left: LeftMemory | None = None,
    ) -> None:
        self.api: Api = instance.api
        self.handle = handle
        self.info: DeviceInfo = physical.info
        self.physical = physical
        self.queue_families = tuple(sorted({plan.compute[0], plan.transfer[0]}))
        self._children: set[Closable] = set()
        self._lock = threading.Lock()
        self._closed = False
        self.compute = self._queue(plan.compute, "compute")
        self.transfer = self.compute if plan.transfer == plan.compute else self._queue(plan.transfer, "transfer")
        self._left = left
        self.memory = Memory(self, left)
        self.kernels = KernelLibrary(self, shaders[0], cache_dir=shaders[1])

    @classmethod
    def open(
        cls,
        instance: Instance,
        info: DeviceInfo,
        *,
        cache_dir: Path | None,
        shader_dir: Path,
        extra: tuple[str, CData] | None = None,
        left: LeftMemory | None = None,
    ) -> Device:
        """Open the device that `info` describes; pipelines are cached in `cache_dir`, None = not at all.

        `extra` is an extension that it has and the package does not use, with the struct of what to enable of it.
        Who is short of memory waits for what is `left` on the device by others, and being freed.

        Raises:
            MissingFeatureError: the device lacks what every kernel needs; all of it is named.
        """
        if info.missing:
            raise MissingFeatureError(
                f"{info.name}: lacks {', '.join(info.missing)} ({info.driver_name} {info.driver_info})"
            )
        api, physical = instance.api, instance.physical(info)
        plan = plan_queues(physical.queue_families())
        queues = []
        for family in sorted({plan.compute[0], plan.transfer[0]}):
            count = 1 + max(index for chosen, index in (plan.compute, plan.transfer) if chosen == family)
            priorities = api.ffi.new("float[]", [1.0] * count)
            queues.append(
                api.struct(
                    "VkDeviceQueueCreateInfo", queueFamilyIndex=family, queueCount=count, pQueuePriorities=priorities
                )
            )
        wanted = (EXTENSION_MATRIX, EXTENSION_BUDGET, EXTENSION_HOST_MEMORY)
        extensions = [name for name in wanted if physical.has_extension(name)]
        extensions += [] if extra is None else [extra[0]]
        create = api.struct(
            "VkDeviceCreateInfo",
            pNext=physical.feature_chain(None if extra is None else extra[1]),
            queueCreateInfoCount=len(queues),
            pQueueCreateInfos=api.array("VkDeviceQueueCreateInfo", queues),
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=api.strings(extensions),
        )
        handle = api.create(
            "vkCreateDevice", f"{info.name}: vkCreateDevice", "VkDevice", physical.handle, create, api.null
        )
        return cls(instance, physical, DeviceHandle(handle), plan, (shader_dir, cache_dir), left)

    def heaps(self) -> tuple[MemoryHeap, ...]:
        """Return the heaps with their budgets as of now."""
        return self.physical.heaps()

    def heaps_with_left(self) -> tuple[MemoryHeap, ...]:
        """Return the heaps as of now, with what other engines have left there; blocks while that is being freed."""
        return self.heaps() if self._left is None else self._left.heaps(self.info, self.heaps)

    def heaps_at_once(self) -> tuple[MemoryHeap, ...] | None:
        """Return the same without blocking; None while a part of what is left is being freed."""
        return self.heaps() if self._left is None else self._left.heaps_at_once(self.info, self.heaps)

    def wait_idle(self) -> None:
        """Block until all that was submitted is done.

        Raises:
            DeviceLostError: the device is lost.
        """
        with contextlib.ExitStack() as stack:
            for queue in {self.compute, self.transfer}:
                stack.enter_context(queue.lock)
            check(self.api.lib.vkDeviceWaitIdle(self.handle), f"{self.info.name}: vkDeviceWaitIdle")

    def adopt(self, child: Closable) -> None:
        """Register an object that must be closed before the device."""
        with self._lock:
            self._children.add(child)

    def disown(self, child: Closable) -> None:
        """Take an object, closed by now, off the register."""
        with self._lock:
            self._children.discard(child)

    def live_objects(self) -> Counter[str]:
        """Return how many objects of each class live on the device, for leak tests."""
        with self._lock:
            return Counter(type(child).__name__ for child in self._children)

    def close(self) -> None:
        """Wait for the device, close everything on it, and destroy it."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(DeviceLostError):
            self.wait_idle()
        self.kernels.close()
        with self._lock:
            children = list(self._children)
        for child in children:
            child.close()
        self.memory.close()
        self.api.lib.vkDestroyDevice(self.handle, self.api.null)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn(f"device {self.info.name!r} was not closed", ResourceWarning, stacklevel=1)

    def _queue(self, place: tuple[int, int], name: str) -> Queue:
        flags, _, timestamp_bits = self.physical.queue_families()[place[0]]
        return Queue(self, *place, flags=flags, timestamp_bits=timestamp_bits, name=name)
