"""Memory of engines that have ended, which their drivers are still to take back."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from unicorn_async.errors import OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from unicorn_async.gpu.device_info import DeviceInfo, MemoryHeap

_PATIENCE_S = 10.0  # twice as long as a driver takes to free 140 GB
_PAUSES = 2  # times as long as the last free, between two: drivers hold others' submissions up for as long as one takes


T = TypeVar("T")


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

    It has the memory of any number of logical devices; any thread may call it, and none waits for a driver but those
    that want to know how much there is. Drivers take 20 milliseconds to free a gigabyte, and a model that comes next
    need not wait for all that the last one had.
    """

    def __init__(self) -> None:
        self._memories: list[Allocated] = []
        self._changed = threading.Condition()
        self._num_freeing = 0
        self._num_counting = 0
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
        """Free a part of a memory in the block; what was left behind is paced, and waits for who counts."""
        if memory not in self._memories:
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._num_counting)
            self._num_freeing += 1
        started = time.perf_counter()
        try:
            yield
        finally:
            freed_s = time.perf_counter() - started
            with self._changed:
                self._num_freeing -= 1
                self._num_freed += 1
                self._changed.notify_all()
        with self._changed:
            self._changed.wait_for(lambda: self._num_waiting > 0, _PAUSES * freed_s)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Have nothing freed during the block, for several figures of the memory to be of one time."""
        with self._changed:
            self._num_counting += 1
            self._changed.wait_for(lambda: not self._num_freeing)
        try:
            yield
        finally:
            with self._changed:
                self._num_counting -= 1
                self._changed.notify_all()

    def count(self) -> int:
        """Return a number that grows with whatever is freed, for `wait`."""
        with self._changed:
            return self._num_freed

    def allocate(
        self,
        info: DeviceInfo,
        heaps: Mapping[int, int],
        attempt: Callable[[Sequence[int]], T],
        *,
        is_given_up: Callable[[], bool],
    ) -> T:
        """Return what `attempt` does, which allocates in one of the types of memory that it is given.

        All of them, best first, have their `heaps`. Where there is no room, it waits for what is left there to be
        freed; no worse heap than one with that is tried meanwhile, for some time, or until the wait `is_given_up`, of
        which `look_again` tells.

        Raises:
            OutOfMemoryError: there is no room, and nothing more is left that could be freed.
        """
        all_types, end_s = list(heaps), time.monotonic() + _PATIENCE_S
        while True:
            count, patience_s = self.count(), end_s - time.monotonic()
            is_patient = patience_s > 0 and not is_given_up() and not info.shares_host_memory  # there none is worse
            types = self._better(info, heaps) if is_patient else all_types
            try:
                return attempt(types)
            except OutOfMemoryError:
                timeout_s = None if types == all_types else patience_s
                if not self.wait(info, count, is_given_up=is_given_up, timeout_s=timeout_s) and types == all_types:
                    raise

    def wait(
        self, info: DeviceInfo, count: int, *, is_given_up: Callable[[], bool], timeout_s: float | None = None
    ) -> bool:
        """Block until more of a physical device's memory was freed than at a `count`, which may be at once.

        Returns whether it was: no if nothing of it is left to be freed, the time is over, or the wait is given up.
        """
        with self.hurrying(), self._changed:
            self._changed.wait_for(
                lambda: self._num_freed > count or is_given_up() or not self._of(info), timeout=timeout_s
            )
            return self._num_freed > count and not is_given_up()

    def look_again(self) -> None:
        """Have whoever waits see whether that was given up."""
        with self._changed:
            self._changed.notify_all()

    def heaps(self, info: DeviceInfo, now: Callable[[], tuple[MemoryHeap, ...]]) -> tuple[MemoryHeap, ...]:
        """Return a physical device's heaps as of `now`, with what is left there; a software device's are the host's.

        It blocks while a part of that is being freed.
        """
        with self.still():
            return self._counted(info, now())

    def heaps_at_once(
        self, info: DeviceInfo, now: Callable[[], tuple[MemoryHeap, ...]]
    ) -> tuple[MemoryHeap, ...] | None:
        """Return the same, or None while a part is being freed: nobody can tell whether the driver counts that."""
        with self._changed:
            return None if self._num_freeing else self._counted(info, now())

    def _better(self, info: DeviceInfo, heaps: Mapping[int, int]) -> list[int]:
        """Return the types before those of worse heaps than one in which anything is left."""
        with self._changed:
            left = {heap for memory in self._of(info) for heap, nbytes in enumerate(memory.used_bytes) if nbytes}
        better: list[int] = []
        for index, heap in heaps.items():
            if better and heaps[better[-1]] in left and heap != heaps[better[-1]]:
                break
            better.append(index)
        return better

    def _counted(self, info: DeviceInfo, heaps: tuple[MemoryHeap, ...]) -> tuple[MemoryHeap, ...]:
        if info.is_software:
            return heaps
        with self._changed:
            left = [memory.used_bytes for memory in self._of(info)]
        sums = [sum(of_heap) for of_heap in zip(*left, strict=True)] or [0] * len(heaps)
        return tuple(replace(heap, left=min(nbytes, heap.used)) for heap, nbytes in zip(heaps, sums, strict=True))

    def _of(self, info: DeviceInfo) -> list[Allocated]:
        return [memory for memory in self._memories if memory.device_uuid == info.device_uuid]
