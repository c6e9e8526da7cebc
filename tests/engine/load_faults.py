"""Faults that a load meets: counted moments to cancel at, memory that runs out, a disk that fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unicorn_async.gpu.device import Device
from unicorn_async.gpu.kernel import KernelLibrary
from unicorn_async.gpu.memory import Memory
from unicorn_async.gpu.timeline import Timeline
from unicorn_async.loader.reader import FileReader
from unicorn_async.loader.staging import StagingRing
from unicorn_async.loader.uploader import Uploader

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from unicorn_async.gpu.left_memory import LeftMemory

_OUT_OF_DEVICE_MEMORY = -2
_MOMENTS = (
    (Device, "__init__"),
    (FileReader, "__init__"),
    (FileReader, "close"),
    (FileReader, "read"),
    (FileReader, "read_around"),
    (FileReader, "check_unchanged"),
    (KernelLibrary, "prepare"),
    (KernelLibrary, "save_cache"),
    (Memory, "allocate"),
    (StagingRing, "acquire"),
    (StagingRing, "release"),
    (Timeline, "reached"),
    (Uploader, "submit"),
    (Uploader, "activate_next"),
)


class LoadMoments:
    """Counts what a load does, in any thread; `at` is called with the number of each, from 1 on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.at: Callable[[int], None] = lambda number: None
        for owner, name in _MOMENTS:
            patch.setattr(owner, name, self._counting(getattr(owner, name)))

    def _counting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self.count += 1
            self.at(self.count)
            return call(*args, **options)

        return counted


class DeviceMemoryLimit:
    """Lets `room` allocations of device memory pass, of every device that is opened; all others fail."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self.count = 0
        init = Memory.__init__

        def limited_init(memory: Memory, device: Device, left: LeftMemory | None = None) -> None:
            init(memory, device, left)
            memory._api = _Stand(memory._api, lib=_Stand(memory._api.lib, vkAllocateMemory=self._allocate(memory)))  # type: ignore[assignment]

        patch.setattr(Memory, "__init__", limited_init)

    def _allocate(self, memory: Memory) -> Callable[..., int]:
        allocate = memory._api.lib.vkAllocateMemory

        def limited(*args: Any) -> int:
            self.count += 1
            if self.room is not None and self.count > self.room:
                return _OUT_OF_DEVICE_MEMORY
            return int(allocate(*args))

        return limited


class _Stand:
    """Stands for an object, with some attributes of its own."""

    def __init__(self, original: Any, **replaced: Any) -> None:
        self._original = original
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class FailingDisk:
    """Reads of files in a directory fail once so many of their bytes were asked for, until it is mended."""

    def __init__(self, patch: pytest.MonkeyPatch, directory: Path, *, after_bytes: int) -> None:
        self._left: int | None = after_bytes
        self._directory = directory.resolve()
        self._preadv = os.preadv
        patch.setattr(os, "preadv", self._read)

    def mend(self) -> None:
        """Have every read succeed from now on."""
        self._left = None

    def _read(self, descriptor: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if self._left is not None and Path(f"/proc/self/fd/{descriptor}").resolve().parent == self._directory:
            self._left -= sum(len(buffer) for buffer in buffers)
            if self._left < 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._preadv(descriptor, buffers, offset, flags)
