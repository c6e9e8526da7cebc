"""Loading: chunks from files to device memory, layer by layer, while others already use the first layers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from typing import TYPE_CHECKING

from unicorn_async.errors import EngineClosedError
from unicorn_async.loader.plan import CHUNK_BYTES
from unicorn_async.loader.progress import LoadProgress
from unicorn_async.loader.reader import FileReader
from unicorn_async.loader.staging import StagingRing
from unicorn_async.loader.uploader import Uploader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
    from pathlib import Path

    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.memory import ArenaSlice
    from unicorn_async.gpu.timeline import Timeline
    from unicorn_async.loader.plan import Chunk, LoadPlan
    from unicorn_async.loader.uploader import ConvertRecorder

_LANES_PER_THREAD = 2  # so that a thread finds its next read waiting


class LoadStream:
    """Carries out a plan once; made in the event loop that runs it.

    `places` are the destinations' memory, which must outlive `run` and which the caller owns. Chunks that are copied as
    they are go straight into `places` that are mapped, all others through at most `staging_bytes` of staging memory.
    Close it when nothing waits for its timeline on the device any more.
    """

    def __init__(
        self,
        device: Device,
        plan: LoadPlan,
        files: Sequence[Path],
        places: Mapping[str, ArenaSlice],
        *,
        convert: ConvertRecorder,
        staging_bytes: int = 16 * CHUNK_BYTES,
        num_threads: int | None = None,
    ) -> None:
        self._device = device
        self._plan = plan
        self._files = files
        self._staging_bytes = staging_bytes
        self._num_threads = num_threads
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
        with contextlib.ExitStack() as stack:
            stack.callback(self._uploader.close)
            ring = self._make_ring(stack)
            reader = FileReader(self._files, num_threads=self._num_threads)
            stack.callback(reader.close)  # first of all: no thread writes to memory that is freed after it
            chunks = iter(self._plan.chunks)
            async with asyncio.TaskGroup() as group:
                for _ in range(reader.num_threads * _LANES_PER_THREAD):
                    group.create_task(self._lane(chunks, reader, ring))
                self._activate_complete_layers()
                await self._follow_activation()

    def _make_ring(self, stack: contextlib.ExitStack) -> StagingRing | None:
        staged = [chunk.nbytes for chunk in self._plan.chunks if self._uploader.direct_target(chunk) is None]
        if not staged:
            return None
        slot_bytes = max(staged)
        num_slots = max(1, min(len(staged), self._staging_bytes // slot_bytes))
        ring = StagingRing(self._device.memory, num_slots=num_slots, slot_bytes=slot_bytes)
        stack.callback(ring.close)
        return ring

    async def _lane(self, chunks: Iterator[Chunk], reader: FileReader, ring: StagingRing | None) -> None:
        """Load one chunk after the other; all lanes take from the same iterator, so chunks start in order."""
        for chunk in chunks:
            target = self._uploader.direct_target(chunk)
            if target is not None:
                await reader.read(chunk.file, chunk.offset, target)
            else:
                assert ring is not None, "there are slots where a chunk is staged"
                slot = await ring.acquire()
                await reader.read(chunk.file, chunk.offset, slot.view(chunk.nbytes))
                ring.release(slot, *self._uploader.submit(chunk, slot))
            self._bytes_loaded += chunk.nbytes
            self._chunks_left[chunk.layer] -= 1
            self._activate_complete_layers()
            self._notify()

    def _activate_complete_layers(self) -> None:
        layers = self._plan.layers
        while self._num_submitted < len(layers) and not self._chunks_left[layers[self._num_submitted]]:
            self._num_submitted = self._uploader.activate_next()

    async def _follow_activation(self) -> None:
        for index, layer in enumerate(self._plan.layers):
            timeline, value = await self.layer_submitted(layer)
            await timeline.reached(value)
            self._num_active = index + 1
            self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _raise_error(self) -> None:
        if isinstance(self._error, asyncio.CancelledError):
            raise EngineClosedError("the load was cancelled")
        if self._error is not None:
            raise self._error
