"""Long calls of the driver in threads that step back behind all others of this process."""

from __future__ import annotations

import contextlib
import os
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Self

from unicorn_async.errors import OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable

_NICENESS = 12  # a fifteenth of what another thread gets of a core, while one wants it


class BackgroundCalls:
    """Makes calls for other threads, which wait for the result; use it in a `with` block, from those threads alone.

    Of Python, its own threads run a line between two calls. More would be harmful on few cores: who holds Python's
    lock and has stepped back may be left waiting for a core, and then every thread waits.
    """

    def __init__(self, num_threads: int, *, name: str) -> None:
        self._calls: SimpleQueue[tuple[Callable[..., int], tuple[object, ...], SimpleQueue[int]] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=f"{name}_{index}") for index in range(num_threads)]

    def __enter__(self) -> Self:
        try:
            for thread in self._threads:
                thread.start()
        except BaseException as exc:
            self.__exit__()
            if isinstance(exc, RuntimeError):
                raise OutOfMemoryError(f"the system does not allow {len(self._threads)} more threads") from exc
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for _thread in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def call(self, function: Callable[..., int], *arguments: object) -> int:
        """Return what `function`, which raises nothing, returns."""
        result: SimpleQueue[int] = SimpleQueue()
        self._calls.put((function, arguments, result))
        return result.get()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while (call := self._calls.get()) is not None:
            call[2].put(call[0](*call[1]))
