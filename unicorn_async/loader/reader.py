"""Named threads that read parts of files into memory."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_PIECE_BYTES = 4 << 20  # a cancelled read ends after so many bytes


class FileReader:
    """Reads by `preadv`, which releases the interpreter's lock; the files stay open until `close`.

    `num_threads` None chooses by the number of cores.

    Raises:
        CheckpointError: a file can't be opened.
    """

    def __init__(self, files: Sequence[Path], *, num_threads: int | None = None) -> None:
        self._files = files
        self._descriptors: list[int] = []
        self._stop = threading.Event()
        self.num_threads = num_threads or max(4, min(8, os.cpu_count() or 1))
        self._threads = ThreadPoolExecutor(self.num_threads, thread_name_prefix="unicorn-reader")
        try:
            for path in files:
                self._descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as exc:
            self.close()
            raise CheckpointError(f"{exc.filename}: {exc.strerror}") from exc

    async def read(self, file: int, offset: int, target: memoryview) -> None:
        """Fill `target` from byte `offset` of a file.

        After a cancellation a thread may go on writing to `target`: it is free once `close` has returned.

        Raises:
            CheckpointError: the file ends too early or can't be read.
        """
        await asyncio.get_running_loop().run_in_executor(self._threads, self._read, file, offset, target)

    def close(self) -> None:
        """End the threads, which takes no longer than reading a few megabytes, and close the files."""
        self._stop.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
        descriptors, self._descriptors = self._descriptors, []
        for descriptor in descriptors:
            os.close(descriptor)

    def _read(self, file: int, offset: int, target: memoryview) -> None:
        done = 0
        while done < len(target) and not self._stop.is_set():
            try:
                count = os.preadv(self._descriptors[file], [target[done : done + _PIECE_BYTES]], offset + done)
            except OSError as exc:
                raise CheckpointError(f"{self._files[file]}: reading at byte {offset + done}: {exc.strerror}") from exc
            if count == 0:
                raise CheckpointError(
                    f"{self._files[file]}: truncated while it was read: {len(target)} bytes expected at byte {offset}, "
                    f"got {done}"
                )
            done += count
