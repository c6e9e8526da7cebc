"""What one load does with the cache: whether there is an entry for it, and how it stands with the entry."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from unicorn_async.cache.container import container_chunks
from unicorn_async.cache.entry import TENSORS_FILE
from unicorn_async.cache.key import cache_key, is_made
from unicorn_async.checkpoint.file_identity import identify_files
from unicorn_async.checkpoint.safetensors import read_header
from unicorn_async.errors import CacheError, CheckpointError
from unicorn_async.loader.source import LoadSource

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.cache.entry import CacheEntry
    from unicorn_async.cache.folder import CacheFolder
    from unicorn_async.checkpoint.checkpoint import Checkpoint
    from unicorn_async.config import WeightScheme
    from unicorn_async.loader.checksums import ChecksumKernel
    from unicorn_async.loader.read_strategy import ReadStrategy
    from unicorn_async.weights.chunk import RawChunk
    from unicorn_async.weights.plan import LoadPlan

_log = logging.getLogger(__name__)
_NOTHING_MADE = "nothing is quantised or blended, so the checkpoint itself loads as fast"


class CacheState(Enum):
    """How a load stands with the cache."""

    OFF = "off"
    HIT = "hit"
    MISS = "miss"
    WRITING = "writing"
    WRITTEN = "written"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """The state, why it is so, the entry's name, its size, and how much of it is written so far."""

    state: CacheState
    reason: str = ""
    key: str = ""
    nbytes: int = 0
    written_bytes: int = 0

    def text(self) -> str:
        """Return one line for people."""
        return f"{self.state.value}: {self.reason}" if self.reason else self.state.value

    def to_json(self) -> dict[str, object]:
        """Return everything as JSON values."""
        return {
            "state": self.state.value,
            "reason": self.reason,
            "key": self.key,
            "bytes": self.nbytes,
            "bytes_written": self.written_bytes,
        }


@dataclass(frozen=True, slots=True)
class CacheLookup:
    """What was found for a load: with a hit the `entry`, its file and what to read of it. `is_damaged` is a miss."""

    status: CacheStatus
    entry: CacheEntry | None = None
    file: Path | None = None
    chunks: tuple[RawChunk, ...] = field(default=(), repr=False)
    is_damaged: bool = False


def look_up(
    folder: CacheFolder | None, checkpoint: Checkpoint, plan: LoadPlan, *, scheme: WeightScheme, lora_digest: str
) -> CacheLookup:
    """Look for a load's entry; it blocks on the disk, and changes nothing. Without a folder the cache is off.

    Raises:
        CheckpointError: a file of the checkpoint can't be read.
    """
    if folder is None:
        return CacheLookup(CacheStatus(CacheState.OFF, "switched off"))
    if not is_made(plan):
        return CacheLookup(CacheStatus(CacheState.OFF, _NOTHING_MADE))
    key = cache_key(identify_files(checkpoint), checkpoint, plan, scheme=scheme, lora_digest=lora_digest)
    try:
        entry = folder.find(key)
        if entry is None:
            return CacheLookup(CacheStatus(CacheState.MISS, "not there yet", key))
        sizes = {dest.name: dest.nbytes for dest in plan.destinations}
        if sizes != {name: tensor.nbytes for name, tensor in entry.tensors.items()}:
            raise CacheError(f"{folder.folder_of(key)}: has other tensors than the model, or of other sizes")
        file = folder.folder_of(key) / TENSORS_FILE
        chunks = container_chunks(read_header(file), plan.destinations)
    except CheckpointError as exc:
        return CacheLookup(CacheStatus(CacheState.MISS, f"damaged: {exc}", key), is_damaged=True)
    status = CacheStatus(CacheState.HIT, f"made from {entry.source_path} by {entry.device}", key, entry.nbytes)
    return CacheLookup(status, entry, file, chunks)


class WeightCache:
    """One load's view of the cache; used in the event loop alone."""

    def __init__(self, folder: CacheFolder | None, lookup: CacheLookup) -> None:
        self.folder = folder
        self._lookup = lookup
        self.status = lookup.status

    @property
    def key(self) -> str:
        """The name of the load's entry; "" where the cache is off."""
        return self._lookup.status.key

    @property
    def wants_writing(self) -> bool:
        """Whether an entry should be made of what was loaded."""
        return self.status.state is CacheState.MISS

    async def open(self) -> None:
        """Note that a found entry is used, and remove a damaged one."""
        if self.status.state is CacheState.HIT:
            assert self.folder is not None, "what is off is no hit"
            await asyncio.to_thread(self.folder.used, self.key)
        elif self._lookup.is_damaged:
            await self.remove_damaged(self.status.reason.removeprefix("damaged: "))

    def cached(self, strategy: ReadStrategy, checksum: ChecksumKernel) -> CachedEntry | None:
        """Return what a load takes the weights from, None without a hit; `strategy` is for the entry's file."""
        file, entry = self._lookup.file, self._lookup.entry
        if self.status.state is not CacheState.HIT or file is None or entry is None:
            return None
        source = LoadSource(
            (file,),
            self._lookup.chunks,
            strategy,
            checksums={name: tensor.checksum for name, tensor in entry.tensors.items()},
        )
        return CachedEntry(source, checksum, self)

    async def remove_damaged(self, damage: str) -> None:
        """Remove the entry, which is made anew after the load, and say so."""
        assert self.folder is not None, "an entry is in a folder"
        self.status = CacheStatus(CacheState.MISS, f"damaged: {damage}", self.key)
        _log.warning("weight cache: %s; the entry is removed, and made anew from the checkpoint", damage)
        try:
            await asyncio.to_thread(self.folder.remove, self.key)
        except CacheError as exc:
            self.failed(str(exc))

    def skipped(self, reason: str) -> None:
        """Note that nobody here writes the entry, and why."""
        self.status = CacheStatus(CacheState.MISS, reason, self.key)

    def writing(self, nbytes: int) -> None:
        """Note that an entry of so many bytes is being written."""
        self.status = CacheStatus(CacheState.WRITING, "", self.key, nbytes)

    def wrote(self, nbytes: int) -> None:
        """Note that so many bytes more are written."""
        self.status = replace(self.status, written_bytes=self.status.written_bytes + nbytes)

    def written(self) -> None:
        """Note that the entry is there; the next load will find it."""
        self.status = replace(self.status, state=CacheState.WRITTEN, reason="the next load finds it")

    def failed(self, reason: str) -> None:
        """Note that the entry can't be written, and say so."""
        self.status = CacheStatus(CacheState.FAILED, reason, self.key)
        _log.warning("weight cache: not written: %s", reason)


@dataclass(frozen=True, slots=True)
class CachedEntry:
    """An entry as the source of a load, see `CachedWeights`."""

    source: LoadSource
    checksum: ChecksumKernel
    cache: WeightCache

    async def damaged(self, error: CheckpointError) -> None:
        """Remove the entry; the load goes on from the checkpoint."""
        await self.cache.remove_damaged(str(error))
