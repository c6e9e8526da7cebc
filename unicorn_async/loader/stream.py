"""Loading: chunks from files to device memory, layer by layer, while others already use the first layers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING

from unicorn_async.background import run_to_end
from unicorn_async.checkpoint.partial_file import NO_PARTIAL_FILES
from unicorn_async.errors import CacheError, CheckpointError, EngineClosedError
from unicorn_async.loader.checksums import LayerChecksums
from unicorn_async.loader.pipeline import LoadPipeline
from unicorn_async.loader.progress import LoadProgress
from unicorn_async.loader.source import LoadSource, only_checkpoint_error
from unicorn_async.loader.uploader import Uploader
from unicorn_async.weights.plan import CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from unicorn_async.checkpoint.file_stamp import FileStamp
    from unicorn_async.checkpoint.partial_file import PartialFiles
    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.timeline import Timeline
    from unicorn_async.loader.allocator import BackgroundAllocator
    from unicorn_async.loader.range_check import RangeCounters
    from unicorn_async.loader.read_strategy import ReadStrategy
    from unicorn_async.loader.source import CachedWeights, Prelude
    from unicorn_async.loader.trace import LoadTrace
    from unicorn_async.loader.transfer import Transfer
    from unicorn_async.loader.uploader import ConvertRecorder, Preparation
    from unicorn_async.weights.plan import LoadPlan


class LoadStream:
    """Carries out a plan once; made in the event loop that runs it.

    `places` are the destinations' memory, which must outlive `run` and which the caller owns. While an `allocator`
    still fills them, chunks wait for their part of it. Chunks that are copied as they are go straight into `places`
    that are mapped, all others through at most `staging_bytes` of staging memory, as does everything where it lies near
    the device, `stages_in_vram`, and what is read past the page cache, where the device takes it from ordinary memory.
    `stamps` are what the files were when their headers were read: a layer whose file has changed is not activated.
    Of `partial` files chunks are read as they come, and the last layer is not activated before all are found right.
    `trace` is told what happens.
    `factors` are loaded before the first chunk that is blended, and closed with the load; `out_of_range` is checked
    whenever a layer is there. What is `cached` is taken in place of the checkpoint's: a layer is activated once the
    device has found its checksums right; with the first wrong one, or an unreadable file, the load goes on from the
    checkpoint.
    `begun` is set once the first reads are asked for, or the load has failed: threads run Python one at a time, and a
    start does then what can wait. Close the stream when nothing waits for its timeline on the device any more.
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
        stamps: Sequence[FileStamp] = (),
        staging_bytes: int = 16 * CHUNK_BYTES,
        trace: LoadTrace | None = None,
        factors: Prelude | None = None,
        out_of_range: RangeCounters | None = None,
        cached: CachedWeights | None = None,
        partial: PartialFiles = NO_PARTIAL_FILES,
        allocator: BackgroundAllocator | None = None,
        stages_in_vram: bool = False,
        prepare: Preparation | None = None,
    ) -> None:
        self._device = device
        self._plan = plan
        self._places = places
        self._cached = cached
        self._checkpoint = LoadSource(tuple(files), plan.chunks, strategy, tuple(stamps), partial=partial)
        self._source = self._checkpoint if cached is None else cached.source
        self._staging_bytes = staging_bytes
        self._trace = trace
        self._factors = factors
        self._out_of_range = out_of_range
        self._allocator = allocator
        self._stages_in_vram = stages_in_vram
        self._uploader = Uploader(device, places, convert, allocator, prepare)
        self._index = {layer: index for index, layer in enumerate(plan.layers)}
        self._chunks_left: Counter[int] = Counter()
        self._bytes_total = self._source.bytes_to_read
        self._bytes_loaded = self._num_active = 0
        self._started = self._finished = 0.0
        self._error: BaseException | None = None
        self._changed = asyncio.Event()
        self.begun = asyncio.Event()

    @property
    def strategy(self) -> ReadStrategy:
        """How the files are read, and why."""
        return self._source.strategy

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
            bool(self._source.checksums),
            sum(file.nbytes for file in self._checkpoint.partial.values()),
            sum(file.num_there for file in self._checkpoint.partial.values()),
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
        while self._uploader.num_activated <= index:
            changed = self._changed
            self._raise_error()
            await changed.wait()
        return self._uploader.timeline, index + 1

    async def checked(self) -> None:
        """Return once everything is active and was found right: a device may have used layers before that.

        Raises:
            UnicornError: what made the load fail.
        """
        while not self.all_active:
            changed = self._changed
            self._raise_error()
            await changed.wait()

    async def run(self) -> None:
        """Load everything; it returns when the last layer is active.

        Cancelled or failed, it leaves no thread, file or staging memory behind.

        Raises:
            CheckpointError: a file can't be read, ends too early, or was changed since its header was read, or a value
                does not fit its type.
            DownloadError: a file that is on its way does not come, or is another one.
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
            self._finished = self._finished or time.monotonic()
            self.begun.set()
            self._notify()

    async def close(self) -> None:
        """Destroy the layers' timeline, in a thread; a load that has not begun never will."""
        if self._error is None and not self.all_active:
            self._error = EngineClosedError("the load was closed")
            self._notify()
        await run_to_end(self._uploader.timeline.close)

    async def _run(self) -> None:
        if self._cached is not None:
            try:
                return await self._load_checked(self._cached)
            except (CheckpointError, BaseExceptionGroup) as exc:
                damage = only_checkpoint_error(exc)
                if damage is None:
                    raise
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise asyncio.CancelledError from None  # which a task group with a failed task has left out
            await self._cached.damaged(damage)
        left = self._plan.layers[self._uploader.num_activated :]
        rest = self._checkpoint.of_layers(left)
        self._bytes_total = self._checkpoint.bytes_to_read
        self._bytes_loaded = self._bytes_total - rest.bytes_to_read
        await self._load(rest)

    async def _load_checked(self, cached: CachedWeights) -> None:
        sizes = {dest.name: dest.nbytes for dest in self._plan.destinations}
        check = LayerChecksums(self._device, self._places, sizes, cached.checksum)
        try:
            await self._load(cached.source, check)
        finally:
            await check.close()

    async def _load(self, source: LoadSource, check: LayerChecksums | None = None) -> None:
        self._source = source
        self._chunks_left = Counter(chunk.layer for chunk in source.chunks)
        load = LoadPipeline(
            self._device,
            source,
            self._uploader,
            staging_bytes=self._staging_bytes,
            arrived=self._count,
            trace=self._trace,
            factors=self._factors,
            allocator=self._allocator,
            stages_in_vram=self._stages_in_vram,
        )
        async with load, asyncio.TaskGroup() as group:
            load.start(group)
            self.begun.set()
            group.create_task(self._activate_layers(check))
            await self._follow_activation(load)

    def _count(self, transfer: Transfer) -> None:
        self._bytes_loaded += transfer.read_bytes
        self._chunks_left[transfer.layer] -= len(transfer.chunks)
        self._notify()

    async def _activate_layers(self, check: LayerChecksums | None) -> None:
        """Activate each layer once it is complete, and found right if there is a check, while others are on their way.

        Those that a source before this one brought are active.
        """
        for layer in self._plan.layers[self._uploader.num_activated :]:
            while self._chunks_left[layer]:
                await self._changed.wait()
            if check is not None:
                await self._check_layer(layer, check)
            if layer == self._plan.layers[-1]:  # without which there is no token
                await self._source.settled()
            started = time.perf_counter_ns()
            await self._uploader.activate_next()
            if self._trace is not None:
                self._trace.submission(f"activation of layer {layer}", started, time.perf_counter_ns())
            self._notify()

    async def _check_layer(self, layer: int, check: LayerChecksums) -> None:
        started = time.perf_counter_ns()
        members = [dest for dest in self._plan.destinations if dest.layer == layer]
        found = await check.checksums([dest.name for dest in members], self._uploader.pending)
        for name, checksum in found.items():
            if self._source.checksums.get(name) != checksum:
                raise CacheError(f"{self._source.files[0]}: tensor {name!r} is damaged, its checksum is {checksum}")
        if self._trace is not None:
            nbytes = sum(dest.nbytes for dest in members)
            self._trace.device_work("check", f"layer {layer}", nbytes, started, time.perf_counter_ns())

    async def _follow_activation(self, load: LoadPipeline) -> None:
        for index in range(self._num_active, len(self._plan.layers)):
            layer = self._plan.layers[index]
            timeline, value = await self.layer_submitted(layer)
            await timeline.reached(value)
            if self._out_of_range is not None:
                self._out_of_range.check(layer)
            self._num_active = index + 1
            if self.all_active:
                self._finished = time.monotonic()  # requests do not wait for what is freed after it
            if self._trace is not None:
                now = time.perf_counter_ns()
                self._trace.layer(layer, load.layer_started.get(layer, now), now)
            self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _raise_error(self) -> None:
        if isinstance(self._error, asyncio.CancelledError):
            raise EngineClosedError("the load was cancelled")
        if self._error is not None:
            raise self._error
