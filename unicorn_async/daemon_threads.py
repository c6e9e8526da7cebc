"""Threads for work that may never end: who closes them waits for a moment, and is told what is left."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from unicorn_async.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class DaemonThreads:
    """Does work in the order in which it comes, in as many of `count` threads as the system allows.

    They are daemons: the process does not wait for one that a disk holds for ever. Where the kernel does not let a
    thread go, its process has ended, and is gone when the disk answers. The last one that ends calls `on_end`. An event
    loop starts, begins and closes.
    """

    def __init__(self, name: str, count: int, on_end: Callable[[], None] = lambda: None) -> None:
        self._name, self._count, self._on_end = name, count, on_end
        self._queue: SimpleQueue[tuple[str, Callable[[], Any], asyncio.Future[Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._doing: dict[str, tuple[str, float]] = {}  # what a thread is at, and since when, by its name
        self._num_running = 0
        self._counting = threading.Lock()

    def start(self) -> None:
        """Start the threads, unless they run.

        Raises:
            CacheError: the system allows none.
        """
        for index in range(len(self._threads), 0 if self._threads else self._count):
            thread = threading.Thread(target=self._run, name=f"{self._name}_{index}", daemon=True)
            self._num_running += 1
            try:
                thread.start()
            except RuntimeError as exc:
                self._num_running -= 1
                if not self._threads:
                    raise CacheError(f"{self._name}: the system allows none of {self._count} threads") from exc
                return
            self._threads.append(thread)

    def begin(self, what: str, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do work, called `what`, in one of the threads, which run; nobody has to look how it ended.

        It is left out where the future is cancelled before it begins.
        """
        assert self._threads, f"{what}: nobody has started {self._name}"
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put((what, work, future))
        return future

    @property
    def busy_s(self) -> float:
        """For how many seconds a thread has been at what it does now, the one that has been for longest; 0 if none
        is at anything."""
        return max((time.monotonic() - since_s for _, since_s in dict(self._doing).values()), default=0.0)

    def close(self, patience_s: float) -> list[str]:
        """Leave out what was not begun, and wait for the rest; returns which threads are still at what."""
        with contextlib.suppress(Empty):
            while True:
                self._queue.get_nowait()
        for _ in self._threads:
            self._queue.put(None)
        deadline = time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        doing = {name: what for name, (what, _) in dict(self._doing).items()}
        return [f"{thread.name} ({doing.get(thread.name, 'ending')})" for thread in self._threads if thread.is_alive()]

    def _run(self) -> None:
        name = threading.current_thread().name
        while self._do_next(name):
            pass
        with self._counting:
            self._num_running -= 1
            is_last = not self._num_running
        if is_last:
            self._on_end()

    def _do_next(self, name: str) -> bool:
        item = self._queue.get()
        if item is None:
            return False
        what, work, future = item
        if future.cancelled():
            return True
        self._doing[name] = (what, time.monotonic())
        result, error = None, None
        try:
            result = work()
        except BaseException as exc:
            error = exc
        del self._doing[name]
        with contextlib.suppress(RuntimeError):  # the event loop is closed, and nobody waits
            future.get_loop().call_soon_threadsafe(_end, future, result, error)
        return True


def _end(future: asyncio.Future[T], result: T, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
        future.exception()  # seen: who waited may be cancelled
