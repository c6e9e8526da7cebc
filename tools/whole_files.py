"""Files that tools write: where there is no folder or no room for one, a line says so, and nothing is left of it."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_LAYERS, MOST_ROWS = 1000, 1 << 22  # of random models


@contextmanager
def whole_file(path: Path, nbytes: int) -> Iterator[BinaryIO]:
    """Open a file to write `nbytes` to; where that fails, it is removed again, unless it is a device or a link.

    Raises:
        SystemExit: the folder is missing, the disk is too full, or the file can't be written, in a line.
    """
    if not path.parent.is_dir():
        raise SystemExit(f"{path}: there is no folder {path.parent}")
    free = shutil.disk_usage(path.parent).free + (path.stat().st_size if path.is_file() else 0)
    if nbytes > free:
        raise SystemExit(f"{path}: would have {nbytes / 1e9:.2f} GB, on a disk with room for {free / 1e9:.2f} GB")
    try:
        file = path.open("wb")
    except OSError as exc:
        raise SystemExit(f"{path}: {exc.strerror}") from exc
    try:
        with file:
            yield file
    except BaseException as exc:
        is_own = path.is_file() and not path.is_symlink()
        if is_own:
            path.unlink(missing_ok=True)
        if not isinstance(exc, OSError):
            raise
        raise SystemExit(f"{path}: {exc.strerror}{'; what was written of it is removed' * is_own}") from exc


def at_least_one(what: str, text: str, most: int = MOST_ROWS, *, least: int = 1) -> int:
    """Return a count that is written as text.

    Raises:
        ValueError: it is none, less than `least`, or above `most`.
    """
    if not text.isdecimal() or len(text) > len(str(most)) or not least <= int(text) <= most:
        raise ValueError(f"{what}: expected a whole number from {least} to {most}, got {text!r}")
    return int(text)
