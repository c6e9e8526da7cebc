"""The process for the long texts of a small vocabulary, which by itself needs none: it is made again in no time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar

from unicorn_async.errors import TokenizerLostError, UnicornError
from unicorn_async.tokenizer.outage import Outage
from unicorn_async.tokenizer.process import TokenizerProcess

if TYPE_CHECKING:
    from unicorn_async.tokenizer.apart import Call
    from unicorn_async.tokenizer.worker import Source

_NAME = "the tokenizer's process for long texts"
_CLOSED = "the tokenizer is closed"


class OnDemandProcess:
    """Starts a tokenizer's process where one is needed, and ends it when it no longer is; close it at the end.

    One that can't be started is tried again, so that its `outage` ends though nobody has long texts.
    """

    part: ClassVar = "long_texts"

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._process: TokenizerProcess | None = None
        self._starting: TokenizerProcess | None = None  # with the lock held, for as long as that takes
        self._num_calls = 0
        self._is_closed = False
        self._outage = Outage(_NAME, self._revive)

    @property
    def outage(self) -> str | None:
        """Why no long text can be encoded now; None if it can, or nobody knows of a reason."""
        return self._outage.reason

    def run(self, call: Call) -> list[int]:
        """Make a call; see `Apart`."""
        process = self._begin()
        try:
            return process.run(call)
        finally:
            self._end()

    def close(self) -> None:
        """End the process, if there is one; whoever waits for an answer gets an error."""
        self._outage.close()
        self._is_closed = True
        if (starting := self._starting) is not None:
            starting.close()
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()

    def _begin(self) -> TokenizerProcess:
        with self._lock:
            if self._is_closed:
                raise TokenizerLostError(_CLOSED)
            if self._process is None:
                self._process = self._started()
            self._num_calls += 1
            return self._process

    def _started(self) -> TokenizerProcess:
        """Start the process, where it is noted whether there is one."""
        try:
            process = self._made()
        except TokenizerLostError as exc:
            self._outage.begin(exc, str(exc))
            raise
        except UnicornError as exc:  # of its files, which were good: no fault of who asks, and with their path
            reason = "the model's files are not what they were: no long text is encoded"
            self._outage.begin(exc, reason)
            raise TokenizerLostError(reason) from exc
        self._outage.end()
        return process

    def _made(self) -> TokenizerProcess:
        process = self._starting = TokenizerProcess(self._source)
        try:
            if self._is_closed:  # else `close` sees it
                raise TokenizerLostError(_CLOSED)
            process.tokenizer()
        except BaseException:
            process.close()
            raise
        finally:
            self._starting = None
        return process

    def _revive(self) -> None:
        with self._lock:
            if self.outage is not None and not self._is_closed:
                self._started().close()

    def _end(self) -> None:
        with self._lock:
            self._num_calls -= 1
            if self._num_calls:
                return
            process, self._process = self._process, None
        if process is not None:
            process.close()
