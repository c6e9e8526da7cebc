"""An open file that is read into memory: through the page cache, or past it."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from typing import TYPE_CHECKING, Protocol

from unicorn_async.checkpoint.file_stamp import FileStamp
from unicorn_async.gpu.host_pages import FilePages, prefer_huge_pages
from unicorn_async.tensor import aligned

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.checkpoint.partial_file import PartialFile

PAGE_BYTES = 4096  # offsets, sizes and addresses of direct reads are multiples of it, whatever the disk's block
PIECE_BYTES = 4 << 20  # of one system call: a cancelled read ends after so many bytes
WARM_PIECE_BYTES = 32 << 20  # takes as long from memory; between calls, a thread waits for the interpreter's lock
_ADVICE_BYTES = 128 << 10  # the kernel cuts a request for more to its read-ahead size, which is seldom less than this


class OpenFile(Protocol):
    """What a reader needs of a file; any thread may call it."""

    def fill(self, parts: list[memoryview], offset: int) -> int:
        """Fill the parts one after the other from byte `offset`; return the bytes filled, fewer at the file's end."""

    def will_need(self, offset: int, nbytes: int) -> None:
        """Ask for bytes that are read soon."""

    def stamp(self) -> FileStamp:
        """Return what the file is now; raises CheckpointError."""

    def close(self) -> None:
        """Close the file; no read may be under way."""


class CachedFile:
    """Reads through the page cache; `drops` gives back the pages that were read.

    `fetches` has what is read brought into the page cache in huge pages first, where the kernel does that: small ones
    cost several times as much, now and whenever they are read again. Without, the kernel's own read-ahead is off: it
    guesses from the last read, and several threads read here and there. `will_need` is told instead.
    """

    def __init__(
        self, path: Path, *, drops: bool = False, fetches: bool = False, partial: PartialFile | None = None
    ) -> None:
        """Of a `partial` file nothing is read that is not there; what it is now counts once it is settled."""
        self._path, self._drops, self._partial = path, drops, partial
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if partial is None else partial.open_now()
        self._pages = FilePages(self._descriptor) if fetches else None
        if self._pages is not None and not self._pages.fetch(0, 1):
            self._pages.close()
            self._pages = None
        if self._pages is None:
            self._advise(0, 0, os.POSIX_FADV_RANDOM)

    def fill(self, parts: list[memoryview], offset: int) -> int:
        """See `OpenFile.fill`."""
        filled = 0
        if self._pages is not None:
            self._pages.fetch(offset, sum(len(part) for part in parts))
        while parts:
            count = os.preadv(self._descriptor, parts, offset + filled)
            if count == 0:
                break
            filled += count
            parts = _after(parts, count)
        if self._drops:
            self._advise(offset, filled, os.POSIX_FADV_DONTNEED)
        return filled

    def will_need(self, offset: int, nbytes: int) -> None:
        """See `OpenFile.will_need`."""
        if self._pages is not None:
            return
        for start in range(offset, offset + nbytes, _ADVICE_BYTES):
            self._advise(start, min(_ADVICE_BYTES, offset + nbytes - start), os.POSIX_FADV_WILLNEED)

    def stamp(self) -> FileStamp:
        """See `OpenFile.stamp`."""
        if self._partial is not None and not self._partial.is_settled:
            return self._partial.stamp
        return FileStamp.of(self._path, self._descriptor)

    def close(self) -> None:
        """See `OpenFile.close`."""
        if self._pages is not None:
            self._pages.close()
        os.close(self._descriptor)

    def _advise(self, offset: int, nbytes: int, advice: int) -> None:
        with contextlib.suppress(OSError):  # a file system may take none
            os.posix_fadvise(self._descriptor, offset, nbytes, advice)


class DirectFile:
    """Reads by O_DIRECT, past the page cache, which takes whole pages and ordinary memory.

    The device's mapped memory need not be ordinary (the kernel can't pin a PCIe BAR), so `fill` reads into a small
    buffer of the calling thread and copies from there; `fill_around` reads into the caller's pages without a copy.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        self._thread = threading.local()

    def fill(self, parts: list[memoryview], offset: int) -> int:
        """See `OpenFile.fill`; the parts are PIECE_BYTES at most."""
        import numpy as np  # other loads begin without it

        bounce = self._bounce()
        nbytes = sum(len(part) for part in parts)
        filled = self.fill_around(bounce, offset, nbytes)
        start, end = offset % PAGE_BYTES, offset % PAGE_BYTES + filled
        for part in parts:
            count = min(len(part), end - start)
            if count <= 0:
                break
            # NumPy's copy lets other threads run; a memoryview's assignment does not.
            np.copyto(np.frombuffer(part, np.uint8, count), np.frombuffer(bounce, np.uint8, count, start))
            start += count
        return filled

    def fill_around(self, pages: memoryview, offset: int, nbytes: int) -> int:
        """Read all pages that the bytes from `offset` lie in; the bytes start at `offset % PAGE_BYTES` of `pages`.

        `pages` starts at a page and has room for `span_bytes(offset, nbytes)`. Returns as `fill` does.
        """
        first, head = offset - offset % PAGE_BYTES, offset % PAGE_BYTES
        span, done = span_bytes(offset, nbytes), 0
        while done < head + nbytes:
            count = os.preadv(self._descriptor, [pages[done:span]], first + done)
            before, done = done, done + count
            if done < head + nbytes:  # go on at a whole page; where that is none further, the file ends here
                whole = done - done % PAGE_BYTES
                if whole <= before:
                    break
                done = whole
        return max(0, min(done - head, nbytes))

    def will_need(self, offset: int, nbytes: int) -> None:
        """See `OpenFile.will_need`: there is nobody to ask."""

    def stamp(self) -> FileStamp:
        """See `OpenFile.stamp`."""
        return FileStamp.of(self._path, self._descriptor)

    def close(self) -> None:
        """See `OpenFile.close`."""
        os.close(self._descriptor)

    def _bounce(self) -> memoryview:
        bounce: memoryview | None = getattr(self._thread, "bounce", None)
        if bounce is None:
            bounce = self._thread.bounce = page_memory(PIECE_BYTES + 2 * PAGE_BYTES)
        return bounce


def page_memory(nbytes: int) -> memoryview:
    """Return zeroed memory of whole pages, huge ones if possible; it is freed with the last view of it."""
    size = aligned(nbytes, PAGE_BYTES)
    memory = memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    prefer_huge_pages(memory)  # a disk takes a request in few pieces, and what was cut into small ones later
    return memory


def span_bytes(offset: int, nbytes: int) -> int:
    """Return the size of the pages that `nbytes` from `offset` lie in."""
    return aligned(offset % PAGE_BYTES + nbytes, PAGE_BYTES)


def _after(parts: list[memoryview], count: int) -> list[memoryview]:
    """Return what is left of the parts once their first `count` bytes are filled."""
    index = 0
    while index < len(parts) and count >= len(parts[index]):
        count -= len(parts[index])
        index += 1
    left = parts[index:]
    return [left[0][count:], *left[1:]] if left else []
