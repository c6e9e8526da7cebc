"""What a response is written to, where what comes is read at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import DownloadError

if TYPE_CHECKING:
    import threading
    from io import FileIO

    from unicorn_async.checkpoint.partial_file import PartialFile


class Received:
    """Appends what comes to a file, and tells of it; nothing that is there is ever taken back, or written again.

    A server that does not go on at a byte sends all of it anew, from `start` on: that is passed over, as far as it is
    there. So is it where a server sends more than the bytes before `end`: the response ends then. Once `is_stopped`,
    nothing is written any more.
    """

    def __init__(self, opened: FileIO, content: PartialFile, is_stopped: threading.Event, start: int, end: int) -> None:
        self._opened = opened
        self._content = content
        self._is_stopped = is_stopped
        self._at = start
        self._end = end

    def write(self, data: bytes) -> None:
        """Take the bytes that come next; raises DownloadError if no more are wanted, OSError."""
        if self._is_stopped.is_set():
            raise DownloadError("the download was stopped; what has come is kept")
        there = self._content.num_there
        assert self._at <= there, "bytes were left out"
        new = memoryview(data)[there - self._at : self._content.nbytes - self._at]
        self._at += len(data)
        while new:
            count = self._opened.write(new) or 0
            there, new = there + count, new[count:]
            self._content.grow(there)
        if self._at > self._end:
            raise DownloadError(f"more came than the {self._end} bytes that were asked for")

    def tell(self) -> int:
        """Return where the next bytes belong."""
        return self._at
