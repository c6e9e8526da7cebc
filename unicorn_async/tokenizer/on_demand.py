"""The process for the long texts of a small vocabulary, which by itself needs none: it is made again in no time."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from unicorn_async.errors import TokenizerLostError, UnicornError
from unicorn_async.tokenizer.process import TokenizerProcess

if TYPE_CHECKING:
    from unicorn_async.tokenizer.apart import Call
    from unicorn_async.tokenizer.worker import Source

_log = logging.getLogger(__name__)


class OnDemandProcess:
    """Starts a tokenizer's process where one is needed, and ends it when it no longer is; close it at the end."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._process: TokenizerProcess | None = None
        self._num_calls = 0
        self._is_closed = False

    def run(self, call: Call) -> list[int]:
        """Make a call; see `Apart`."""
        process = self._begin()
        try:
            return process.run(call)
        finally:
            self._end()

    def close(self) -> None:
        """End the process, if there is one; whoever waits for an answer gets an error."""
        with self._lock:
            self._is_closed = True
            process, self._process = self._process, None
        if process is not None:
            process.close()

    def _begin(self) -> TokenizerProcess:
        with self._lock:
            if self._is_closed:
                raise TokenizerLostError("the tokenizer is closed")
            if self._process is None:
                process = TokenizerProcess(self._source)
                try:
                    process.tokenizer()
                except TokenizerLostError:
                    process.close()
                    raise
                except UnicornError as exc:  # of its files, which were good: no fault of who asks, and with their path
                    process.close()
                    _log.error("the tokenizer's process can't be started for a long text: %s", exc)
                    raise TokenizerLostError(
                        "the model's files are not what they were: no long text is encoded"
                    ) from exc
                except BaseException:
                    process.close()
                    raise
                self._process = process
            self._num_calls += 1
            return self._process

    def _end(self) -> None:
        with self._lock:
            self._num_calls -= 1
            if self._num_calls:
                return
            process, self._process = self._process, None
        if process is not None:
            process.close()
