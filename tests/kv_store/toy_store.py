"""A store of blocks without a device, and with a disk in memory."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from unicorn_async.daemon_threads import DaemonThreads
from unicorn_async.kv_store.block_file import file_nbytes
from unicorn_async.kv_store.report import KVStoreStats
from unicorn_async.scheduler.kept_blocks import BlockName, KeptBlocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from unicorn_async.scheduler.kept_prefixes import BlockCopy

NBYTES = 64
NAMES = [BlockName(0, bytes([number] * 16)) for number in range(6)]


class MemoryFolder:
    """A disk in memory, which answers when `answers` is set; `asked` are the writes that were begun."""

    def __init__(self) -> None:
        self.files: dict[BlockName, bytes] = {}
        self.answers = threading.Event()
        self.answers.set()
        self.asked: list[BlockName] = []
        self.noted: list[BlockName] = []  # the files, the one that was used longest ago first
        self.is_asked = threading.Event()
        self.read_names: list[BlockName] = []
        self.is_read = threading.Event()
        self.anew: dict[BlockName, int] | None = None
        self.is_open = True

    def write(self, name: BlockName, data: memoryview) -> int:
        self.asked.append(name)
        self.is_asked.set()
        self.answers.wait()
        self.files[name] = bytes(data)
        self.noted.append(name)
        return file_nbytes(len(data))

    def read(self, name: BlockName, into: memoryview) -> None:
        self.read_names.append(name)
        self.is_read.set()
        self.answers.wait()
        into[:] = self.files[name]

    def found_anew(self) -> dict[BlockName, int] | None:
        found, self.anew = self.anew, None
        return found

    def remove(self, names: Iterable[BlockName]) -> None:
        for name in names:
            del self.files[name]
            self.noted.remove(name)

    def used(self, names: Iterable[BlockName]) -> None:
        for name in names:
            self.noted.remove(name)
            self.noted.append(name)


class ToyLane:
    """Has copied at once, or raises `error`."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.took_s = 1e-3

    def submit(self, copies: Sequence[BlockCopy]) -> None:
        if self.error is not None:
            raise self.error

    async def done(self) -> float:
        return self.took_s


class ToyStore:
    """What a tier and a keeper need of a store, with four slots and room for three files."""

    def __init__(self) -> None:
        self.kept = KeptBlocks([NBYTES], disk_limit=3 * file_nbytes(NBYTES))
        self.kept.slots[0].add(4)
        self.memory = memoryview(bytearray(8 * NBYTES))
        self.slots = self
        self.folder = MemoryFolder()
        self.threads, self.growing = DaemonThreads("toy", 2), DaemonThreads("toy memory", 1)
        self.threads.start()
        self.has_disk = True
        self.is_settled = asyncio.Event()
        self.open_disk: Callable[[], dict[BlockName, int]] = dict
        self.counters = KVStoreStats()
        self.problems: list[str] = []
        self.saving, self.restoring = ToyLane(), ToyLane()

    def view(self, group: int, slot: int) -> memoryview:
        return self.memory[slot * NBYTES : (slot + 1) * NBYTES]

    def copy_out(self, group: int, slot: int) -> memoryview:
        return memoryview(bytes(self.view(group, slot)))

    def copy_in(self, group: int, slot: int, data: memoryview) -> None:
        self.view(group, slot)[:] = data

    def is_complete(self, group: int) -> bool:
        return True

    def file_nbytes(self, group: int) -> int:
        return file_nbytes(self.kept.block_nbytes[group])

    def failed(self, what: str, problem: str) -> None:
        self.problems.append(f"{what}: {problem}")

    def save(self, name: BlockName) -> None:
        slot = self.kept.slots[0].take()
        assert slot is not None
        self.view(0, slot)[:] = name.key * 4
        self.kept.slots[0].fill(slot, name.key)
        self.kept.slots[0].release(slot)
