"""A process that is started again when it has ended, and tried for while it can't be had."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from unicorn_async.errors import TokenizerLostError, UnicornError
from unicorn_async.tokenizer.child import Child
from unicorn_async.tokenizer.outage import Outage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

_log = logging.getLogger(__name__)


class LastingChild:
    """Keeps a child, of which there is a new one after `start_again`; close it at the end. Any thread may use it.

    `prepare` makes a new child ready, and `retry` is how it is tried again by itself, both with the lock held. `spoilt`
    is what those who ask are told where a new child can't be made ready: nothing of the error, which has paths.
    """

    def __init__(
        self, module: str, name: str, spoilt: str, *, prepare: Callable[[], object], retry: Callable[[], None]
    ) -> None:
        self.name = name
        self.lock = threading.Lock()  # of who talks to the process
        self.is_closed = False
        self._spoilt = spoilt
        self._module = module
        self._prepare = prepare
        self._retry = retry
        self._child = Child(module, name)
        self._num_failures = 0
        self._outage = Outage(name, self._revive)

    @property
    def outage(self) -> str | None:
        """Why it can't be had now; None if it can, or nobody knows of a reason."""
        return self._outage.reason

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._child.pid

    @property
    def connection(self) -> Connection:
        """What leads to it."""
        return self._child.connection

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have the process for oneself.

        Raises:
            TokenizerLostError: who had it meanwhile found that it can't be had: there is one attempt for all that wait.
        """
        num_failures = self._num_failures
        with self.lock:
            if self._num_failures != num_failures and self.outage is not None:
                raise TokenizerLostError(self.outage)
            yield

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note whether the process can be had, with the lock held: it can if the block ends without an error.

        Raises:
            TokenizerLostError: it can't; in place of other errors, too, of what was good before: no fault of who asks.
        """
        try:
            yield
        except TokenizerLostError as exc:
            self._fail(exc, str(exc))
            raise
        except UnicornError as exc:
            self._fail(exc, reason := f"{self.name} can't be started again: {self._spoilt}")
            raise TokenizerLostError(reason) from exc
        self._outage.end()

    def start_again(self) -> None:
        """Replace the process, which has ended, with the lock held: not beside `close`.

        Raises:
            TokenizerLostError: it can't be started, or this was closed.
            UnicornError: what `prepare` finds.
        """
        if self.is_closed:
            raise TokenizerLostError(f"{self.name} has ended")
        ended = self._child.wait()
        if self.outage is None:
            _log.warning("%s has ended (%s); it is started again", self.name, ended)
        self._child.connection.close()
        self._child = Child(self._module, self.name)
        self._prepare()

    def kill(self) -> int:
        """End the process, if it has not ended; see `Child.kill`."""
        return self._child.kill()

    def send_descriptor(self, descriptor: int) -> None:
        """Send an open file; see `Child.send_descriptor`."""
        self._child.send_descriptor(descriptor)

    def close(self) -> None:
        """End the process; whoever waits for an answer gets an error."""
        self.is_closed = True
        self._outage.close()
        self._child.kill()
        with self.lock:  # a process that is started beside this is another one
            self._child.kill()
            self._child.connection.close()

    def _fail(self, error: UnicornError, reason: str) -> None:
        self._num_failures += 1
        if not self.is_closed:
            self._outage.begin(error, reason)

    def _revive(self) -> None:
        with self.lock:
            if self.outage is not None and not self.is_closed:
                self._retry()
