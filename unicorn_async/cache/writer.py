"""Writing a model's weights to the cache, as they lie on the device, while it serves already."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from unicorn_async.background import run_to_end
from unicorn_async.cache.container import container_of
from unicorn_async.cache.entry import CachedTensor, CacheEntry, SourceFile
from unicorn_async.errors import CheckpointError, DeviceError, OutOfMemoryError
from unicorn_async.gpu.command import CommandPool
from unicorn_async.gpu.host_memory import HostMemory
from unicorn_async.loader.checksums import LayerChecksums
from unicorn_async.loader.staging import StagingRing
from unicorn_async.tensor import LAYOUT_VERSION
from unicorn_async.weights.plan import CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from unicorn_async.cache.draft import EntryDraft
    from unicorn_async.cache.folder import CacheFolder
    from unicorn_async.cache.lookup import WeightCache
    from unicorn_async.checkpoint.checkpoint import Checkpoint
    from unicorn_async.config import WeightScheme
    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.device import Device
    from unicorn_async.loader.checksums import ChecksumKernel
    from unicorn_async.loader.staging import StagingBuffer
    from unicorn_async.weights.plan import LoadPlan

_NUM_BUFFERS = 2  # one is filled by the device while the other is written
_SYNC_BYTES = 128 << 20  # at most so much waits in memory for the disk
_KEPT_SHARE = 0.5  # of the free memory: a larger entry is not left in the page cache
_NICENESS = 12
T = TypeVar("T")


class Origin(NamedTuple):
    """What the weights were made of, for the entry's description."""

    model: str
    checkpoint: Checkpoint
    scheme: WeightScheme
    lora_digest: str


class _Piece(NamedTuple):
    """So many bytes of a destination, from one of its bytes on, and where they go in the file."""

    dest: str
    start: int
    nbytes: int
    offset: int


