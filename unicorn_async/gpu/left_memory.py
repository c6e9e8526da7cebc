"""Memory of engines that have ended, which their drivers are still to take back."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from unicorn_async.gpu.device_info import DeviceInfo, MemoryHeap

_PAUSES = 2  # times as long as the last free, between two: drivers hold others' submissions up for as long as one takes


class Allocated(Protocol):
    """What is allocated on a logical device; `Memory` is it."""

    @property
    def device_uuid(self) -> str:
        """That of the physical device."""

    @property
    def used_bytes(self) -> tuple[int, ...]:
        """How much, per heap."""


class LeftMemory:
    """Says what is still to be freed of devices that nobody uses any more, paces that, and lets others wait for it.

    It has the memory of any number of logical devices; any thread may call it. Drivers take 20 milliseconds to free a
    gigabyte, and a model that comes next need not wait for all that the last one had.
    """

    def __init__(self) -> None:
        self._memories: list[Allocated] = []
        self._changed = threading.Condition(threading.RLock())  # held while memory is freed
        self._num_waiting = 0
        self._num_freed = 0

    def add(self, memory: Allocated) -> None:
        """Count what is allocated of a device's memory as left behind, until `remove`."""
        with self._changed:
            self._memories.append(memory)

    def remove(self, memory: Allocated) -> None:
        """Let go of memory that is freed; or that never will be, if freeing it failed."""
        with self._changed:
            self._memories.remove(memory)
            self._num_freed += 1
            self._changed.notify_all()

    @contextmanager
    def hurrying(self) -> Iterator[None]:
        """Pause nowhere during the block: somebody waits until all is freed."""
        with self._changed:
            self._num_waiting += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._num_waiting -= 1

    @contextmanager
    def freeing(self, memory: Allocated) -> Iterator[None]:
        """Free a part of a memory in the block; what was left behind is paced, and nobody counts meanwhile."""
        if memory not in self._memories:
            yield
            return
        with self._changed:
            started = time.perf_counter()
            try:
                yield
            finally:
                freed_s = time.perf_counter() - started
                self._num_freed += 1
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._num_waiting > 0, _PAUSES * freed_s)

    def count(self) -> int:
        """Return a number that grows with whatever is freed, for `wait`."""
        with self._changed:
            return self._num_freed

    def wait(self, info: DeviceInfo, count: int) -> bool:
        """Block until more of a physical device's memory was freed than at a `count`, which may be at once.

        Returns whether it was: no if nothing of it is left to be freed.
        """
        with self.hurrying(), self._changed:
            self._changed.wait_for(lambda: self._num_freed > count or not self._of(info))
            return self._num_freed > count

    def heaps(self, info: DeviceInfo, now: Callable[[], tuple[MemoryHeap, ...]]) -> tuple[MemoryHeap, ...]:
        """Return a physical device's heaps as of `now`, with what is left there; a software device's are the host's."""
        if info.is_software:
            return now()
        with self._changed:
            left = [memory.used_bytes for memory in self._of(info)]
            sums = [sum(of_heap) for of_heap in zip(*left, strict=True)]
            return tuple(
                replace(heap, left=min(nbytes, heap.used))
                for heap, nbytes in zip(now(), sums or [0] * len(info.heaps), strict=True)
            )

    def _of(self, info: DeviceInfo) -> list[Allocated]:
        return [memory for memory in self._memories if memory.device_uuid == info.device_uuid]
