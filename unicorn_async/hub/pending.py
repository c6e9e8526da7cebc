"""A download that begins while the server listens that is to serve its model."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.coming_model import ComingModel
from unicorn_async.errors import DownloadError, UnicornError
from unicorn_async.hub.arrivals import Arrivals
from unicorn_async.hub.cached import is_cached
from unicorn_async.hub.download import begin_pull
from unicorn_async.hub.stream import DownloadStream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.checkpoint.hub import HubName
    from unicorn_async.hub.download import Listener

_log = logging.getLogger(__name__)
_END_S = 1.0  # for the thread to end in: it may wait for the hub, and what has come is good at any time


class PendingPull:
    """Brings a model in a thread, which tells the `listener`; close it. `coming` is for who opens the model.

    What ends it before the model can be opened is raised wherever that is waited for, and logged where nobody does.
    """

    def __init__(self, text: str, name: HubName, listener: Listener, environ: Mapping[str, str] = os.environ) -> None:
        """`text` is what the model is asked for by, and `name` what that means on the hub."""
        self._text, self._name, self._listener, self._environ = text, name, listener, environ
        self._changing = threading.Lock()
        self._is_closed = self._logs_failures = False
        self._begin()

    def again(self) -> ComingModel | None:
        """Begin anew, after a failure; return what comes now, None where all is in the cache. It blocks on the disk.

        Raises:
            DownloadError: it is closed.
        """
        if self._stream is not None:
            self._stream.close()  # another one may bring its files now
        self.log_failures(of_now=False)
        with self._changing:
            if self._is_closed:
                raise self._stopped()
            if is_cached(self._name, self._environ):
                return None
            self._begin()
            return self.coming

    def log_failures(self, *, of_now: bool = True) -> None:
        """Have it logged why the model can't be opened, for want of others who tell: by now, and from now on."""
        with self._changing:
            self._logs_failures = True
            error = self.coming.error
        if of_now and error is not None:
            self._log_failure(error)

    def close(self) -> None:
        """End it, which leaves what has come for the next time; it may be called again."""
        with self._changing:
            self._is_closed = True
            self._arrivals.stop()
        self.coming.fail(self._stopped())
        self._thread.join(_END_S)
        if self._stream is not None:
            self._stream.close()

    def _begin(self) -> None:
        self._arrivals = Arrivals()
        self.coming = ComingModel(self._text, self._arrivals.count)
        self._stream: DownloadStream | None = None
        self._thread = threading.Thread(target=self._run, name="unicorn-pull", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        coming = self.coming  # one at a time: another one begins once this has failed
        try:
            begun = begin_pull(self._name, self._listener, self._environ, self._arrivals)
        except BaseException as exc:  # a fault is no less the end of what others wait for
            if not isinstance(exc, UnicornError):
                _log.exception("%s", self._name)
            with self._changing:
                coming.fail(exc)
                is_logged = self._logs_failures
            if is_logged:
                self._log_failure(exc)
            return
        if not isinstance(begun, DownloadStream):
            coming.begin(None)
            return
        with self._changing:
            self._stream, is_stopped = begun, self._arrivals.is_stopped.is_set()
        if is_stopped:
            begun.close()
        coming.begin(begun.download)

    def _log_failure(self, error: BaseException) -> None:
        if isinstance(error, UnicornError) and not self._is_closed:  # another kind of fault is logged in any case
            _log.warning("%s", error)

    def _stopped(self) -> DownloadError:
        return DownloadError(f"{self._name}: the download was stopped; what has come is kept")
