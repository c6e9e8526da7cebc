"""A model that is on its way before anybody knows which files it has."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.checkpoint.partial_file import ModelDownload

_INTERVAL_S = 0.2  # between two looks at what has come


class DownloadCount(NamedTuple):
    """Bytes of files: of those that are brought, and of what is there of them. 0 before they are known."""

    bytes_to_download: int = 0
    bytes_downloaded: int = 0


class ComingModel:
    """A model that was asked for by `name`; any thread may call it.

    Who brings it calls `begin` once it can be opened, with its files that are on their way, or None where all are in
    their places; or else `fail`. Only the first of these counts. `count` says how much has come by now.
    """

    def __init__(self, name: str, count: Callable[[], DownloadCount] = DownloadCount) -> None:
        self.name = name
        self._count = count
        self._begun: Future[ModelDownload | None] = Future()

    @property
    def is_begun(self) -> bool:
        """Whether it can be opened, or never will be."""
        return self._begun.done()

    @property
    def error(self) -> BaseException | None:
        """What ended its download before it could be opened."""
        return self._begun.exception() if self._begun.done() else None

    @property
    def has_failed(self) -> bool:
        """Whether its download has ended early, before it could be opened or after."""
        if not self._begun.done() or self._begun.exception() is not None:
            return self._begun.done()
        download = self._begun.result()
        return download is not None and download.has_failed

    def begin(self, download: ModelDownload | None) -> None:
        """Let those go on who wait for it."""
        with contextlib.suppress(InvalidStateError):
            self._begun.set_result(download)

    def fail(self, error: BaseException) -> None:
        """Have an error raised wherever it is waited for."""
        with contextlib.suppress(InvalidStateError):
            self._begun.set_exception(error)

    def wait(self) -> ModelDownload | None:
        """Return what is on its way, once that can be opened; it blocks.

        Raises:
            UnicornError: what ended the download.
        """
        return self._begun.result()

    async def begun(self, on_count: Callable[[DownloadCount], None]) -> None:
        """Return when it can be opened, or never will be; `on_count` is told meanwhile how much has come."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(woken.set)

        self._begun.add_done_callback(wake)
        while not self.is_begun:
            on_count(self._count())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_INTERVAL_S):
                    await woken.wait()
