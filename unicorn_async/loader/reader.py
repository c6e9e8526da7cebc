"""Named threads that read parts of files into memory."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.checkpoint.partial_file import NO_PARTIAL_FILES
from unicorn_async.errors import CheckpointError
from unicorn_async.loader.open_file import PAGE_BYTES, PIECE_BYTES, WARM_PIECE_BYTES, CachedFile, DirectFile
from unicorn_async.loader.read_strategy import ReadMode, ReadStrategy
from unicorn_async.loader.reader_threads import ReaderThreads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from unicorn_async.checkpoint.file_stamp import FileStamp
    from unicorn_async.checkpoint.partial_file import PartialFiles
    from unicorn_async.loader.open_file import OpenFile
    from unicorn_async.loader.trace import LoadTrace
    from unicorn_async.weights.row_order import RowOrder

_MAX_PARTS = 1024  # of one call, IOV_MAX on Linux
_PLAIN = ReadStrategy(ReadMode.WARM, 4)


class Read(NamedTuple):
    """Bytes from `offset` of a file that fill `target`; rows come to the places that a permutation gives them."""

    file: int
    offset: int
    target: memoryview
    row_permutation: RowOrder | None = None


class FileReader:
    """Reads by `preadv`, which releases the interpreter's lock; the files stay open until `close`.

    `stamps` are what the files were when their headers were read; without them nobody knows whether they changed. Of
    `partial` ones only what is there by then may be read.

    Raises:
        CheckpointError: a file can't be opened, or is not what its stamp says.
        UnicornError: what ended the download of a partial one.
    """

    def __init__(
        self,
        files: Sequence[Path],
        strategy: ReadStrategy = _PLAIN,
        *,
        stamps: Sequence[FileStamp] = (),
        trace: LoadTrace | None = None,
        partial: PartialFiles = NO_PARTIAL_FILES,
    ) -> None:
        self._paths = files
        self._stamps = stamps
        self._partial = partial
        self._trace = trace
        self._files: list[OpenFile] = []
        self._direct: list[DirectFile] = []
        self._stop = threading.Event()
        self._piece_bytes = WARM_PIECE_BYTES if strategy.mode is ReadMode.WARM else PIECE_BYTES
        self.num_threads = strategy.num_threads
        self._threads = ReaderThreads(self.num_threads, name="unicorn-reader")
        try:
            for path in files:
                self._open(path, strategy.mode)
            self._check_unchanged()
        except BaseException as exc:  # of any kind, as what ended a download: threads that wait keep a process
            self.close()
            if isinstance(exc, OSError):
                raise CheckpointError(f"{exc.filename}: {exc.strerror}") from exc
            raise

    @property
    def is_direct(self) -> bool:
        """Whether `read_around` is there."""
        return bool(self._direct)

    async def read(self, file: int, offset: int, target: memoryview, row_permutation: RowOrder | None = None) -> None:
        """Fill `target` from byte `offset` of a file; rows come to the places that the permutation gives them.

        After a cancellation a thread may go on writing to `target`: it is free once `close` has returned.

        Raises:
            CheckpointError: the file ends too early or can't be read.
        """
        await self._threads.run(lambda: self._read(file, offset, target, row_permutation))

    async def read_all(self, reads: Sequence[Read]) -> None:
        """Do several small reads one after the other in one thread; otherwise as `read`."""
        await self._threads.run(lambda: self._read_each(reads))

    async def read_around(self, file: int, offset: int, nbytes: int, pages: memoryview) -> int:
        """Read the whole pages that `nbytes` from `offset` lie in; return where in `pages` the bytes begin.

        Only where `is_direct`: `pages` is ordinary memory from a page's start, of `span_bytes(offset, nbytes)` at
        least. Cancelled or failed, it is as `read`.
        """
        await self._threads.run(lambda: self._read_around(file, offset, nbytes, pages))
        return offset % PAGE_BYTES

    def will_need(self, file: int, offset: int, nbytes: int) -> None:
        """Ask the kernel for bytes that are read soon; a thread does it before the reads that come after it."""
        self._threads.submit(lambda: self._files[file].will_need(offset, nbytes))

    async def check_unchanged(self) -> None:
        """Check that the files are still what they were; all that was read before is then of one version.

        Raises:
            CheckpointError: a file was truncated, written to or replaced.
        """
        if self._stamps:
            await self._threads.run(self._check_unchanged)

    def close(self) -> None:
        """End the threads, which takes no longer than reading a few megabytes, and close the files."""
        self._stop.set()
        self._threads.close()
        files, self._files, self._direct = self._files, [], []
        for file in files:
            file.close()

    def _open(self, path: Path, mode: ReadMode) -> None:
        if mode is ReadMode.DIRECT:
            direct = DirectFile(path)
            self._direct.append(direct)
            self._files.append(direct)
        else:
            drops, fetches = mode is ReadMode.DROPPED, mode is ReadMode.CACHED
            self._files.append(CachedFile(path, drops=drops, fetches=fetches, partial=self._partial.get(path)))

    def _check_unchanged(self) -> None:
        for path, file, stamp in zip(self._paths, self._files, self._stamps, strict=False):
            stamp.check(path, file.stamp())

    def _read_each(self, reads: Sequence[Read]) -> None:
        for read in reads:
            self._read(*read)

    def _read(self, file: int, offset: int, target: memoryview, row_permutation: RowOrder | None) -> None:
        started, done = time.perf_counter_ns(), 0
        try:
            places = [target] if row_permutation is None else row_permutation.places(target)
            for parts in _calls(places, self._piece_bytes):
                if self._stop.is_set():
                    return
                filled = self._files[file].fill(parts, offset + done)
                done += filled
                if filled < sum(len(part) for part in parts):
                    raise self._truncated(file, offset, len(target), done)
        except OSError as exc:
            raise self._failed(file, offset + done, exc) from exc
        self._note(file, offset, done, started)

    def _read_around(self, file: int, offset: int, nbytes: int, pages: memoryview) -> None:
        started, opened, head = time.perf_counter_ns(), self._direct[file], offset % PAGE_BYTES
        done = 0  # counted from the first page's start
        try:
            while done < head + nbytes and not self._stop.is_set():
                wanted = min(PIECE_BYTES, head + nbytes - done)
                filled = opened.fill_around(pages[done:], offset - head + done, wanted)
                done += filled
                if filled < wanted:
                    raise self._truncated(file, offset, nbytes, max(0, done - head))
        except OSError as exc:
            raise self._failed(file, offset + max(0, done - head), exc) from exc
        self._note(file, offset, nbytes, started)

    def _truncated(self, file: int, offset: int, wanted: int, got: int) -> CheckpointError:
        return CheckpointError(
            f"{self._paths[file]}: truncated while it was read: {wanted} bytes expected at byte {offset}, got {got}"
        )

    def _failed(self, file: int, offset: int, error: OSError) -> CheckpointError:
        return CheckpointError(f"{self._paths[file]}: reading at byte {offset}: {error.strerror}")

    def _note(self, file: int, offset: int, nbytes: int, started: int) -> None:
        if self._trace is not None:
            self._trace.read(self._paths[file].name, offset, nbytes, started, time.perf_counter_ns())


def _calls(places: list[memoryview], piece_bytes: int) -> Iterator[list[memoryview]]:
    """Cut what is to be filled into parts of one call each."""
    if len(places) == 1:
        target = places[0]
        for start in range(0, len(target), piece_bytes):
            yield [target[start : start + piece_bytes]]
        return
    count = max(1, min(_MAX_PARTS, piece_bytes // len(places[0])))
    for first in range(0, len(places), count):
        yield places[first : first + count]
