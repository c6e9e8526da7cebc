"""Named threads that read parts of files into memory."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError
from unicorn_async.loader.open_file import PAGE_BYTES, PIECE_BYTES, CachedFile, DirectFile
from unicorn_async.loader.read_strategy import ReadMode, ReadStrategy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from unicorn_async.loader.open_file import OpenFile
    from unicorn_async.loader.row_order import InterleavedHeads
    from unicorn_async.loader.trace import LoadTrace

_MAX_PARTS = 1024  # of one call, IOV_MAX on Linux
_PLAIN = ReadStrategy(ReadMode.WARM, 4)


class FileReader:
    """Reads by `preadv`, which releases the interpreter's lock; the files stay open until `close`.

    Raises:
        CheckpointError: a file can't be opened.
    """

    def __init__(
        self, files: Sequence[Path], strategy: ReadStrategy = _PLAIN, *, trace: LoadTrace | None = None
    ) -> None:
        self._paths = files
        self._trace = trace
        self._opened: list[OpenFile] = []
        self._direct: list[DirectFile] = []
        self._stop = threading.Event()
        self.num_threads = strategy.num_threads
        self._threads = ThreadPoolExecutor(self.num_threads, thread_name_prefix="unicorn-reader")
        try:
            for path in files:
                self._open(path, strategy.mode)
        except OSError as exc:
            self.close()
            raise CheckpointError(f"{exc.filename}: {exc.strerror}") from exc

    @property
    def is_direct(self) -> bool:
        """Whether `read_around` is there."""
        return bool(self._direct)

    async def read(
        self, file: int, offset: int, target: memoryview, row_permutation: InterleavedHeads | None = None
    ) -> None:
        """Fill `target` from byte `offset` of a file; rows come to the places that the permutation gives them.

        After a cancellation a thread may go on writing to `target`: it is free once `close` has returned.

        Raises:
            CheckpointError: the file ends too early or can't be read.
        """
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self._read, file, offset, target, row_permutation)

    async def read_around(self, file: int, offset: int, nbytes: int, pages: memoryview) -> int:
        """Read the whole pages that `nbytes` from `offset` lie in; return where in `pages` the bytes begin.

        Only where `is_direct`: `pages` is ordinary memory from a page's start, of `span_bytes(offset, nbytes)` at
        least. Cancelled or failed, it is as `read`.
        """
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self._read_around, file, offset, nbytes, pages)
        return offset % PAGE_BYTES

    def will_need(self, file: int, offset: int, nbytes: int) -> None:
        """Ask the kernel for bytes that are read soon; a thread does it before the reads that come after it."""
        self._threads.submit(self._opened[file].will_need, offset, nbytes)

    def close(self) -> None:
        """End the threads, which takes no longer than reading a few megabytes, and close the files."""
        self._stop.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
        opened, self._opened, self._direct = self._opened, [], []
        for file in opened:
            file.close()

    def _open(self, path: Path, mode: ReadMode) -> None:
        if mode is ReadMode.DIRECT:
            direct = DirectFile(path)
            self._direct.append(direct)
            self._opened.append(direct)
        else:
            self._opened.append(CachedFile(path, drops=mode is ReadMode.DROPPED))

    def _read(self, file: int, offset: int, target: memoryview, row_permutation: InterleavedHeads | None) -> None:
        started, done = time.perf_counter_ns(), 0
        try:
            for parts in _calls([target] if row_permutation is None else row_permutation.places(target)):
                if self._stop.is_set():
                    return
                filled = self._opened[file].fill(parts, offset + done)
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


def _calls(places: list[memoryview]) -> Iterator[list[memoryview]]:
    """Cut what is to be filled into parts of one call each."""
    if len(places) == 1:
        target = places[0]
        for start in range(0, len(target), PIECE_BYTES):
            yield [target[start : start + PIECE_BYTES]]
        return
    count = max(1, min(_MAX_PARTS, PIECE_BYTES // len(places[0])))
    for first in range(0, len(places), count):
        yield places[first : first + count]
