"""An opened device, as what lives on it sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from unicorn_async.gpu.binding import Api, DeviceHandle
    from unicorn_async.gpu.device_info import DeviceInfo, MemoryHeap
    from unicorn_async.gpu.physical import PhysicalDevice


class Closable(Protocol):
    """What a device owns: it is closed with the device at the latest."""

    def close(self) -> None:
        """Release the object; a second call does nothing."""


class DeviceContext(Protocol):
    """A `Device` without what is made of it: its queues, memory and kernels need no more."""

    @property
    def api(self) -> Api:
        """Vulkan's functions."""

    @property
    def handle(self) -> DeviceHandle:
        """The VkDevice."""

    @property
    def info(self) -> DeviceInfo:
        """What the device is, and can do."""

    @property
    def physical(self) -> PhysicalDevice:
        """What it was opened on."""

    @property
    def queue_families(self) -> tuple[int, ...]:
        """The families of its queues."""

    def heaps(self) -> tuple[MemoryHeap, ...]:
        """Return the heaps with their budgets as of now."""

    def adopt(self, child: Closable) -> None:
        """Register an object that must be closed before the device."""

    def disown(self, child: Closable) -> None:
        """Take an object, closed by now, off the register."""
