"""Loading: chunks from files to device memory, layer by layer, while others already use the first layers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from typing import TYPE_CHECKING

from unicorn_async.errors import EngineClosedError
from unicorn_async.loader.chunk import CONVERT_ALIGNMENT, Transform
from unicorn_async.loader.open_file import PAGE_BYTES
from unicorn_async.loader.parcel import make_parcels
from unicorn_async.loader.plan import CHUNK_BYTES
from unicorn_async.loader.progress import LoadProgress
from unicorn_async.loader.read_ahead import ReadAhead
from unicorn_async.loader.read_strategy import ReadMode
from unicorn_async.loader.reader import FileReader
from unicorn_async.loader.staging import StagingRing, can_import
from unicorn_async.loader.uploader import Uploader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
    from pathlib import Path

    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.memory import ArenaSlice
    from unicorn_async.gpu.timeline import Timeline
    from unicorn_async.loader.chunk import Chunk
    from unicorn_async.loader.parcel import Parcel
    from unicorn_async.loader.plan import LoadPlan
    from unicorn_async.loader.read_strategy import ReadStrategy
    from unicorn_async.loader.staging import StagingSlot
    from unicorn_async.loader.trace import LoadTrace
    from unicorn_async.loader.uploader import ConvertRecorder

_LANES_PER_THREAD = 2  # so that a thread finds its next read waiting


class LoadStream:
    """Carries out a plan once; made in the event loop that runs it.

    `places` are the destinations' memory, which must outlive `run` and which the caller owns. Chunks that are copied as
    they are go straight into `places` that are mapped, all others through at most `staging_bytes` of staging memory, as
    does what is read past the page cache, where the device takes it from ordinary memory. `trace` is told what happens.
    Close the stream when nothing waits for its timeline on the device any more.
    """

    def __init__(
        self,
        device: Device,
        plan: LoadPlan,
        files: Sequence[Path],
        places: Mapping[str, ArenaSlice],
        *,
        convert: ConvertRecorder,
        strategy: ReadStrategy,
        staging_bytes: int = 16 * CHUNK_BYTES,
        trace: LoadTrace | None = None,
    ) -> None:
        self._device = device
        self._plan = plan
        self._files = files
        self._staging_bytes = staging_bytes
        self.strategy = strategy
        self._trace = trace
        self._stages_direct_reads = strategy.mode is ReadMode.DIRECT and can_import(device)
        self._read_ahead = ReadAhead(plan.chunks, strategy.read_ahead_bytes)
        self._layer_started: dict[int, int] = {}
        self._uploader = Uploader(device, places, convert)
        self._index = {layer: index for index, layer in enumerate(plan.layers)}
        self._chunks_left = Counter(chunk.layer for chunk in plan.chunks)
        self._bytes_total = plan.bytes_to_read
        self._bytes_loaded = self._num_submitted = self._num_active = 0
        self._started = self._finished = 0.0
        self._error: BaseException | None = None
        self._changed = asyncio.Event()

    @property
    def progress(self) -> LoadProgress:
        """How far the load is now."""
        seconds = (self._finished or time.monotonic()) - self._started if self._started else 0.0
        return LoadProgress(
            self._bytes_total,
            self._bytes_loaded,
            len(self._plan.layers),
            self._num_active,
            seconds,
            self._num_active == len(self._plan.layers),
        )

    @property
    def all_active(self) -> bool:
        """Whether every layer may be used without waiting."""
        return self._num_active == len(self._plan.layers)

    async def watch(self) -> AsyncIterator[LoadProgress]:
        """Yield progress now and whenever it has changed, until the load is done; several may watch.

        Raises:
            UnicornError: what made the load fail.
        """
        while True:
            changed, progress = self._changed, self.progress
            yield progress
            if progress.done:
                return
            self._raise_error()
            await changed.wait()

    async def layer_submitted(self, layer: int) -> tuple[Timeline, int]:
        """Return the timeline value at which the layer is active, as soon as a device may wait for it.

        Raises:
            UnicornError: what made the load fail.
        """
        index = self._index[layer]
        while self._num_submitted <= index:
            changed = self._changed
            self._raise_error()
            await changed.wait()
        return self._uploader.timeline, index + 1

    async def run(self) -> None:
        """Load everything; it returns when the last layer is active.

        Cancelled or failed, it leaves no thread, file or staging memory behind.

        Raises:
            CheckpointError: a file can't be read or ends too early.
            DeviceError: staging memory does not fit, or the device failed.
        """
        self._started = time.monotonic()
        try:
            await self._run()
        except BaseExceptionGroup as group:
            self._error = group.exceptions[0]
            raise self._error from None
        except BaseException as exc:
            self._error = exc
            raise
        finally:
            self._finished = time.monotonic()
            self._notify()

    def close(self) -> None:
        """Destroy the layers' timeline; a load that has not begun never will."""
        if self._error is None and not self.all_active:
            self._error = EngineClosedError("the load was closed")
            self._notify()
        self._uploader.timeline.close()

    async def _run(self) -> None:
        staged_bytes = max((chunk.nbytes for chunk in self._plan.chunks), default=0)
        parcels = make_parcels(self._plan.chunks, self._is_staged, slot_bytes=staged_bytes)
        with contextlib.ExitStack() as stack:
            stack.callback(self._uploader.close)
            ring = self._make_ring([parcel.nbytes for parcel in parcels if parcel.staged], stack)
            reader = FileReader(self._files, self.strategy, trace=self._trace)
            stack.callback(reader.close)  # first of all: no thread writes to memory that is freed after it
            waiting = iter(parcels)
            async with asyncio.TaskGroup() as group:
                for _ in range(reader.num_threads * _LANES_PER_THREAD):
                    group.create_task(self._lane(waiting, reader, ring, group))
                self._activate_complete_layers()
                await self._follow_activation()

    def _is_staged(self, chunk: Chunk) -> bool:
        return self._stages_direct_reads or self._uploader.direct_target(chunk) is None

    def _make_ring(self, sizes: Sequence[int], stack: contextlib.ExitStack) -> StagingRing | None:
        if not sizes:
            return None
        slot_bytes = max(sizes)
        if self._stages_direct_reads:
            slot_bytes = (slot_bytes // PAGE_BYTES + 2) * PAGE_BYTES  # a part of a page at both ends
        num_slots = max(1, min(len(sizes), self._staging_bytes // slot_bytes))
        ring = StagingRing(
            self._device.memory, num_slots=num_slots, slot_bytes=slot_bytes, imports=self._stages_direct_reads
        )
        stack.callback(ring.close)
        return ring

    async def _lane(
        self, parcels: Iterator[Parcel], reader: FileReader, ring: StagingRing | None, group: asyncio.TaskGroup
    ) -> None:
        """Load one parcel after the other; all lanes take from the same iterator, so parcels start in order."""
        for parcel in parcels:
            self._layer_started.setdefault(parcel.layer, time.perf_counter_ns())
            for wanted in self._read_ahead.advance(parcel.read_bytes) if self.strategy.read_ahead_bytes else ():
                reader.will_need(*wanted)
            if parcel.staged:
                assert ring is not None, "there are slots where a parcel is staged"
                slot = await ring.acquire()
                submitted = self._uploader.submit(await _read_staged(reader, parcel, slot), slot)
                ring.release(slot, *submitted)
                if self._trace is not None:
                    group.create_task(self._follow_parcel(parcel, *submitted, self._trace))
            else:
                chunk = parcel.chunks[0]
                target = self._uploader.direct_target(chunk)
                assert target is not None, "what is not staged has a mapped place"
                await reader.read(chunk.file, chunk.offset, target, chunk.row_permutation)
            self._bytes_loaded += parcel.read_bytes
            self._chunks_left[parcel.layer] -= len(parcel.chunks)
            self._activate_complete_layers()
            self._notify()

    async def _follow_parcel(self, parcel: Parcel, timeline: Timeline, value: int, trace: LoadTrace) -> None:
        started, first = time.perf_counter_ns(), parcel.chunks[0]
        await timeline.reached(value)
        more = f" and {len(parcel.chunks) - 1} more" if len(parcel.chunks) > 1 else ""
        kind = "upload" if first.transform is Transform.COPY else "conversion"
        trace.device_work(kind, first.dest + more, parcel.read_bytes, started, time.perf_counter_ns())

    def _activate_complete_layers(self) -> None:
        layers = self._plan.layers
        while self._num_submitted < len(layers) and not self._chunks_left[layers[self._num_submitted]]:
            self._num_submitted = self._uploader.activate_next()

    async def _follow_activation(self) -> None:
        for index, layer in enumerate(self._plan.layers):
            timeline, value = await self.layer_submitted(layer)
            await timeline.reached(value)
            self._num_active = index + 1
            if self._trace is not None:
                now = time.perf_counter_ns()
                self._trace.layer(layer, self._layer_started.get(layer, now), now)
            self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _raise_error(self) -> None:
        if isinstance(self._error, asyncio.CancelledError):
            raise EngineClosedError("the load was cancelled")
        if self._error is not None:
            raise self._error


async def _read_staged(reader: FileReader, parcel: Parcel, slot: StagingSlot) -> list[tuple[Chunk, int]]:
    """Read a parcel into its slot; return the chunks, each with where in the slot it is."""
    first = parcel.chunks[0]
    if reader.is_direct and slot.takes_direct_reads and len(parcel.chunks) == 1 and _may_lie_anywhere(first):
        return [(first, await reader.read_around(first.file, first.offset, first.nbytes, slot.view()))]
    placed = list(zip(parcel.chunks, parcel.offsets, strict=True))
    for chunk, offset in placed:
        await reader.read(chunk.file, chunk.offset, slot.view(offset, chunk.nbytes), chunk.row_permutation)
    return placed


def _may_lie_anywhere(chunk: Chunk) -> bool:
    """Whether the device takes a chunk as it lies in the pages around it."""
    aligned = chunk.transform is Transform.COPY or chunk.offset % CONVERT_ALIGNMENT == 0
    return aligned and chunk.row_permutation is None
