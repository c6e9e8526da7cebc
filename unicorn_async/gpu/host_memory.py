"""The host's memory that can be had without swapping, within the limits of this process's control groups."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_BYTES = 64 << 10  # the files have a few KB, and the kernel gives up to so much at once
_NO_LIMIT = 1 << 60  # version 1 writes the largest multiple of a page where there is no limit


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Looks at /proc/meminfo and at the control groups; the paths are fields so that tests can bring their own.

    The page cache counts as free: the kernel gives it up when memory is asked for. Limits are those of cgroups version
    1 and 2 (memory.max, memory.high, memory.limit_in_bytes), of this process's group and of all groups above it.
    """

    meminfo: Path = Path("/proc/meminfo")
    membership: Path = Path("/proc/self/cgroup")
    cgroups: Path = Path("/sys/fs/cgroup")

    def available_bytes(self) -> int | None:
        """Return what may be taken; None where nobody tells."""
        rooms = [*self._group_rooms()]
        if (free := self._free()) is not None:
            rooms.append(free)
        return min(rooms, default=None)

    def _free(self) -> int | None:
        for line in _lines(self.meminfo):
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return None

    def _group_rooms(self) -> Iterator[int]:
        for line in _lines(self.membership):
            number, _, rest = line.partition(":")
            controllers, _, group = rest.partition(":")
            if number == "0" and not controllers:
                for mount in (self.cgroups, self.cgroups / "unified"):
                    for folder in _upwards(mount, group):
                        yield from _room(
                            folder, ("memory.max", "memory.high"), "memory.current", ("active_file", "inactive_file")
                        )
            elif "memory" in controllers.split(","):
                for folder in _upwards(self.cgroups / "memory", group):
                    yield from _room(
                        folder,
                        ("memory.limit_in_bytes",),
                        "memory.usage_in_bytes",
                        ("total_active_file", "total_inactive_file"),
                    )


def _upwards(mount: Path, group: str) -> Iterator[Path]:
    """A group's folder and those above it; in a container the path may be the host's, and not be there."""
    parts = [part for part in PurePosixPath(group).parts if part not in ("/", "..")]
    for count in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:count])


def _room(folder: Path, limits: tuple[str, ...], usage: str, cached: tuple[str, ...]) -> Iterator[int]:
    known = [limit for name in limits if (limit := _number(folder / name)) is not None and limit < _NO_LIMIT]
    used = _number(folder / usage)
    if not known or used is None:
        return
    for line in _lines(folder / "memory.stat"):
        name, _, value = line.partition(" ")
        if name in cached and value.isdecimal():
            used -= int(value)
    yield max(0, min(known) - max(0, used))


def _number(path: Path) -> int | None:
    text = next(iter(_lines(path)), "")
    return int(text) if text.isdecimal() else None


def _lines(path: Path) -> list[str]:
    """All of a small file, by three calls of the system, each of which may cost a thread a turn."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, _MOST_BYTES).decode("ascii", errors="replace").splitlines()
        finally:
            os.close(descriptor)
    except OSError:
        return []
