"""One source's bytes on their way: read by threads, staged, handed to the device."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from unicorn_async.background import run_to_end
from unicorn_async.loader.read_ahead import ReadAhead
from unicorn_async.loader.read_strategy import ReadMode
from unicorn_async.loader.reader import FileReader, Read
from unicorn_async.loader.staging import StagingRing, can_import
from unicorn_async.loader.staging_plan import RingSize
from unicorn_async.loader.transfer import make_transfers
from unicorn_async.weights.chunk import CONVERT_ALIGNMENT, PlaneChunk, Transform

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.timeline import Timeline
    from unicorn_async.loader.allocator import BackgroundAllocator
    from unicorn_async.loader.source import LoadSource, Prelude
    from unicorn_async.loader.staging import StagingBuffer
    from unicorn_async.loader.trace import LoadTrace
    from unicorn_async.loader.transfer import Transfer
    from unicorn_async.loader.uploader import Uploader
    from unicorn_async.weights.chunk import AnyChunk

_WORKERS_PER_THREAD = 4  # so that a thread finds its next read waiting, even when the event loop has been busy
_LEAST_DIRECT_SHARE = 1 / 64  # of the bytes: to stage less is quicker than to map all the memory that it lies in


class LoadPipeline:
    """Brings a source's chunks to their places; an `async with` block holds threads, files and staging memory.

    The block's end waits for the device and frees all of it, the `factors` too, in a thread: requests that waited for
    the last layer go on meanwhile. `arrived` is called in the event loop
    for each transfer, once it is in its place or on its way there.
    """

    def __init__(
        self,
        device: Device,
        source: LoadSource,
        uploader: Uploader,
        *,
        staging_bytes: int,
        arrived: Callable[[Transfer], None],
        trace: LoadTrace | None = None,
        factors: Prelude | None = None,
        allocator: BackgroundAllocator | None = None,
        stages_in_vram: bool = False,
    ) -> None:
        self._device = device
        self._source = source
        self._uploader = uploader
        self._staging_bytes = staging_bytes
        self._arrived = arrived
        self._trace = trace
        self._factors = factors
        self._allocator = allocator
        self._stages_in_vram = stages_in_vram
        self._rings: list[StagingRing] = []
        self._stages_direct_reads = source.strategy.mode is ReadMode.DIRECT and can_import(device)
        self._read_ahead = ReadAhead(source.chunks, source.strategy.read_ahead_bytes)
        self._left: dict[int, int] = {}
        for chunk in source.chunks:
            self._left[chunk.layer] = self._left.get(chunk.layer, 0) + 1
        self._stack = contextlib.ExitStack()
        self.layer_started: dict[int, int] = {}  # time.perf_counter_ns of a layer's first read

    async def __aenter__(self) -> Self:
        """Open the files; raises CheckpointError if one can't be opened, or has changed."""
        source = self._source
        direct_bytes = sum(chunk.nbytes for chunk in source.chunks if self._uploader.has_direct_target(chunk))
        # The driver maps all of a place before a direct read, and an allocation waits for that; a ring is mapped once.
        stages = self._stages_direct_reads or self._stages_in_vram
        self._stages_all = stages or direct_bytes < _LEAST_DIRECT_SHARE * source.bytes_to_read
        staged_bytes = max((chunk.nbytes for chunk in source.chunks), default=0)
        self._transfers = make_transfers(source.chunks, self._is_staged, buffer_bytes=staged_bytes)
        if source.partial:
            self._transfers = tuple(sorted(self._transfers, key=lambda one: max(map(source.arrival, one.chunks))))
        with contextlib.ExitStack() as stack:
            if self._factors is not None:
                stack.callback(self._factors.close)
            stack.callback(self._close_rings)
            stack.callback(self._uploader.close)  # before the buffers: a cancelled worker does not know what reads its
            self._add_ring([transfer.nbytes for transfer in self._transfers if transfer.staged])
            self._reader = FileReader(
                source.files, source.strategy, stamps=source.stamps, trace=self._trace, partial=source.partial
            )
            stack.callback(self._reader.close)  # first of all: no thread writes to memory that is freed after it
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await run_to_end(self._stack.close)

    def start(self, group: asyncio.TaskGroup) -> None:
        """Begin; the tasks of the group end with the last transfer.

        They raise CheckpointError where a file can't be read, ends too early or was changed, DownloadError where it
        does not come, and DeviceError.
        """
        if any(transfer.staged and transfer.chunks[0].transform is not Transform.COPY for transfer in self._transfers):
            group.create_task(self._uploader.be_prepared())
        waiting = iter(self._transfers)
        for _ in range(self._reader.num_threads * _WORKERS_PER_THREAD):
            group.create_task(self._worker(waiting, group))

    def _is_staged(self, chunk: AnyChunk) -> bool:
        return self._stages_all or not self._uploader.has_direct_target(chunk)

    def _add_ring(self, sizes: Sequence[int]) -> None:
        if not sizes:
            return
        size = RingSize.of(sizes, self._staging_bytes, reads_pages=self._stages_direct_reads)
        self._rings.append(
            StagingRing(
                self._device.memory,
                num_buffers=size.num_buffers,
                buffer_bytes=size.buffer_bytes,
                imports=self._stages_direct_reads,
                in_vram=self._stages_in_vram,
            )
        )

    def _ring_for(self, transfer: Transfer) -> StagingRing:
        """Return a ring with room; it is made now where memory arrived that is not mapped, against expectation."""
        if not any(transfer.nbytes <= ring.buffer_bytes for ring in self._rings):
            self._add_ring([chunk.nbytes for chunk in self._source.chunks])
        return next(ring for ring in self._rings if transfer.nbytes <= ring.buffer_bytes)

    def _close_rings(self) -> None:
        for ring in self._rings:
            ring.close()

    async def _worker(self, transfers: Iterator[Transfer], group: asyncio.TaskGroup) -> None:
        """Load one transfer after the other; all workers take from the same iterator, so transfers start in order."""
        for planned in transfers:
            transfer = planned if planned.staged else await self._placed(planned)
            await self._source.arrived(transfer.chunks)
            self.layer_started.setdefault(transfer.layer, time.perf_counter_ns())
            for wanted in (
                self._read_ahead.advance(transfer.read_bytes) if self._source.strategy.read_ahead_bytes else ()
            ):
                self._reader.will_need(*wanted)
            if transfer.staged:
                await self._load_staged(transfer, group)
            else:
                chunk = transfer.chunks[0]
                target = await self._uploader.direct_target(chunk)
                await self._reader.read(chunk.file, chunk.offset, target, chunk.row_permutation)
            if self._left[transfer.layer] == len(transfer.chunks):  # the last ones of the layer
                await self._reader.check_unchanged()
            self._left[transfer.layer] -= len(transfer.chunks)
            self._arrived(transfer)

    async def _placed(self, transfer: Transfer) -> Transfer:
        """Return the transfer once its places are there; it is staged after all where they are not mapped."""
        await self._have_places(transfer)
        return transfer if self._uploader.has_direct_target(transfer.chunks[0]) else replace(transfer, staged=True)

    async def _have_places(self, transfer: Transfer) -> None:
        if self._allocator is not None:
            await self._allocator.wait([chunk.dest for chunk in transfer.chunks])

    async def _load_staged(self, transfer: Transfer, group: asyncio.TaskGroup) -> None:
        ring, trace = self._ring_for(transfer), self._trace
        if self._factors is not None and any(chunk.transform is Transform.BLEND for chunk in transfer.chunks):
            await self._factors.ready()
        buffer = await ring.acquire()
        placed = await _read_staged(self._reader, transfer, buffer)
        await self._have_places(transfer)
        started = time.perf_counter_ns()
        submitted = await self._uploader.submit(placed, buffer)
        ring.release(buffer, *submitted)
        if trace is not None:
            now = time.perf_counter_ns()
            trace.submission(_name(transfer), started, now)
            group.create_task(_follow_transfer(transfer, *submitted, now, trace))


