"""What there is for blocks outside the device's memory: what is where, the host's memory, the copies."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.daemon_threads import DaemonThreads
from unicorn_async.errors import ConfigError, OutOfMemoryError
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.kv_store.block_copies import CopyLane
from unicorn_async.kv_store.block_file import file_nbytes
from unicorn_async.kv_store.disk_folder import DiskFolder
from unicorn_async.kv_store.report import KVStoreStats
from unicorn_async.kv_store.slot_memory import SlotMemory
from unicorn_async.memory.kv_plan import PASSING_BYTES
from unicorn_async.scheduler.kept_blocks import KeptBlocks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.kv_store.block_places import BlockPlaces
    from unicorn_async.memory.states import StatePlan
    from unicorn_async.scheduler.kept_blocks import BlockName

_NUM_THREADS = 4  # that read, or write
_END_S = 2.0  # for what they are at, at the end

_log = logging.getLogger(__name__)


def check_kv_store(options: EngineConfig, info: DeviceInfo) -> None:
    """Refuse a store that could not work.

    Raises:
        ConfigError: the device's memory is the host's.
    """
    if options.kv_host_bytes is not None and info.type is DeviceType.INTEGRATED:
        raise ConfigError(f"kv_host_bytes: {info.name} has the host's memory, and the KV cache may take it itself")


def check_copies(options: EngineConfig, states: StatePlan) -> None:
    """Refuse a store for a model with states of fixed size of which there are no copies to keep.

    Raises:
        OutOfMemoryError: there is no memory for them on the device.
    """
    if states.nbytes and not states.num_copies:
        raise OutOfMemoryError(
            f"{_asked(options)}: there is no memory for a copy of a state of {states.nbytes:,} bytes beside those of"
            f" {states.num_seqs} sequences and the KV cache, and without it no blocks are found again"
        )


def _asked(options: EngineConfig) -> str:
    return "kv_disk_bytes" if options.kv_host_bytes is None else "kv_host_bytes"


def check_disk(block_nbytes: Sequence[int], disk_bytes: int) -> None:
    """Refuse a disk that has no room for the least that a sequence begins with.

    Raises:
        ConfigError: not even one block of each group fits, or a state of fixed size.
    """
    least = sum(file_nbytes(nbytes) for nbytes in block_nbytes if nbytes)
    if disk_bytes < least:
        raise ConfigError(
            f"kv_disk_bytes: the least that is kept of this model has {least:,} bytes, got {disk_bytes:,}"
        )


class KVStore:
    """Closed when no step and no keeper runs any more.

    Without `host_bytes` the host's memory is what blocks pass through on their way to the disk. Without `disk_bytes`
    there is no disk; else the blocks of all models lie below `root`, those of this one in a folder of the name
    that `key` blocks to find out.
    """

    def __init__(
        self,
        device: Device,
        places: BlockPlaces,
        host_bytes: int | None,
        disk_bytes: int | None,
        root: Path,
        key: Callable[[], str],
    ) -> None:
        self.kept = KeptBlocks(places.nbytes, disk_limit=disk_bytes or 0)
        nbytes = host_bytes or PASSING_BYTES
        self.slots = SlotMemory(device.memory, places.nbytes, places.shares, places.least, nbytes)
        self.saving = CopyLane(device, places, self.slots, to_host=True)
        self.restoring = CopyLane(device, places, self.slots, to_host=False)
        self.counters = KVStoreStats()
        self.has_disk = disk_bytes is not None
        self.folder: DiskFolder | None = None  # once it is open
        self.threads = DaemonThreads("unicorn-kv", _NUM_THREADS, self._leave_folder)
        self.growing = DaemonThreads("unicorn-kv-memory", 1)
        self.is_settled = asyncio.Event()  # the disk's folder is open, or is not going to be
        self._root, self._key = root, key
        self._told: set[str] = set()

    @property
    def nbytes(self) -> int:
        """Size of the host's memory that is allocated."""
        return self.slots.nbytes

    @property
    def outages(self) -> dict[str, str]:
        """Why the disk can't be had now, as `kv_disk`, if there is to be one."""
        _, _, reason = self.counters.disk.partition(": ")
        return {"kv_disk": reason} if self.has_disk and reason else {}

    def open_disk(self) -> dict[BlockName, int]:
        """Open the disk's folder, which blocks; returns what is there.

        Raises:
            CacheError, CheckpointError: it can't be used, or a file of the model can't be read.
        """
        folder = DiskFolder(self._root, self._key(), self.kept.block_nbytes)
        found = folder.open()
        self.folder = folder
        return found

    def file_nbytes(self, group: int) -> int:
        """Size of the file of a group's block."""
        return file_nbytes(self.kept.block_nbytes[group])

    def failed(self, what: str, problem: str) -> None:
        """Count a failure, and tell the first one of each kind."""
        self.counters.failures += 1
        self.counters.problem = f"{what}: {problem}"
        if what not in self._told:
            self._told.add(what)
            _log.warning("blocks of the KV cache: %s: %s; requests go on without", what, problem)

    def stats(self) -> KVStoreStats:
        """Return the counters, and what there is now."""
        kept = self.kept
        return replace(
            self.counters,
            host_blocks=sum(slots.num_known for slots in kept.slots),
            host_bytes=self.slots.nbytes,
            disk_blocks=kept.num_on_disk,
            disk_bytes=kept.disk_bytes,
        )

    def close(self) -> None:
        """Wait for copies that were submitted, for a moment for the disk, and free everything.

        A thread that the disk holds longer has memory of its own, and the folder until it ends.
        """
        left = self.threads.close(_END_S) + self.growing.close(_END_S)
        if left:
            _log.warning(
                "blocks of the KV cache: %s: no answer within %g s of the end, and left behind", ", ".join(left), _END_S
            )
        self.saving.close()
        self.restoring.close()
        self.slots.close()

    def _leave_folder(self) -> None:
        if self.folder is not None:
            self.folder.close()
