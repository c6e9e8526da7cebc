"""How long a coroutine runs, without what it waits for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

T = TypeVar("T")


class RunningTime(Generic[T]):
    """Awaits a coroutine, once, and clocks what of it runs in this task; `seconds` is the sum so far."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.seconds = 0.0
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, T]:
        """Wait for whatever the coroutine waits for; a cancellation reaches it."""
        running = self._coroutine.__await__()
        error: BaseException | None = None
        while True:
            started = time.perf_counter()
            try:
                awaited = next(running) if error is None else running.throw(error)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                self.seconds += time.perf_counter() - started
                error = None
            try:
                yield awaited
            except BaseException as exc:
                error = exc
