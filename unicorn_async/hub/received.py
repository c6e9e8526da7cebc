"""What huggingface_hub writes a response to, and shows it by, where what comes is read at once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

from unicorn_async.errors import DownloadError

if TYPE_CHECKING:
    import threading
    from io import FileIO

    from unicorn_async.checkpoint.partial_file import PartialFile


class Received:
    """Appends what comes to a file, and tells of it; nothing that is there is ever taken back, or written again.

    Where a server does not go on at a byte, the library goes back and writes all of it anew: that is passed over, as
    far as it is there. So is it where a server sends more than the bytes before `end`: the response ends then. Once
    `is_stopped`, nothing is written any more.
    """

    def __init__(self, opened: FileIO, content: PartialFile, is_stopped: threading.Event, end: int) -> None:
        self._opened = opened
        self._content = content
        self._is_stopped = is_stopped
        self._end = end
        self._at = content.num_there

    def write(self, data: bytes) -> int:
        """Take the bytes that come next; raises DownloadError if no more are wanted, OSError."""
        if self._is_stopped.is_set():
            raise DownloadError("the download was stopped; what has come is kept")
        there = self._content.num_there
        assert self._at <= there, "the library leaves out no bytes"
        new = memoryview(data)[there - self._at : self._content.nbytes - self._at]
        self._at += len(data)
        while new:
            count = self._opened.write(new) or 0
            there, new = there + count, new[count:]
            self._content.grow(there)
        if self._at > self._end:
            raise DownloadError(f"more came than the {self._end} bytes that were asked for")
        return len(data)

    def tell(self) -> int:
        """Return where the next bytes belong."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Say where the next bytes belong."""
        assert whence == os.SEEK_SET, "the library counts from the start"
        self._at = offset
        return offset

    def truncate(self) -> None:
        """Keep what is there: it is not written again."""


class NoBar:
    """Shows nothing of a download that is shown elsewhere."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, nbytes: float | None = 1) -> None:
        """Take note of bytes."""
