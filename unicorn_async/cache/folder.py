"""The folder of all entries: what is there, what goes when room is needed, what a process that died has left."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.cache.draft import DRAFT_SUFFIX, EntryDraft, draft_is_abandoned
from unicorn_async.cache.entry import ENTRY_FILE, CacheEntry
from unicorn_async.cache.key import is_key
from unicorn_async.errors import CacheError
from unicorn_async.tensor import LAYOUT_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

DEFAULT_LIMIT = 64 << 30
_REMOVED_PREFIX = ".removed-"


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """A folder of an entry. `entry` is None where it is damaged, and `damage` says how; times are of time.time."""

    path: Path
    entry: CacheEntry | None
    damage: str
    nbytes: int
    last_used: float

    @property
    def key(self) -> str:
        """Its name."""
        return self.path.name

    @property
    def is_usable(self) -> bool:
        """Whether a load could take it, if it is the right one."""
        return self.entry is not None and self.entry.layout_version == LAYOUT_VERSION


class CacheFolder:
    """Entries in a folder that need not exist yet; several processes may use it. All methods block on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> tuple[StoredEntry, ...]:
        """Return all entries, the one that was used last first.

        Raises:
            CacheError: the folder can't be read.
        """
        found = [_stored(path) for path in self._children() if is_key(path.name)]
        return tuple(sorted(found, key=lambda stored: (-stored.last_used, stored.key)))

    def find(self, key: str) -> CacheEntry | None:
        """Return an entry, None where there is none; raises CacheError if it is damaged."""
        folder = self.folder_of(key)
        return CacheEntry.read(folder) if os.path.lexists(folder) else None

    def folder_of(self, key: str) -> Path:
        """Return where an entry is, or would be."""
        assert is_key(key), f"{key!r} is no entry's name"
        return self.path / key

    def used(self, key: str) -> None:
        """Note that an entry is used now."""
        with contextlib.suppress(OSError):  # of a folder that others own
            os.utime(self.folder_of(key) / ENTRY_FILE)

    def remove(self, key: str) -> None:
        """Remove an entry, in one step for others; who reads its file may go on.

        Raises:
            CacheError: that is not possible.
        """
        folder, away = self.folder_of(key), self.path / f"{_REMOVED_PREFIX}{secrets.token_hex(8)}"
        try:
            folder.rename(away)
            _delete(away)
        except FileNotFoundError:
            return
        except OSError as exc:
            raise CacheError(f"{folder}: not removed: {exc.strerror or exc}") from exc

    def limit(self, wanted: int | None = None) -> int:
        """Return how many bytes all entries may have: what is `wanted`, else 64 GiB or half of what is free to them.

        Raises:
            CacheError: nobody tells how much is free.
        """
        if wanted is not None:
            return wanted
        return min(DEFAULT_LIMIT, (self.free_bytes() + self.used_bytes()) // 2)

    def used_bytes(self) -> int:
        """Return the size of all entries; raises as `entries`."""
        return sum(stored.nbytes for stored in self.entries())

    def free_bytes(self) -> int:
        """Return what is free on the disk, for this user; raises CacheError if nobody tells."""
        place = self.path
        while not place.exists() and place != place.parent:
            place = place.parent
        try:
            found = os.statvfs(place)
        except OSError as exc:
            raise CacheError(f"{place}: {exc.strerror or exc}") from exc
        return found.f_bavail * found.f_frsize

    def make_room(self, nbytes: int, limit: int) -> tuple[StoredEntry, ...]:
        """Remove what is in the way of `nbytes` more; return what was removed. Raises as `in_the_way`."""
        return self._remove_all(self.in_the_way(self.entries(), nbytes, limit))

    def in_the_way(self, stored: Sequence[StoredEntry], nbytes: int, limit: int) -> tuple[StoredEntry, ...]:
        """Return which of these entries would go, so that `nbytes` more are within the limit: those longest unused.

        Raises:
            CacheError: they would not fit the limit, or the disk, if all were removed.
        """
        if nbytes > limit:
            raise CacheError(f"{nbytes} bytes needed, the cache may have {limit}")
        free, used = self.free_bytes(), sum(one.nbytes for one in stored)
        if nbytes > free + used:
            raise CacheError(f"{nbytes} bytes needed, {free + used} could be free on the disk of {self.path}")
        return _last(stored, max(used + nbytes - limit, nbytes - free))

    def prune(self, nbytes: int, stored: Sequence[StoredEntry]) -> tuple[StoredEntry, ...]:
        """Remove `nbytes` or a little more, of these entries from the last one on; return what was removed."""
        return self._remove_all(_last(stored, nbytes))

    def clean(self) -> None:
        """Remove what processes left that were ended while they wrote or removed."""
        with contextlib.suppress(OSError, CacheError):  # it is in nobody's way
            for path in self._children():
                is_draft = path.name.endswith(DRAFT_SUFFIX) and is_key(path.name.removesuffix(DRAFT_SUFFIX))
                if path.name.startswith(_REMOVED_PREFIX):
                    _delete(path)
                elif is_draft and not path.is_symlink():
                    draft_is_abandoned(path)

    def draft(self, key: str) -> EntryDraft | None:
        """Begin to write an entry; None where another process does, or has done so by now.

        Raises:
            CacheError: the folder can't be written.
        """
        return None if os.path.lexists(self.folder_of(key)) else EntryDraft.begin(self.folder_of(key))

    def _remove_all(self, stored: tuple[StoredEntry, ...]) -> tuple[StoredEntry, ...]:
        for one in stored:
            self.remove(one.key)
        return stored

    def _children(self) -> Iterable[Path]:
        try:
            return sorted(self.path.iterdir())
        except FileNotFoundError:
            return ()
        except OSError as exc:
            raise CacheError(f"{self.path}: {exc.strerror or exc}") from exc


def _stored(path: Path) -> StoredEntry:
    nbytes, last_used = 0, 0.0
    with contextlib.suppress(OSError):
        for file in os.scandir(path):
            found = file.stat(follow_symlinks=False)
            nbytes += found.st_size
            last_used = found.st_mtime if file.name == ENTRY_FILE else last_used
    try:
        return StoredEntry(path, CacheEntry.read(path), "", nbytes, last_used)
    except CacheError as exc:
        return StoredEntry(path, None, str(exc), nbytes, last_used)


def _last(stored: Sequence[StoredEntry], nbytes: int) -> tuple[StoredEntry, ...]:
    """Return entries of `nbytes` or a little more, from the last one on."""
    found: list[StoredEntry] = []
    for one in reversed(stored):
        if nbytes <= 0:
            break
        found.append(one)
        nbytes -= one.nbytes
    return tuple(found)


def _delete(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)
