"""A model that is brought by a thread, while others load it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.gguf.files import SUFFIX
from unicorn_async.checkpoint.safetensors import HEADER_LENGTH_BYTES
from unicorn_async.errors import DownloadError, UnicornError
from unicorn_async.hub.beginning import START_BYTES
from unicorn_async.hub.needed import told

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.checkpoint.partial_file import ModelDownload
    from unicorn_async.hub.large_file import LargeFile
    from unicorn_async.hub.repository import Repository

_log = logging.getLogger(__name__)
_END_S = 1.0  # for the thread to end in: it may wait for bytes, and what it has written is good at any time


class DownloadStream:
    """Brings files one after the other, and then has the model's name mean them; close it.

    `download` is for who loads the model, once the headers are there. What ends the thread early after that is logged,
    and raised wherever bytes are waited for.
    """

    def __init__(self, hub: Repository, revision: str, files: Sequence[LargeFile], download: ModelDownload) -> None:
        self.download = download
        self._hub = hub
        self._revision = revision
        self._files = files
        self._is_closed, self._can_be_opened = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="unicorn-download", daemon=True)
        self._thread.start()

    def wait_for_headers(self) -> None:
        """Wait until the model can be opened; raises what ends the download before that, which is not logged."""
        for file in self._files:
            if not file.file.name.endswith(SUFFIX):
                with self._hub.errors():
                    file.content.wait(min(START_BYTES, file.file.nbytes))
                    file.check_begins()
                    with file.content.open() as begun:
                        length = int.from_bytes(begun.read(HEADER_LENGTH_BYTES), "little")
                    file.content.wait(min(HEADER_LENGTH_BYTES + length, file.file.nbytes))
        self._can_be_opened.set()

    def close(self) -> None:
        """End it, which leaves what has come for the next time; it may be called again."""
        self._is_closed.set()
        for file in self._files:
            file.stop()
        self._fail(DownloadError(f"{self.download.name}: the download was stopped; what has come is kept"))
        self._thread.join(_END_S)

    def join(self) -> None:
        """Wait until all has come, or nothing comes any more."""
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._hub.errors():
                for file in self._files:
                    file.settle()
            self._hub.set_main(self._revision)
            nbytes = sum(file.file.nbytes for file in self._files)
            _log.info("%s: all of it has come, %s, and is as the hub lists it", self.download.name, told(nbytes))
        except UnicornError as exc:  # also what its digest's thread finds of a file that others have cut
            self._fail(exc)
            if self._can_be_opened.is_set() and not self._is_closed.is_set():
                _log.error("%s", exc)
        finally:
            for file in self._files:
                file.close()

    def _fail(self, error: UnicornError) -> None:
        for file in self._files:
            file.content.fail(error)
