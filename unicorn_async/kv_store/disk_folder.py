"""The folder of one model's blocks on a disk, beside those of other models, for its owner's eyes alone."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.errors import CacheError
from unicorn_async.kv_store.block_file import PART_SUFFIX, file_name, file_nbytes, name_of, read_block, write_block
from unicorn_async.scheduler.kept_blocks import BlockName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_OTHERS = -1  # group of the files of other models, whose key is where they lie
_FOLDER = re.compile(r"[0-9a-f]{32}")
_LOCK_FILE = "lock"
_MOST_FILES = 1 << 20  # that are looked at
_TICK_NS = 1000  # between two uses at least, which a file system may tell apart
_OWN_LACKS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_MOST_LOOKS, _LOOK_S = 25, 0.02  # at a lock
_OTHERS_LOCK = "another process keeps this model's blocks there"
_OWN_LOCK = "this process keeps this model's blocks there already: another engine, or a thread that the disk holds"
_OPEN_FILES = "/proc/self/fd"


class DiskFolder:
    """Reads, writes and removes blocks; any thread may call it, all methods block on the disk.

    The process that has it open has it for itself, by a lock. Files of other models are removed as the own ones are,
    when they are the ones that were used longest ago, but for those of models that somebody has open by then.
    """

    def __init__(self, root: Path, key: str, block_nbytes: Sequence[int]) -> None:
        self._root = root
        self._folder = root / key
        self._block_nbytes = tuple(block_nbytes)
        self._lock: int | None = None
        self._last_ns = 0  # when a block was used last
        self._clock = threading.Lock()
        self._found: dict[BlockName, int] | None = None

    @property
    def is_open(self) -> bool:
        """Whether this process has it for itself; not when a write, or a use, could not take it anew."""
        return self._lock is not None

    def open(self) -> dict[BlockName, int]:
        """Take the folder; returns the sizes of the files that are there, the one that was used longest ago first.

        Raises:
            CacheError: another process has it, it is somebody else's, or no folder, or it can't be used.
        """
        try:
            return self._take(_locked_soon)
        except OSError as exc:
            raise CacheError(f"the folder can't be used: {exc.strerror or exc}") from exc

    def write(self, name: BlockName, data: memoryview) -> int:
        """Write a block; returns the size of its file.

        Raises:
            OSError: it can't be written.
            CacheError: somebody removed the folder, and another process has it now.
        """
        self._keep()
        write_block(self._folder / file_name(name), name, data, self._next_ns())
        return file_nbytes(len(data))

    def read(self, name: BlockName, into: memoryview) -> None:
        """Read a block, and remove a file that is damaged or can't be read; raises OSError, CacheError.

        One stays for which this process lacks something: see `is_own_lack`.
        """
        try:
            read_block(self._folder / file_name(name), name, into)
        except (OSError, CacheError) as exc:
            if is_own_lack(exc):
                raise
            with contextlib.suppress(OSError):
                self.remove([name])
            raise

    def remove(self, names: Iterable[BlockName]) -> None:
        """Remove files, those that are gone already too, and none of a model that another process has open.

        Raises:
            OSError: one of them can't be removed; the others are.
        """
        failure: OSError | None = None
        for name in names:
            try:
                if name.group == _OTHERS:
                    _remove_idle(self._root / os.fsdecode(name.key))
                elif self._has_lock():
                    (self._folder / file_name(name)).unlink(missing_ok=True)
            except OSError as exc:
                failure = exc
        if failure is not None:
            raise failure

    def used(self, names: Iterable[BlockName]) -> None:
        """Note in the files that blocks are used now, one after the other.

        Raises:
            OSError, CacheError: somebody removed the folder, and it can't be had anew.
        """
        self._keep()
        for name in names:
            now_ns = self._next_ns()
            with contextlib.suppress(OSError):  # it only goes earlier
                os.utime(self._folder / file_name(name), ns=(now_ns, now_ns), follow_symlinks=False)

    def found_anew(self) -> dict[BlockName, int] | None:
        """Return, once, what `open` does, if somebody took the folder away and a write, or a use, had to take it anew.

        Nothing is there any more then but that.
        """
        found, self._found = self._found, None
        return found

    def close(self) -> None:
        """Leave the folder to others."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _next_ns(self) -> int:
        """Return the time, which is later than at all uses before; a kernel's own is the same for milliseconds."""
        with self._clock:
            self._last_ns = max(time.time_ns(), self._last_ns + _TICK_NS)
            return self._last_ns

    def _make(self) -> None:
        self._root.parent.mkdir(parents=True, exist_ok=True)
        _make_own(self._root, follows=True)
        _make_own(self._folder, follows=False)

    def _keep(self) -> None:
        """Take the folder anew where somebody removed it, and its lock with it; raises OSError, CacheError."""
        with contextlib.suppress(OSError):  # if nobody can look there, taking it says why
            if self._has_lock():
                return
        self.close()
        self._found = self._take(_locked)

    def _take(self, lock: Callable[[Path], int | None]) -> dict[BlockName, int]:
        """Make the folder, lock it, and return what is there; raises OSError, CacheError."""
        self._make()
        self._lock = lock(self._folder)
        if self._lock is None:
            raise CacheError(_OWN_LOCK if _is_open_here(self._folder / _LOCK_FILE) else _OTHERS_LOCK)
        try:
            found = sorted((*self._own(), *idle_files(self._root, but=self._folder.name)))
        except BaseException:  # who has the lock knows what is there, or the next try would not look
            self.close()
            raise
        with self._clock:
            self._last_ns = max(found[-1][0] if found else 0, self._last_ns)
        return {name: nbytes for _, name, nbytes in found}

    def _has_lock(self) -> bool:
        """Whether the lock is the one that is in the folder."""
        lock = self._lock
        try:
            return lock is not None and os.path.samestat(os.fstat(lock), os.lstat(self._folder / _LOCK_FILE))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _own(self) -> Iterator[tuple[int, BlockName, int]]:
        for entry, found in _files(self._folder):
            name = name_of(entry.name)
            if entry.name.endswith(PART_SUFFIX):
                Path(entry.path).unlink(missing_ok=True)  # who wrote it was ended
            elif name is not None:
                nbytes = self._block_nbytes[name.group] if name.group < len(self._block_nbytes) else 0
                if found.st_size == file_nbytes(nbytes):
                    yield found.st_mtime_ns, name, found.st_size
                else:
                    Path(entry.path).unlink(missing_ok=True)