async def _follow_transfer(
    transfer: Transfer, timeline: Timeline, value: int, submitted: int, trace: LoadTrace
) -> None:
    await timeline.reached(value)
    kind = "upload" if transfer.chunks[0].transform is Transform.COPY else "conversion"
    trace.device_work(kind, _name(transfer), transfer.read_bytes, submitted, time.perf_counter_ns())


def _name(transfer: Transfer) -> str:
    more = f" and {len(transfer.chunks) - 1} more" if len(transfer.chunks) > 1 else ""
    return transfer.chunks[0].dest + more


async def _read_staged(reader: FileReader, transfer: Transfer, buffer: StagingBuffer) -> list[tuple[AnyChunk, int]]:
    """Read a transfer into its buffer; return the chunks, each with where in the buffer it is."""
    first = transfer.chunks[0]
    if reader.is_direct and buffer.takes_direct_reads and len(transfer.chunks) == 1 and _may_lie_anywhere(first):
        return [(first, await reader.read_around(first.file, first.offset, first.nbytes, buffer.view()))]
    placed = list(zip(transfer.chunks, transfer.offsets, strict=True))
    await reader.read_all([read for chunk, offset in placed for read in _reads(chunk, offset, buffer)])
    return placed


def _reads(chunk: AnyChunk, offset: int, buffer: StagingBuffer) -> list[Read]:
    if isinstance(chunk, PlaneChunk):
        return [
            Read(piece.file, piece.offset, buffer.view(offset + start, piece.nbytes)) for start, piece in chunk.pieces
        ]
    return [Read(chunk.file, chunk.offset, buffer.view(offset, chunk.nbytes), chunk.row_permutation)]


def _may_lie_anywhere(chunk: AnyChunk) -> bool:
    """Whether the device takes a chunk as it lies in the pages around it."""
    if isinstance(chunk, PlaneChunk) and chunk.plane.beside:
        return False
    aligned = chunk.transform is Transform.COPY or chunk.offset % CONVERT_ALIGNMENT == 0
    return aligned and chunk.row_permutation is None
