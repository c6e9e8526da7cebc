"""Named threads that do blocking work for an event loop, at less cost for each piece of work than an executor."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

from unicorn_async.errors import OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable

Work: TypeAlias = "Callable[[], None]"


class ReaderThreads:
    """Does work in the order in which it comes; the threads run until `close`.

    A warm load has hundreds of reads of a millisecond, and the loop that hands them out takes its time from the same
    cores. So a read costs a future of the loop and no other, and the loop is woken once for all that has ended.

    Raises:
        OutOfMemoryError: the system allows no more threads.
    """

    def __init__(self, num_threads: int, *, name: str) -> None:
        self._queue: SimpleQueue[tuple[Work, asyncio.Future[None] | None] | None] = SimpleQueue()
        self._ended: deque[tuple[asyncio.Future[None], BaseException | None]] = deque()
        self._is_waking = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: list[threading.Thread] = []
        try:
            for index in range(num_threads):
                thread = threading.Thread(target=self._run, name=f"{name}_{index}")
                thread.start()
                self._threads.append(thread)
        except BaseException as exc:
            self.close()
            if isinstance(exc, RuntimeError):
                raise OutOfMemoryError(f"{name}: the system allows only {index} of {num_threads} threads") from exc
            raise

    async def run(self, work: Work) -> None:
        """Do work in a thread; raises what it raises. One event loop may call this.

        Cancelled, work that has not begun is left out, and other work goes on until its end.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        future = self._loop.create_future()
        self._queue.put((work, future))
        await future

    def submit(self, work: Work) -> None:
        """Do work that nobody waits for, and that raises nothing."""
        self._queue.put((work, None))

    def close(self) -> None:
        """Leave out what has not begun, whose waiters are cancelled, and wait for the rest; it may be called again."""
        with contextlib.suppress(Empty):
            while True:
                item = self._queue.get_nowait()
                if item is not None and item[1] is not None:
                    self._end(item[1], asyncio.CancelledError())
        threads, self._threads = self._threads, []
        for _ in threads:
            self._queue.put(None)
        for thread in threads:
            thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, future = item
            error: BaseException | None = None
            if future is None or not future.cancelled():
                try:
                    work()
                except BaseException as exc:  # it is the waiter's
                    error = exc
            if future is not None:
                self._end(future, error)
            del item, work, future, error  # what they hold must not live on while this thread waits

    def _end(self, future: asyncio.Future[None], error: BaseException | None) -> None:
        assert self._loop is not None, "a future has a loop"
        self._ended.append((future, error))
        if not self._is_waking:
            self._is_waking = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_waking = False  # before the deque is emptied: what comes later wakes the loop again
        while self._ended:
            future, error = self._ended.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            elif isinstance(error, asyncio.CancelledError):
                future.cancel()
            else:
                future.set_exception(error)
