"""Timeline semaphores: counters that the GPU or the host raises, and that coroutines await."""

from __future__ import annotations

import asyncio
import threading
import warnings
from typing import TYPE_CHECKING

from unicorn_async.errors import DeviceError
from unicorn_async.gpu.binding import TIMEOUT, SemaphoreHandle, check

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.gpu.device_context import DeviceContext

_FOREVER_NS = (1 << 64) - 1


class _Waiter:
    __slots__ = ("future", "loop", "value")

    def __init__(self, value: int) -> None:
        self.value = value
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()


class Timeline:
    """A VkSemaphore of timeline type; it only grows. Close it after the work that signals it.

    One thread per timeline, started by the first `reached` that has to wait, blocks in the driver and wakes the
    coroutines. It always waits for the next value, so a waiter for any value can join without waking it, and it sleeps
    on a condition while nobody waits.
    """

    def __init__(self, device: DeviceContext, *, name: str = "timeline") -> None:
        self.name = name
        self.last_submitted = 0
        self._device = device
        self._api = api = device.api
        kind = api.struct("VkSemaphoreTypeCreateInfo", semaphoreType=api.vk.VK_SEMAPHORE_TYPE_TIMELINE)
        info = api.struct("VkSemaphoreCreateInfo", pNext=kind)
        handle = api.create(
            "vkCreateSemaphore", f"{name}: vkCreateSemaphore", "VkSemaphore", device.handle, info, api.null
        )
        self.handle = SemaphoreHandle(handle)
        self._handles = api.ffi.new("VkSemaphore[1]", [handle])
        self._waiters: list[_Waiter] = []
        self._wakeup = threading.Condition()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._closed = False
        self._in_driver = False
        self._final: int | None = None
        device.adopt(self)

    def completed(self) -> int:
        """Return the value that the timeline has reached; a closed one keeps its last.

        Raises:
            DeviceLostError: the device is lost.
        """
        if self._final is not None:
            return self._final
        value = self._api.ffi.new("uint64_t *")
        result = self._api.step.vkGetSemaphoreCounterValue(self._device.handle, self.handle, value)
        check(result, f"{self.name}: vkGetSemaphoreCounterValue")
        return int(value[0])

    async def reached(self, value: int) -> None:
        """Return as soon as the timeline has reached `value`; cancelling leaves nothing behind.

        Raises:
            DeviceLostError: the device is lost.
            DeviceError: the timeline was closed first.
        """
        if self.completed() >= value:
            return
        waiter = _Waiter(value)
        with self._wakeup:
            if self._closed:
                raise DeviceError(f"{self.name}: waited for {value} after it was closed")
            if self._error is not None:
                raise self._error
            self._waiters.append(waiter)
            self._start_thread()
            self._wakeup.notify()
        try:
            # The thread may have read the counter before this waiter joined, and the counter may have grown since.
            if self.completed() < value:
                await waiter.future
        finally:
            with self._wakeup:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)

    def wait(self, value: int, timeout_s: float | None = None) -> None:
        """Block this thread until the timeline has reached `value`; for tests and tools, never on the event loop.

        Raises:
            TimeoutError: `timeout_s` passed first.
            DeviceLostError: the device is lost.
        """
        timeout_ns = _FOREVER_NS if timeout_s is None else int(timeout_s * 1e9)
        if self._wait_raw(value, timeout_ns) == TIMEOUT:
            raise TimeoutError(f"{self.name}: at {self.completed()} after {timeout_s} s, waited for {value}")

    def signal(self, value: int) -> None:
        """Raise the timeline to `value` from the host; it must exceed all that was signalled or submitted before."""
        info = self._api.struct("VkSemaphoreSignalInfo", semaphore=self.handle, value=value)
        check(self._api.step.vkSignalSemaphore(self._device.handle, info), f"{self.name}: vkSignalSemaphore")
        self.last_submitted = max(self.last_submitted, value)

    def close(self) -> None:
        """Wait for what was submitted, then stop the thread and destroy the semaphore; waiters get DeviceError."""
        with self._wakeup:
            if self._closed:
                return
            self._closed = True
            self._wakeup.notify()
        final = self.last_submitted
        try:
            self.wait(final)
            if self._in_driver:
                final += 1
                self.signal(final)  # ends the thread's wait in the driver
        except DeviceError:
            pass  # a lost device ends every wait by itself
        if self._thread is not None:
            self._thread.join()
        self._resolve(self._take_all(), DeviceError(f"{self.name}: closed while a coroutine waited"))
        self._final = final
        self._api.lib.vkDestroySemaphore(self._device.handle, self.handle, self._api.null)
        self._device.disown(self)

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn(f"timeline {self.name!r} was not closed", ResourceWarning, stacklevel=1)

    def _wait_raw(self, value: int, timeout_ns: int) -> int:
        values = self._api.ffi.new("uint64_t[1]", [value])
        info = self._api.struct("VkSemaphoreWaitInfo", semaphoreCount=1, pSemaphores=self._handles, pValues=values)
        result = self._api.step.vkWaitSemaphores(self._device.handle, info, timeout_ns)
        return check(result, f"{self.name}: vkWaitSemaphores")

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"unicorn-{self.name}", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        values = self._api.ffi.new("uint64_t[1]")
        info = self._api.struct("VkSemaphoreWaitInfo", semaphoreCount=1, pSemaphores=self._handles, pValues=values)
        try:
            while True:
                with self._wakeup:
                    while not self._waiters and not self._closed:
                        self._wakeup.wait()
                    if self._closed:
                        return
                seen = self.completed()
                self._resolve(self._take(seen), None)
                with self._wakeup:
                    if self._closed or not self._waiters:
                        continue
                    self._in_driver = True
                values[0] = seen + 1
                result = self._api.step.vkWaitSemaphores(self._device.handle, info, _FOREVER_NS)
                self._in_driver = False
                check(result, f"{self.name}: vkWaitSemaphores")
        except DeviceError as exc:
            with self._wakeup:
                self._error = exc
            self._resolve(self._take_all(), exc)

    def _take(self, seen: int) -> list[_Waiter]:
        with self._wakeup:
            done = [w for w in self._waiters if w.value <= seen]
            self._waiters = [w for w in self._waiters if w.value > seen]
        return done

    def _take_all(self) -> list[_Waiter]:
        return self._take(_FOREVER_NS)

    @staticmethod
    def _resolve(waiters: Iterable[_Waiter], error: Exception | None) -> None:
        for waiter in waiters:
            try:
                waiter.loop.call_soon_threadsafe(_finish, waiter.future, error)
            except RuntimeError:  # its loop is closed, so nobody awaits it any more
                continue


def _finish(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
