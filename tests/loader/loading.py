"""A small checkpoint that is loaded onto a device, and what a load may leave behind."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tests.checkpoint import builders
from unicorn_async.checkpoint.checkpoint import Checkpoint
from unicorn_async.checkpoint.partial_file import NO_PARTIAL_FILES, stamp_of
from unicorn_async.gpu.arena import Arena
from unicorn_async.gpu.command import CommandPool
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.loader.read_strategy import ReadMode, ReadStrategy
from unicorn_async.loader.reader import FileReader
from unicorn_async.loader.stream import LoadStream
from unicorn_async.ops.convert import convert
from unicorn_async.tensor import DType
from unicorn_async.weights.plan import LoadPlan, make_plan
from unicorn_async.weights.wanted import WantedTensor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    import pytest

    from unicorn_async.checkpoint.partial_file import PartialFiles
    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.loader.allocator import BackgroundAllocator
    from unicorn_async.loader.source import CachedWeights
    from unicorn_async.loader.trace import LoadTrace
    from unicorn_async.loader.uploader import Preparation
    from unicorn_async.weights.chunk import Chunk

CHUNK_BYTES = 1024
WARM = ReadStrategy(ReadMode.WARM, 2)
WANTED = (
    WantedTensor("embed", (200, 16), -1, "embed"),
    WantedTensor("a.q", (32, 16), 0, "0.qkv", 0),
    WantedTensor("a.k", (16, 16), 0, "0.qkv", 32),
    WantedTensor("a.norm", (16,), 0, "0.norm", as_f32=True),
    WantedTensor("b.up", (64, 16), 1, "1.up", as_f32=True),
    WantedTensor("b.norm", (16,), 1, "1.norm", as_f32=True),
    WantedTensor("norm", (16,), 2, "norm", as_f32=True),
)
DTYPES = {"a.norm": "F32", "b.up": "F16", "b.norm": "F16"}  # the others are BF16


def strategy_of(mode: ReadMode) -> ReadStrategy:
    """Return a strategy whose read-ahead window is smaller than the checkpoint."""
    return ReadStrategy(mode, 2, 4 * CHUNK_BYTES if mode in (ReadMode.CACHED, ReadMode.DROPPED) else 0)


class Loading:
    """A small checkpoint on disk, its plan, and memory for it; `mapped` False hides that the CPU sees the memory."""

    def __init__(self, device: Device, directory: Path, *, mapped: bool) -> None:
        self.device = device
        self.data = {
            want.name: builders.tensor(DTYPES.get(want.name, "BF16"), *want.shape, seed=number)
            for number, want in enumerate(WANTED)
        }
        names = list(self.data)
        shards = [{name: self.data[name] for name in names[start::2]} for start in range(2)]
        self.checkpoint = Checkpoint.read(builders.write(directory, *shards))
        self.plan = make_plan(self.checkpoint, WANTED, chunk_bytes=CHUNK_BYTES)
        self.arena = Arena(device.memory, MemoryKind.DEVICE, 1 << 16)
        self.places = {dest.name: self.arena.allocate(dest.nbytes) for dest in self.plan.destinations}
        if not mapped:
            buffers = {place.buffer for place in self.places.values()}
            hidden = {buffer: replace(buffer, is_mappable=False, view=None) for buffer in buffers}
            self.places = {name: replace(place, buffer=hidden[place.buffer]) for name, place in self.places.items()}

    def stream(
        self,
        *,
        plan: LoadPlan | None = None,
        staging_bytes: int = 4 * CHUNK_BYTES,
        strategy: ReadStrategy = WARM,
        trace: LoadTrace | None = None,
        cached: CachedWeights | None = None,
        stages_in_vram: bool = False,
        allocator: BackgroundAllocator | None = None,
        prepare: Preparation | None = None,
        partial: PartialFiles = NO_PARTIAL_FILES,
    ) -> LoadStream:
        return LoadStream(
            self.device,
            plan or self.plan,
            self.checkpoint.files,
            self.places if allocator is None else allocator.slices,
            convert=self.convert,
            strategy=strategy,
            staging_bytes=staging_bytes,
            trace=trace,
            cached=cached,
            stages_in_vram=stages_in_vram,
            allocator=allocator,
            prepare=prepare,
            partial=partial,
            stamps=[stamp_of(path, partial) for path in self.checkpoint.files] if partial else (),
        )

    def convert(self, recorder: CommandRecorder, source: int, place: int, chunk: Chunk) -> None:
        assert isinstance(chunk.source_dtype, DType) and isinstance(chunk.dest_dtype, DType)
        convert(
            recorder,
            self.device.kernels,
            src=source,
            src_dtype=chunk.source_dtype,
            dst=place + chunk.dest_offset,
            dst_dtype=chunk.dest_dtype,
            num_elements=chunk.num_elements,
        )

    def expected(self, dest: str, dtype: DType) -> bytes:
        parts = [want for want in WANTED if want.dest == dest]
        if dtype is DType.BF16:
            return b"".join(self.data[part.name][2] for part in parts)
        values = np.concatenate([builders.values(self.data[p.name][0], self.data[p.name][2]) for p in parts])
        return values.astype(np.float32 if dtype is DType.F32 else np.float16).tobytes()

    def close(self) -> None:
        self.device.wait_idle()
        self.device.memory.collect()
        self.arena.close()


def download(device: Device, place: ArenaSlice) -> bytes:
    """Copy a slice to the host by the GPU."""
    target = device.memory.allocate(place.nbytes, MemoryKind.STAGING, name="download")
    pool = CommandPool(device, device.compute)
    recorder = pool.recorder()
    recorder.copy(place.buffer, place.offset, target, 0, place.nbytes)
    recorder.host_barrier()
    device.compute.timeline.wait(device.compute.submit([recorder.end()]), 120)
    pool.close()
    assert target.mapped is not None
    content = bytes(target.mapped)
    target.close()
    return content


def descriptors_of(files: Sequence[Path]) -> int:
    """Count this process's open descriptors of the files."""
    wanted, count = {str(path.resolve()) for path in files}, 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}") in wanted
        except OSError:
            continue
    return count


def reader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("unicorn-reader")]


def hold_reads(patch: pytest.MonkeyPatch, num_reads: int) -> None:
    """Let so many reads pass; the others never end."""
    passed = iter(range(num_reads))

    def holding(read: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def held(reader: FileReader, *arguments: object) -> object:
            if next(passed, None) is None:
                await asyncio.Event().wait()
            return await read(reader, *arguments)

        return held

    for name in ("read", "read_all", "read_around"):
        patch.setattr(FileReader, name, holding(getattr(FileReader, name)))
