"""A store of responses is one server's: its file is locked, and one beside it, for as long as its process has them."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def lock_store(path: Path) -> tuple[int, bool]:
    """Return the open file `PATH.lock`, and whether it was made for this; closing it gives the lock back.

    The file stays, since another server may be about to lock it, unless the store is refused: `drop_lock`.

    Raises:
        ConfigError: another process has it.
        OSError: the file can't be opened, or written; it is not left there.
    """
    while True:
        descriptor, is_made = _open_lock(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_there(path, descriptor):  # who had made it was refused meanwhile
                os.close(descriptor)
                continue
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        except BlockingIOError as exc:
            pid = os.pread(descriptor, 20, 0).decode("ascii", "replace")
            os.close(descriptor)
            raise ConfigError(f"{path}: responses can't be kept there: process {pid} keeps its own there") from exc
        except BaseException:
            if is_made:
                drop_lock(path)
            os.close(descriptor)
            raise
        return descriptor, is_made


def drop_lock(path: Path) -> None:
    """Remove `PATH.lock`, which this process has locked and made, where that can be done."""
    with contextlib.suppress(OSError):
        os.unlink(f"{path}.lock")


def _open_lock(path: Path) -> tuple[int, bool]:
    """Return the open file, and whether it was made."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(f"{path}.lock", flags | os.O_EXCL, 0o600), True
    except FileExistsError:
        return os.open(f"{path}.lock", flags, 0o600), False


def _is_there(path: Path, descriptor: int) -> bool:
    """Whether `PATH.lock` is this open file."""
    try:
        return os.path.samestat(os.stat(f"{path}.lock"), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def lock_file(path: Path) -> int:
    """Return the store's file, open, and made where there is none; closing it gives its lock back.

    It is locked beside `PATH.lock`, which somebody may have deleted. SQLite's own locks are of another kind, and go
    when a process closes the file: it has to stay open for as long as SQLite has it.

    Raises:
        ConfigError: another process has it.
        OSError: the file can't be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # conversations are nobody else's
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        os.close(descriptor)
        raise ConfigError(f"{path}: responses can't be kept there: another process keeps its own there") from exc
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def lock_again(path: Path, descriptor: int) -> int:
    """Return the file of `lock_store`, or where its file was deleted or replaced a new one, and close the other.

    Raises:
        ConfigError, OSError: as `lock_store`; the lock is as it was.
    """
    if _is_there(path, descriptor):
        return descriptor
    renewed, _ = lock_store(path)
    os.close(descriptor)
    return renewed
