"""The file that a trace goes to: no part of it keeps the event loop waiting, or waits without end."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import time
from typing import TYPE_CHECKING

import aiofiles
import aiofiles.os
import aiofiles.tempfile

from unicorn_async.background import wait_to_end
from unicorn_async.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_PATIENCE_S = 10.0  # with a pipe that nobody reads from
_PAUSE_S = 0.02


class TraceFile:
    """A file, which is replaced in one step, or a pipe or a device, into which the trace is written as it comes."""

    def __init__(self, what: str, path: Path, empty: str) -> None:
        """Check that it can be written: a file stays what it is until `write`, and a new one has the text `empty`.

        It blocks on the disk; a pipe or a device is not touched.

        Raises:
            ConfigError: it can't be written; the message begins with `what`.
        """
        self._what = what
        self._path = path.resolve()  # what a link names is replaced, not the link
        try:
            if self._is_stream():
                if not os.access(self._path, os.W_OK):
                    raise OSError(errno.EACCES, os.strerror(errno.EACCES))
            elif self._path.is_file():
                with self._path.open("a"):  # which changes nothing
                    pass
            else:
                self._path.write_text(empty)
        except OSError as exc:
            raise self._error(exc) from exc

    async def write(self, text: Callable[[], str]) -> None:
        """Write what `text` returns, which is called in a thread; a cancellation is raised once that is done.

        A pipe gets it if somebody reads from it then, and goes on to read.

        Raises:
            ConfigError: it can't be written; a file is then what it was.
        """
        writing = asyncio.create_task(self._write(text), name=f"write the {self._what}")
        try:
            await wait_to_end(writing)
        except asyncio.CancelledError:
            writing.exception()  # seen, and of no use to a cancelled caller
            raise
        writing.result()

    async def _write(self, text: Callable[[], str]) -> None:
        content = await asyncio.to_thread(lambda: text().encode())
        try:
            if await asyncio.to_thread(self._is_stream):
                await self._pour(content)
            else:
                await self._replace(content)
        except OSError as exc:
            raise self._error(exc) from exc

    async def _replace(self, content: bytes) -> None:
        async with aiofiles.tempfile.NamedTemporaryFile(
            "wb", prefix=self._path.name, suffix=".part", dir=self._path.parent, delete=False
        ) as file:
            partial = str(file.name)
            try:
                await file.write(content)
                await file.flush()
                await asyncio.to_thread(shutil.copymode, self._path, partial)
                await aiofiles.os.replace(partial, self._path)
            except BaseException:
                await aiofiles.os.unlink(partial)
                raise

    async def _pour(self, content: bytes) -> None:
        left, deadline = memoryview(content), time.monotonic() + _PATIENCE_S
        async with aiofiles.open(self._path, "wb", buffering=0, opener=_open_at_once) as file:
            while left:
                written = await file.write(left)
                if written:
                    left, deadline = left[written:], time.monotonic() + _PATIENCE_S
                elif time.monotonic() > deadline:
                    raise OSError(errno.ETIMEDOUT, "nobody reads from it")
                else:
                    await asyncio.sleep(_PAUSE_S)

    def _is_stream(self) -> bool:
        return self._path.exists() and not self._path.is_file() and not self._path.is_dir()

    def _error(self, cause: OSError) -> ConfigError:
        return ConfigError(f"{self._what} {self._path}: {cause.strerror}")


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for a reader, where the file is a pipe; without one it is an error."""
    return os.open(path, flags | os.O_NONBLOCK)