class CacheWriter:
    """Copies destinations to the host by the device's transfer queue and writes them, in threads that step back.

    `run` may be cancelled at any moment: it leaves no memory, no thread and no half an entry. `places` must outlive it.
    `limit` bounds the cache's size, None chooses by what is free on the disk. `keeps_pages` leaves the entry in the
    page cache, None chooses by the memory that is free when it is written.
    """

    def __init__(
        self,
        device: Device,
        plan: LoadPlan,
        places: Mapping[str, ArenaSlice],
        cache: WeightCache,
        checksum: ChecksumKernel,
        origin: Origin,
        *,
        limit: int | None = None,
        keeps_pages: bool | None = None,
    ) -> None:
        self._device = device
        self._plan = plan
        self._places = places
        self._cache = cache
        self._checksum = checksum
        self._origin = origin
        self._limit = limit
        self._keeps_pages = keeps_pages
        self._container = container_of(plan.destinations)
        self._draft: EntryDraft | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._pool: CommandPool | None = None
        self._submitted = 0
        self._unsynced = 0
        self._sync_turn = threading.Lock()

    async def run(self) -> None:
        """Write the entry, or say in the cache's status why not.

        Raises:
            DeviceError: the device failed; a disk that does is no error.
        """
        folder = self._cache.folder
        assert folder is not None, "who wants an entry has a folder"
        try:
            self._executor = ThreadPoolExecutor(_NUM_BUFFERS, "unicorn-cache", _step_back)
            try:
                try:
                    if await self._in_thread(lambda: self._begin(folder)):
                        self._cache.writing(self._container.nbytes)
                        await self._write()
                    else:
                        self._cache.skipped("another process writes it")
                finally:
                    await self._in_thread(self._end)
            finally:
                await run_to_end(self._executor.shutdown)
        except (OSError, CheckpointError, OutOfMemoryError) as exc:
            self._cache.failed(_reason(exc))
        except BaseExceptionGroup as group:
            expected, others = group.split((OSError, CheckpointError, OutOfMemoryError))
            if others is not None:
                raise _first(others) from group
            assert expected is not None, "a group has errors"
            self._cache.failed(_reason(_first(expected)))

    def _begin(self, folder: CacheFolder) -> bool:
        if self._keeps_pages is None:
            free = HostMemory().available_bytes()
            self._keeps_pages = free is None or self._container.nbytes <= free * _KEPT_SHARE
        folder.clean()
        folder.make_room(self._container.nbytes, folder.limit(self._limit))
        self._draft = folder.draft(self._cache.key)
        if self._draft is not None:
            self._draft.write(memoryview(self._container.header), 0)
        return self._draft is not None

    def _end(self) -> None:
        draft, self._draft = self._draft, None
        if draft is not None:
            draft.discard()

    async def _write(self) -> None:
        sizes = {dest.name: dest.nbytes for dest in self._plan.destinations}
        buffer_bytes = min(CHUNK_BYTES, max(sizes.values()))
        async with contextlib.AsyncExitStack() as stack:
            check = LayerChecksums(self._device, self._places, sizes, self._checksum)
            stack.push_async_callback(check.close)
            ring = StagingRing(self._device.memory, num_buffers=_NUM_BUFFERS, buffer_bytes=buffer_bytes)
            stack.callback(ring.close)
            self._pool = CommandPool(self._device, self._device.transfer)
            stack.callback(self._pool.close)
            try:
                checksums: dict[str, str] = {}
                for layer in self._plan.layers:
                    names = [dest.name for dest in self._plan.destinations if dest.layer == layer]
                    checksums |= await check.checksums(names)
                pieces = self._pieces(buffer_bytes)
                async with asyncio.TaskGroup() as group:
                    for _ in range(_NUM_BUFFERS):
                        group.create_task(self._worker(pieces, ring, self._pool))
            finally:
                await self._in_thread(self._wait_for_device)
        await self._in_thread(lambda: self._commit(checksums))
        self._cache.written()

    async def _worker(self, pieces: Iterator[_Piece], ring: StagingRing, pool: CommandPool) -> None:
        queue = self._device.transfer
        for piece in pieces:
            buffer = await ring.acquire()
            place = self._places[piece.dest]
            recorder = pool.recorder(buffer.commands.get(queue))
            recorder.copy(place.buffer, place.offset + piece.start, buffer.memory, 0, piece.nbytes)
            recorder.host_barrier()
            commands = buffer.commands[queue] = recorder.end()
            value = self._submitted = queue.submit([commands])
            await queue.timeline.reached(value)
            await self._in_thread(partial(self._write_piece, piece, buffer))
            ring.release(buffer, queue.timeline, value)
            self._cache.wrote(piece.nbytes)

    def _write_piece(self, piece: _Piece, buffer: StagingBuffer) -> None:
        assert self._draft is not None, "pieces are written while there is a draft"
        self._draft.write(buffer.view(0, piece.nbytes), piece.offset)
        with self._sync_turn:
            self._unsynced += piece.nbytes
            if self._unsynced >= _SYNC_BYTES:
                self._unsynced = 0
                self._draft.sync()
                if not self._keeps_pages:
                    self._draft.drop_pages()

    def _wait_for_device(self) -> None:
        with contextlib.suppress(DeviceError):  # a lost device runs nothing any more
            self._device.transfer.timeline.wait(self._submitted)

    def _commit(self, checksums: Mapping[str, str]) -> None:
        assert self._draft is not None, "what is committed was begun"
        origin = self._origin
        entry = CacheEntry(
            key=self._cache.key,
            layout_version=LAYOUT_VERSION,
            model=origin.model,
            scheme=origin.scheme.value,
            lora_digest=origin.lora_digest,
            device=self._device.info.name,
            created=time.time(),
            nbytes=self._container.nbytes,
            tensors={dest.name: CachedTensor(dest.nbytes, checksums[dest.name]) for dest in self._plan.destinations},
            source_path=str(origin.checkpoint.path.absolute()),
            sources=_source_files(origin.checkpoint),
        )
        self._draft.commit(entry)

    def _pieces(self, piece_bytes: int) -> Iterator[_Piece]:
        for dest in self._plan.destinations:
            for start in range(0, dest.nbytes, piece_bytes):
                nbytes = min(piece_bytes, dest.nbytes - start)
                yield _Piece(dest.name, start, nbytes, self._container.offsets[dest.name] + start)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await run_to_end(work, self._executor)


def _source_files(checkpoint: Checkpoint) -> tuple[SourceFile, ...]:
    """Return the files as they were opened for the load; raises CheckpointError where one is another now."""
    checkpoint.check_unchanged()
    files = zip(checkpoint.files, checkpoint.stamps, strict=True)
    return tuple(SourceFile(str(path.absolute()), stamp.nbytes, stamp.mtime_ns) for path, stamp in files)


def _reason(error: BaseException) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _step_back() -> None:
    with contextlib.suppress(OSError):  # a sandbox may forbid it
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
