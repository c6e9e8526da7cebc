"""Who waits for what a thread does: what works for one that has gone is ended."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


class Caller:
    """One that waits for a work in another thread, and may go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []
        self.has_gone = False

    def run(self, work: Callable[[], T]) -> T:
        """Work for this caller, in this thread."""
        token = _here.set(self)
        try:
            return work()
        finally:
            _here.reset(token)

    def go(self) -> None:
        """Wait no longer, and end what is under way."""
        with self._lock:
            self.has_gone = True
            for end in self._ends:
                end()

    @contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """Have `end` called, from any thread, if the caller goes while the block runs, or has gone."""
        with self._lock:
            self._ends.append(end)
            if self.has_gone:
                end()
        try:
            yield
        finally:
            with self._lock:
                self._ends.remove(end)


_here: ContextVar[Caller] = ContextVar("caller")


def caller() -> Caller:
    """Return for whom this thread works; where nobody said, one that stays."""
    found = _here.get(None)
    return Caller() if found is None else found
