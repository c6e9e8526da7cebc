"""Holds back what a loader reads, until a test lets it go on."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

from unicorn_async.loader.reader import FileReader

if TYPE_CHECKING:
    import pytest


class LoadingGate:
    """Lets the first `num_free` reads pass; the others wait for `open`, or for the end of the reader."""

    def __init__(self, patch: pytest.MonkeyPatch, num_free: int) -> None:
        self._opened = threading.Event()
        reads = itertools.count()
        read, close = FileReader._read, FileReader.close

        def held_read(reader: FileReader, file: int, offset: int, target: memoryview) -> None:
            if next(reads) >= num_free:
                self._opened.wait()
            read(reader, file, offset, target)

        def opening_close(reader: FileReader) -> None:
            self.open()
            close(reader)

        patch.setattr(FileReader, "_read", held_read)
        patch.setattr(FileReader, "close", opening_close)

    def open(self) -> None:
        """Let everything pass."""
        self._opened.set()
