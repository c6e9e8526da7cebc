"""How much of a download has come, and that it is to end: for other threads than the one that brings it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.coming_model import DownloadCount
from unicorn_async.errors import DownloadError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.checkpoint.partial_file import PartialFile
    from unicorn_async.hub.needed import RepoFile


class Arrivals:
    """Counts whole files, and bytes of those that can be read while they come; any thread may look, and `stop` it."""

    def __init__(self) -> None:
        self.is_stopped = threading.Event()
        self._expected_bytes = self._whole_bytes = 0
        self._partial: dict[str, PartialFile] = {}  # by its digest: a file may be begun again

    def expect(self, files: Iterable[RepoFile]) -> None:
        """Take files that are going to be brought."""
        self._expected_bytes += sum(file.nbytes for file in files)

    def note_whole(self, file: RepoFile) -> None:
        """Note that all of a file is there."""
        self._whole_bytes += file.nbytes

    def follow(self, content: PartialFile) -> None:
        """Count what comes of a file from now on."""
        self._partial[content.sha256] = content

    def count(self) -> DownloadCount:
        """Return how much has come; nothing before it is known of what."""
        if not self._expected_bytes:
            return DownloadCount()
        return DownloadCount(
            self._expected_bytes, self._whole_bytes + sum(one.num_there for one in list(self._partial.values()))
        )

    def stop(self) -> None:
        """Have what is received end with the next bytes that come, and nothing begun any more."""
        self.is_stopped.set()

    def check(self) -> None:
        """Raise DownloadError if it was stopped."""
        if self.is_stopped.is_set():
            raise DownloadError("the download was stopped; what has come is kept")