def is_own_lack(error: BaseException) -> bool:
    """Whether a process has no memory or no file descriptor left, which says nothing of a file."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _OWN_LACKS)


def _make_own(folder: Path, *, follows: bool) -> None:
    """Make a folder that nobody else has access to, unless it is there; it may be a link of the user's if it `follows`.

    Raises:
        CacheError: it is somebody else's, or no folder.
        OSError: it can't be made.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        if not follows:
            raise CacheError("the model's folder is a link")
        if found.st_uid != os.geteuid():
            raise CacheError("the link to the folder is somebody else's")
        try:
            found = folder.stat()
        except FileNotFoundError as exc:
            raise CacheError("the link to the folder leads to none") from exc
    if not stat.S_ISDIR(found.st_mode):
        raise CacheError("what is in the folder's place is none")
    if found.st_uid != os.geteuid():
        raise CacheError("the folder is somebody else's")
    if found.st_mode & 0o077:
        folder.chmod(0o700)


def idle_files(root: Path, *, but: str = "") -> Iterator[tuple[int, BlockName, int]]:
    """Return the blocks' files of all models that nobody has open, and of those not called `but`: times, names, sizes.

    It blocks on the disk; raises OSError.
    """
    for folder in os.scandir(root):
        if folder.name == but or not _FOLDER.fullmatch(folder.name) or not folder.is_dir(follow_symlinks=False):
            continue
        try:
            lock = _locked(root / folder.name)
        except FileNotFoundError:  # removed meanwhile
            continue
        if lock is None:
            continue  # who has it keeps it within its own limit
        os.close(lock)
        for entry, found in _files(root / folder.name):
            if name_of(entry.name) is not None or entry.name.endswith(PART_SUFFIX):
                key = os.fsencode(f"{folder.name}/{entry.name}")
                yield found.st_mtime_ns, BlockName(_OTHERS, key), found.st_size


def prune_idle(root: Path) -> tuple[int, int]:
    """Remove the files that `idle_files` returns; returns how many were removed, and their size. Raises OSError."""
    found = list(idle_files(root)) if root.is_dir() else []
    removed = [nbytes for _, name, nbytes in found if _remove_idle(root / os.fsdecode(name.key))]
    return len(removed), sum(removed)


def _remove_idle(path: Path) -> bool:
    """Remove a file, or find that it is gone, unless another process has opened its folder; returns whether it did."""
    try:
        lock = _locked(path.parent)
    except FileNotFoundError:
        return True
    if lock is None:
        return False
    try:
        path.unlink(missing_ok=True)
    finally:
        os.close(lock)
    return True


def _files(folder: Path) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    try:
        scanned = os.scandir(folder)
    except FileNotFoundError:  # as a file below
        return
    with scanned as entries:
        for _, entry in zip(range(_MOST_FILES), entries, strict=False):
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # removed meanwhile, by another process
                continue
            if stat.S_ISREG(found.st_mode):
                yield entry, found


def _locked_soon(folder: Path) -> int | None:
    """Lock a folder as `_locked` does, also where somebody only looks or removes a file, which takes no time."""
    for _ in range(_MOST_LOOKS):
        lock = _locked(folder)
        if lock is not None:
            return lock
        time.sleep(_LOOK_S)
    return None


def _locked(folder: Path) -> int | None:
    """Lock a folder until what is returned is closed; None where another process has it."""
    lock = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except BaseException:
        os.close(lock)
        raise
    return lock


def _is_open_here(file: Path) -> bool:
    """Whether this process has a file open, as far as the system tells."""
    with contextlib.suppress(OSError):
        wanted = file.lstat()
        for number in os.listdir(_OPEN_FILES):
            with contextlib.suppress(OSError):  # it is closed meanwhile
                if os.path.samestat(os.fstat(int(number)), wanted):
                    return True
    return False
