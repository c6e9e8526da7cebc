"""A checkpoint's file that is being downloaded: its beginning is on this disk, the rest is on its way."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import threading
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from unicorn_async.checkpoint.file_stamp import FileStamp
from unicorn_async.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import BinaryIO

    from _typeshed import WriteableBuffer

    from unicorn_async.errors import UnicornError

    PartialFiles: TypeAlias = "Mapping[Path, PartialFile]"

NO_PARTIAL_FILES: PartialFiles = MappingProxyType({})  # by the paths that they will have


class _Waiter(NamedTuple):
    end: int
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]


class PartialFile:
    """The first `num_there` bytes of a file of `nbytes` can be read; any thread may call it.

    `turn` is its place among files that are brought one after the other. Who brings it calls `grow` for what has come,
    and in the end `settle` or `fail`; whoever waits goes on then, and gets the error. Until it `is_settled`, nobody
    knows whether its bytes are those that were promised, which is what `sha256` says.
    """

    def __init__(self, path: Path, nbytes: int, sha256: str, *, turn: int = 0) -> None:
        """`path` is where its bytes lie so far."""
        self.nbytes = nbytes
        self.sha256 = sha256
        self.turn = turn
        found = FileStamp.of(path)
        self.num_there = min(found.nbytes, nbytes)
        self.stamp = FileStamp(
            found.device, found.inode, nbytes, found.mtime_ns
        )  # that it will have once it is settled
        self._path = path
        self._is_settled = False
        self._error: UnicornError | None = None
        self._changed = threading.Condition()
        self._waiters: list[_Waiter] = []

    @property
    def path(self) -> Path:
        """Where its bytes lie now."""
        return self._path

    @property
    def is_settled(self) -> bool:
        """Whether all of it is there, and right."""
        return self._is_settled

    @property
    def has_failed(self) -> bool:
        """Whether nothing of it comes any more, and not all is there."""
        return self._error is not None and not self._is_settled

    def grow(self, num_there: int) -> None:
        """Note that so many bytes are there by now."""
        with self._changed:
            self.num_there = max(self.num_there, num_there)
            self._wake()

    def settle(self, path: Path) -> None:
        """Move the file, all of which is there and right, to where it stays; raises OSError."""
        with self._changed:
            os.utime(self._path, ns=(self.stamp.mtime_ns, self.stamp.mtime_ns))
            self._path.replace(path)
            self._path, self._is_settled = path, True
            self._wake()

    def fail(self, error: UnicornError) -> None:
        """Let nobody wait any longer; only the first error counts, and none once the file is settled."""
        with self._changed:
            if not self._is_settled and self._error is None:
                self._error = error
            self._wake()

    def wait(self, end: int) -> None:
        """Return when the bytes before `end` are there; it blocks.

        Raises:
            UnicornError: what ended the download.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_reached(end))

    async def reached(self, end: int) -> None:
        """Return when the bytes before `end` are there; raises as `wait`."""
        with self._changed:
            if self._is_reached(end):
                return
            loop = asyncio.get_running_loop()
            waiter = _Waiter(end, loop, loop.create_future())
            self._waiters.append(waiter)
        try:
            await waiter.future
        finally:
            with self._changed, contextlib.suppress(ValueError):
                self._waiters.remove(waiter)
        self._raise()

    async def settled(self) -> None:
        """Return when all of it is there, and right; raises as `wait`."""
        await self.reached(self.nbytes + 1)

    def open(self) -> BinaryIO:
        """Open it for reading; what is not there yet is waited for, which raises as `wait`."""
        return cast("BinaryIO", io.BufferedReader(_Reads(self, self.open_now())))

    def open_now(self) -> int:
        """Return a descriptor of what is there, which is the caller's; raises OSError, and as `wait`."""
        with self._changed:
            self._raise()
            return os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)

    def _is_reached(self, end: int) -> bool:
        """Whether a waiter may go on: behind the last byte it waits for the file to be settled."""
        self._raise()
        return self._is_settled or (end <= self.nbytes and end <= self.num_there)

    def _wake(self) -> None:
        self._changed.notify_all()
        there = self.nbytes + 1 if self._is_settled or self._error is not None else self.num_there
        for waiter in [waiter for waiter in self._waiters if waiter.end <= there]:
            self._waiters.remove(waiter)
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
                waiter.loop.call_soon_threadsafe(_go_on, waiter.future)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


@dataclass(frozen=True, slots=True)
class ModelDownload:
    """A model that is being downloaded: the name that it was asked for by, where it will lie, and its files there."""

    name: str
    path: Path
    files: PartialFiles

    @property
    def is_settled(self) -> bool:
        """Whether all files are there, and right."""
        return all(file.is_settled for file in self.files.values())

    @property
    def has_failed(self) -> bool:
        """Whether a file does not come."""
        return any(file.has_failed for file in self.files.values())

    def now(self) -> ModelDownload:
        """Return it without its files once all are in their places, whoever brought them; it blocks on the disk."""
        return replace(self, files=NO_PARTIAL_FILES) if all(path.is_file() for path in self.files) else self


def open_file(path: Path, partial: PartialFiles) -> tuple[BinaryIO, int]:
    """Open a checkpoint's file for reading; return it with its size, which it may not have yet; raises OSError."""
    if (found := partial.get(path)) is not None:
        return found.open(), found.nbytes
    file = path.open("rb")
    return file, os.fstat(file.fileno()).st_size


def stamp_of(path: Path, partial: PartialFiles) -> FileStamp:
    """Return what a checkpoint's file is, or will be; raises CheckpointError."""
    found = partial.get(path)
    return FileStamp.of(path) if found is None else found.stamp


def is_there(path: Path, partial: PartialFiles) -> bool:
    """Whether a checkpoint's file is there, or on its way."""
    return path in partial or path.is_file()


class _Reads(io.RawIOBase):
    """Reads what is there, and waits for the first byte that is not."""

    def __init__(self, file: PartialFile, descriptor: int) -> None:
        super().__init__()
        self._file = file
        self._raw = os.fdopen(descriptor, "rb", buffering=0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END:
            offset, whence = self._file.nbytes + offset, os.SEEK_SET
        return self._raw.seek(offset, whence)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        at, view = self._raw.tell(), memoryview(buffer).cast("B")
        if at >= self._file.nbytes or not len(view):
            return 0
        self._file.wait(at + 1)
        count = self._raw.readinto(view[: self._file.num_there - at])
        if not count:
            raise CheckpointError(f"{self._file.path}: truncated at byte {at} while it is downloaded")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def _go_on(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
