#!/usr/bin/env python3
"""The `unicorn` command in this process, with a Vulkan device that is lost when a signal says so.

    device_loss.py COMMAND [OPTION ...]          as `unicorn COMMAND [OPTION ...]`; then kill -USR2 its process

What is injected lies at the door to the driver, in place of the `vulkan` package's library: after SIGUSR2 the next
vkQueueSubmit2, vkWaitSemaphores, vkGetSemaphoreCounterValue or vkDeviceWaitIdle finds the device lost. That call
returns VK_ERROR_DEVICE_LOST, and so do these and vkGetQueryPoolResults for this VkDevice from then on, threads that
wait in the driver included, until it is destroyed; a device that is opened later is sound. Nothing of unicorn_async is
replaced: what it makes of these results, and what it has to close and open again, is its own. A lost device works no
more, while this one would go on; so its work is waited for before the first such result, and whoever frees memory
frees nothing in use. Ask for a loss while a model serves, not while it loads: what waits for a load would never end.

Whenever a VkDevice is destroyed, a line on stdout says which objects made on it are still there, as it should be none.
"""

from __future__ import annotations

import functools
import importlib
import re
import signal
import sys
import threading
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from unicorn_async.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE_LOST = -4  # VK_ERROR_DEVICE_LOST
TIMEOUT = 2  # VK_TIMEOUT
SLICE_NS = 50_000_000  # of a wait in the driver, between which a loss is looked for
DESTROYED = "VkDevice destroyed, objects left: "
_MADE = re.compile(r"vk(?:Create|Allocate)(?:Compute)?(\w+?)s?")
_GONE = re.compile(r"vk(?:Destroy|Free)(\w+)")
_OF_NO_DEVICE = frozenset({"Instance", "Device"})
_OF_A_POOL = frozenset({"CommandBuffer", "CommandBuffers"})  # they go with it


class LosingLibrary:
    """A Vulkan library as the `vulkan` package has it, whose devices can be lost; any thread may call it."""

    def __init__(self, library: Any, ffi: Any) -> None:
        self._library = library
        self._ffi = ffi
        self._lock = threading.Lock()  # no work is submitted while what was submitted is waited for
        self._is_wanted = False
        self._lost: set[int] = set()
        self._devices: dict[int, Any] = {}  # of each queue
        self._objects: defaultdict[int, Counter[str]] = defaultdict(Counter)  # of each device

    def lose(self) -> None:
        """Have the device be lost that the next call asks."""
        self._is_wanted = True

    def __getattr__(self, name: str) -> Any:
        """Return another function of the library, the next time without this call."""
        found = getattr(self._library, name)
        made, gone = _MADE.fullmatch(name), _GONE.fullmatch(name)
        if made and made[1] not in _OF_NO_DEVICE | _OF_A_POOL:
            found = functools.partial(self._make, found, made[1])
        elif gone and gone[1] not in _OF_NO_DEVICE | _OF_A_POOL:
            found = functools.partial(self._unmake, found, gone[1])
        setattr(self, name, found)
        return found

    def vkGetDeviceQueue(self, device: Any, family: int, index: int, out: Any) -> None:
        """Remember whose a queue is."""
        self._library.vkGetDeviceQueue(device, family, index, out)
        self._devices[self._address(out[0])] = device

    def vkQueueSubmit2(self, queue: Any, num_submits: int, submits: Any, fence: Any) -> int:
        """Submit, unless the device is lost."""
        with self._lock:
            if self._is_lost(self._devices[self._address(queue)]):
                return DEVICE_LOST
            return int(self._library.vkQueueSubmit2(queue, num_submits, submits, fence))

    def vkWaitSemaphores(self, device: Any, info: Any, timeout_ns: int) -> int:
        """Wait until the device is lost at the longest."""
        while True:
            part_ns = min(timeout_ns, SLICE_NS)
            result = int(self._library.vkWaitSemaphores(device, info, part_ns))
            with self._lock:
                if self._is_lost(device):
                    return DEVICE_LOST
            if result != TIMEOUT or part_ns == timeout_ns:
                return result
            timeout_ns -= part_ns

    def vkGetSemaphoreCounterValue(self, device: Any, semaphore: Any, value: Any) -> int:
        """Read a counter, unless the device is lost."""
        return self._unless_lost(device, lambda: self._library.vkGetSemaphoreCounterValue(device, semaphore, value))

    def vkDeviceWaitIdle(self, device: Any) -> int:
        """Wait for a device, unless it is lost."""
        return self._unless_lost(device, lambda: self._library.vkDeviceWaitIdle(device))

    def vkGetQueryPoolResults(self, device: Any, *arguments: Any) -> int:
        """Read what a device has measured, unless it is lost."""
        return self._unless_lost(device, lambda: self._library.vkGetQueryPoolResults(device, *arguments))

    def vkDestroyDevice(self, device: Any, allocator: Any) -> None:
        """Tell what is left of a device; its address may be another's after that."""
        address = self._address(device)
        left = +self._objects.pop(address, Counter())
        self._library.vkDestroyDevice(device, allocator)
        self._lost.discard(address)
        print(f"{DESTROYED}{', '.join(f'{num} {kind}' for kind, num in left.items()) or 'none'}", flush=True)

    def _unless_lost(self, device: Any, call: Callable[[], int]) -> int:
        if self._is_wanted or self._address(device) in self._lost:
            with self._lock:
                if self._is_lost(device):
                    return DEVICE_LOST
        return int(call())

    def _is_lost(self, device: Any) -> bool:
        """Whether a device is lost by now."""
        address = self._address(device)
        if self._is_wanted and address not in self._lost:
            self._is_wanted = False
            self._library.vkDeviceWaitIdle(device)
            self._lost.add(address)
        return address in self._lost

    def _make(self, call: Callable[..., int], kind: str, device: Any, *arguments: Any) -> int:
        result = call(device, *arguments)
        if result >= 0:
            num = arguments[1] if kind == "Pipeline" else 1
            with self._lock:
                self._objects[self._address(device)][kind] += num
        return result

    def _unmake(self, call: Callable[..., None], kind: str, device: Any, handle: Any, allocator: Any) -> None:
        call(device, handle, allocator)
        if handle != self._ffi.NULL:
            with self._lock:
                self._objects[self._address(device)][kind] -= 1

    def _address(self, handle: Any) -> int:
        return int(self._ffi.cast("uintptr_t", handle))


if __name__ == "__main__":
    package = importlib.import_module("vulkan._vulkan")
    package.lib = losing = LosingLibrary(package.lib, package.ffi)
    signal.signal(signal.SIGUSR2, lambda *_: losing.lose())
    sys.exit(main())
