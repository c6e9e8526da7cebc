"""An entry that is being written: a folder beside its place, locked by who writes it, moved there when it is whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from typing import TYPE_CHECKING

from unicorn_async.cache.entry import ENTRY_FILE, TENSORS_FILE
from unicorn_async.errors import CacheError

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.cache.entry import CacheEntry

DRAFT_SUFFIX = ".part"
_LOCK_FILE = "lock"
_ATTEMPTS = 8  # of taking the lock, while others remove the folder it lies in


class EntryDraft:
    """The files of an entry to be; `commit` or `discard` ends it. All methods block on the disk, any thread may write.

    The kernel lets the lock go when its process ends, however it ends, and then the folder is free to be removed.
    """

    def __init__(self, target: Path, folder: Path, lock: int, tensors: int) -> None:
        self._target = target
        self._folder = folder
        self._lock: int | None = lock
        self._tensors: int | None = tensors

    @classmethod
    def begin(cls, target: Path) -> EntryDraft | None:
        """Begin an entry that is to be the folder `target`; None where another process has begun it.

        Raises:
            CacheError: the folder can't be written, or not locked.
        """
        folder = target.with_name(target.name + DRAFT_SUFFIX)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            for _ in range(_ATTEMPTS):
                with contextlib.suppress(FileNotFoundError):  # others removed the folder meanwhile
                    folder.mkdir(exist_ok=True)
                    lock = _locked(folder)
                    return None if lock is None else cls._opened(target, folder, lock)
        except OSError as exc:
            raise CacheError(f"{folder}: {exc.strerror or exc}") from exc
        raise CacheError(f"{folder}: others remove it again and again")

    @classmethod
    def _opened(cls, target: Path, folder: Path, lock: int) -> EntryDraft:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            return cls(target, folder, lock, os.open(folder / TENSORS_FILE, flags, 0o644))
        except BaseException:
            os.close(lock)
            raise

    def write(self, data: memoryview, offset: int) -> None:
        """Write to the tensors' file; raises OSError."""
        assert self._tensors is not None, "the draft is open"
        while data:
            count = os.pwrite(self._tensors, data, offset)
            data, offset = data[count:], offset + count

    def sync(self) -> None:
        """Wait until what was written is on the disk, so that little of it waits in memory; raises OSError."""
        assert self._tensors is not None, "the draft is open"
        os.fdatasync(self._tensors)

    def drop_pages(self) -> None:
        """Take what is on the disk out of memory."""
        assert self._tensors is not None, "the draft is open"
        with contextlib.suppress(OSError):  # advice
            os.posix_fadvise(self._tensors, 0, 0, os.POSIX_FADV_DONTNEED)

    def commit(self, entry: CacheEntry) -> bool:
        """Put the entry in its place, in one step; return whether it was not there already.

        Raises:
            OSError: that is not possible.
        """
        assert self._tensors is not None, "the draft is open"
        os.ftruncate(self._tensors, entry.nbytes)
        os.fsync(self._tensors)
        write_synced(self._folder / ENTRY_FILE, entry.to_json())
        _sync_folder(self._folder)
        try:
            self._folder.rename(self._target)
        except OSError:
            if not self._target.exists():
                raise
            self.discard()
            return False
        _sync_folder(self._target.parent)
        (self._target / _LOCK_FILE).unlink(missing_ok=True)
        self._close()
        return True

    def discard(self) -> None:
        """Remove everything, unless it was committed."""
        if self._lock is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._close()

    def _close(self) -> None:
        for descriptor in (self._tensors, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._tensors = self._lock = None


def draft_is_abandoned(folder: Path) -> bool:
    """Remove a draft that nobody writes any more; return whether it was one. Raises OSError."""
    lock = _locked(folder)
    if lock is None:
        return False
    try:
        shutil.rmtree(folder)
    finally:
        os.close(lock)
    return True


def write_synced(path: Path, data: bytes) -> None:
    """Write a small file and wait until it is on the disk; raises OSError."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _locked(folder: Path) -> int | None:
    """Take the lock of a draft; None where another has it. Raises FileNotFoundError if the folder goes meanwhile."""
    path = folder / _LOCK_FILE
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.lstat()):
            return descriptor
        raise FileNotFoundError(f"{path}: replaced while it was locked")
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
