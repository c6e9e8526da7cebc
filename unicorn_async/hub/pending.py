"""A download that begins while the server listens that is to serve its model."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.coming_model import ComingModel
from unicorn_async.errors import DownloadError, UnicornError
from unicorn_async.hub.arrivals import Arrivals
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

    What ends it before the model can be opened is raised wherever that is waited for.
    """

    def __init__(self, text: str, name: HubName, listener: Listener, environ: Mapping[str, str] = os.environ) -> None:
        """`text` is what the model is asked for by, and `name` what that means on the hub."""
        self._arrivals = Arrivals()
        self.coming = ComingModel(text, self._arrivals.count)
        self._name, self._listener, self._environ = name, listener, environ
        self._stream: DownloadStream | None = None
        self._changing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="unicorn-pull", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it, which leaves what has come for the next time; it may be called again."""
        with self._changing:
            self._arrivals.stop()
        self.coming.fail(DownloadError(f"{self._name}: the download was stopped; what has come is kept"))
        self._thread.join(_END_S)
        if self._stream is not None:
            self._stream.close()

    def _run(self) -> None:
        try:
            begun = begin_pull(self._name, self._listener, self._environ, self._arrivals)
        except BaseException as exc:  # a fault is no less the end of what others wait for
            if not isinstance(exc, UnicornError):
                _log.exception("%s", self._name)
            self.coming.fail(exc)
            return
        if not isinstance(begun, DownloadStream):
            self.coming.begin(None)
            return
        with self._changing:
            self._stream, is_stopped = begun, self._arrivals.is_stopped.is_set()
        if is_stopped:
            begun.close()
        self.coming.begin(begun.download)
