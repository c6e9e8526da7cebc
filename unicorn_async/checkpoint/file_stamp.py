"""What tells that a file was changed or replaced between two looks at it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class FileStamp:
    """A file's identity, its size in bytes, and when it was written last."""

    device: int
    inode: int
    nbytes: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path, descriptor: int | None = None) -> FileStamp:
        """Look at the file `path`, or at the open one that it was.

        Raises:
            CheckpointError: that is not possible, or it is a pipe or another thing that can't be read at a place.
        """
        try:
            found = os.stat(path if descriptor is None else descriptor)
        except OSError as exc:
            raise CheckpointError(f"{path}: {exc.strerror or exc}") from exc
        if not stat.S_ISREG(found.st_mode):
            raise CheckpointError(f"{path}: is no regular file")
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    def check(self, path: Path, now: FileStamp) -> None:
        """Check that the file `path` is still what it was when this stamp was taken, before its header was read.

        Raises:
            CheckpointError: it is not; the message says what differs.
        """
        if now == self:
            return
        if now.nbytes < self.nbytes:
            what = f"truncated: {self.nbytes} bytes"
        elif now.nbytes > self.nbytes:
            what = f"changed: {self.nbytes} bytes"
        elif (now.device, now.inode) != (self.device, self.inode):
            raise CheckpointError(f"{path}: replaced by another file after its header was read")
        else:
            raise CheckpointError(f"{path}: written to after its header was read")
        raise CheckpointError(f"{path}: {what} when its header was read, {now.nbytes} now")
