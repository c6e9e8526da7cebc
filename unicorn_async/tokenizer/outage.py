"""What can't be had for now: its cause is said once, and it is tried again until it can."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING

from unicorn_async.errors import UnicornError

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

_FIRST_DELAY_S = 1.0
_MAX_DELAY_S = 30.0


class Outage:
    """Whether a process can't be had. `retry` is called in a thread, ever less often, until `end` is. Close it."""

    def __init__(self, name: str, retry: Callable[[], None]) -> None:
        self._name = name
        self._retry = retry
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._is_trying = False
        self.reason: str | None = None  # for clients: without paths

    def begin(self, error: UnicornError, reason: str) -> None:
        """Note that it can't be had, with the cause as the log is to have it, and have it tried again."""
        with self._lock:
            if self._closed.is_set():
                return
            if self.reason is None:
                _log.error("%s can't be had, and what needs it is refused until it can: %s", self._name, error)
            self.reason = reason
            if not self._is_trying:
                with contextlib.suppress(RuntimeError):  # no thread either: the next request tries again
                    threading.Thread(target=self._try, name=f"retry {self._name}", daemon=True).start()
                    self._is_trying = True

    def end(self) -> None:
        """Note that it is there."""
        with self._lock:
            if self.reason is not None:
                self.reason = None
                _log.warning("%s is there again", self._name)

    def close(self) -> None:
        """Try no more."""
        self._closed.set()

    def _try(self) -> None:
        delay = _FIRST_DELAY_S
        while not self._closed.wait(delay):
            with self._lock:
                if self.reason is None:
                    self._is_trying = False
                    return
            delay = min(2 * delay, _MAX_DELAY_S)
            with contextlib.suppress(UnicornError):
                self._retry()
