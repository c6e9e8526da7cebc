"""Loading onto a device: every byte in place, layers in order, nothing left behind when it fails."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

from unicorn_async.errors import CheckpointError, EngineClosedError, OutOfMemoryError
from unicorn_async.gpu.command import CommandPool
from unicorn_async.gpu.memory import Arena, MemoryKind
from unicorn_async.loader import stream as stream_module
from unicorn_async.loader.checkpoint import Checkpoint
from unicorn_async.loader.parcel import make_parcels
from unicorn_async.loader.plan import LoadPlan, WantedTensor, make_plan
from unicorn_async.loader.read_strategy import ReadMode, ReadStrategy
from unicorn_async.loader.reader import FileReader
from unicorn_async.loader.staging import StagingRing
from unicorn_async.loader.stream import LoadStream
from unicorn_async.loader.trace import LoadTrace
from unicorn_async.loader.uploader import Uploader
from unicorn_async.ops.convert import convert
from unicorn_async.tensor import DType

from . import builders

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.memory import ArenaSlice
    from unicorn_async.gpu.timeline import Timeline
    from unicorn_async.loader.chunk import Chunk
    from unicorn_async.loader.staging import StagingSlot

CHUNK_BYTES = 1024
WARM = ReadStrategy(ReadMode.WARM, 2)
WANTED = (
    WantedTensor("embed", (200, 16), -1, "embed"),
    WantedTensor("a.q", (32, 16), 0, "0.qkv", 0),
    WantedTensor("a.k", (16, 16), 0, "0.qkv", 32),
    WantedTensor("a.norm", (16,), 0, "0.norm", as_f32=True),
    WantedTensor("b.up", (64, 16), 1, "1.up"),
    WantedTensor("b.norm", (16,), 1, "1.norm", as_f32=True),
    WantedTensor("norm", (16,), 2, "norm", as_f32=True),
)
DTYPES = {"a.norm": "F32", "b.up": "F32", "b.norm": "F16"}  # the others are BF16


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
            hidden = {place.buffer: replace(place.buffer, mapped=None) for place in self.places.values()}
            self.places = {name: replace(place, buffer=hidden[place.buffer]) for name, place in self.places.items()}

    def stream(
        self,
        *,
        plan: LoadPlan | None = None,
        staging_bytes: int = 4 * CHUNK_BYTES,
        strategy: ReadStrategy = WARM,
        trace: LoadTrace | None = None,
    ) -> LoadStream:
        return LoadStream(
            self.device,
            plan or self.plan,
            self.checkpoint.files,
            self.places,
            convert=self.convert,
            strategy=strategy,
            staging_bytes=staging_bytes,
            trace=trace,
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
    device.compute.timeline.wait(device.compute.submit([recorder.end()]), 10)
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


@pytest.fixture(params=[True, False], ids=["direct", "staged"])
def loading(device: Device, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Loading]:
    num_buffers, objects = device.memory.num_buffers, device.live_objects()
    made = Loading(device, tmp_path, mapped=request.param)
    yield made
    made.close()
    assert device.memory.num_buffers == num_buffers
    assert device.live_objects() == objects
    assert not reader_threads()
    assert descriptors_of(made.checkpoint.files) == 0


async def test_every_destination_has_the_checkpoints_values(loading: Loading) -> None:
    stream = loading.stream()
    await stream.run()
    for dest in loading.plan.destinations:
        assert download(loading.device, loading.places[dest.name]) == loading.expected(dest.name, dest.dtype), dest.name
    progress = stream.progress
    assert progress.done and progress.share == 1.0
    assert progress.bytes_loaded == sum(len(data) for _, _, data in loading.data.values())
    assert (progress.layers_active, progress.layers_total) == (4, 4)
    stream.close()


@pytest.mark.parametrize("mode", ReadMode)
@pytest.mark.parametrize("small_bytes", [0, 1 << 20], ids=["alone", "together"])
async def test_every_way_of_reading_brings_the_same_values(
    loading: Loading, mode: ReadMode, small_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "make_parcels", partial(make_parcels, small_bytes=small_bytes))
    stream = loading.stream(strategy=strategy_of(mode))
    await stream.run()
    for dest in loading.plan.destinations:
        assert download(loading.device, loading.places[dest.name]) == loading.expected(dest.name, dest.dtype), dest.name
    stream.close()


@pytest.mark.parametrize("refusal", ["extension", "memory"])
async def test_direct_reads_do_without_memory_that_the_device_takes(
    loading: Loading, refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(view: memoryview, *, name: str) -> object:
        raise OutOfMemoryError(f"{name}: {len(view)} bytes can't be pinned")

    if refusal == "extension":
        monkeypatch.setattr(stream_module, "can_import", lambda device: False)
    else:
        monkeypatch.setattr(loading.device.memory, "import_host", refuse)
    stream = loading.stream(strategy=strategy_of(ReadMode.DIRECT))
    await stream.run()
    assert download(loading.device, loading.places["0.qkv"]) == loading.expected("0.qkv", DType.BF16)
    assert download(loading.device, loading.places["1.norm"]) == loading.expected("1.norm", DType.F32)
    stream.close()


async def test_small_tensors_of_a_layer_are_one_submission(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted: list[list[str]] = []
    submit = Uploader.submit

    def count(uploader: Uploader, placed: Sequence[tuple[Chunk, int]], slot: StagingSlot) -> tuple[Timeline, int]:
        submitted.append([chunk.dest for chunk, _ in placed])
        return submit(uploader, placed, slot)

    monkeypatch.setattr(Uploader, "submit", count)
    stream = loading.stream(plan=make_plan(loading.checkpoint, WANTED))  # chunks as large as the tensors
    await stream.run()
    conversions = [("1.norm", "1.up"), ("norm",)]
    copies = [("0.norm", "0.qkv", "0.qkv"), ("embed",)] if loading.places["embed"].mapped is None else []
    assert sorted(tuple(sorted(names)) for names in submitted) == sorted(conversions + copies)
    stream.close()


async def test_a_disk_that_fails_in_the_middle_is_an_error(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv, calls = os.preadv, []

    def fail(descriptor: int, parts: list[memoryview], offset: int) -> int:
        calls.append(offset)
        if len(calls) == 4:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(descriptor, parts, offset)

    monkeypatch.setattr(os, "preadv", fail)
    stream = loading.stream()
    with pytest.raises(CheckpointError, match=r"safetensors: reading at byte \d+: Input/output error"):
        await stream.run()
    stream.close()


async def test_a_trace_has_every_read_every_submission_and_every_layer(loading: Loading, tmp_path: Path) -> None:
    trace = LoadTrace(tmp_path / "trace.json")
    stream = loading.stream(trace=trace)
    await stream.run()
    stream.close()
    trace.write()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    reads = [event for event in events if event["ph"] == "X"]
    assert sum(read["args"]["bytes"] for read in reads) == loading.plan.bytes_to_read
    begun = Counter(event["cat"] for event in events if event["ph"] == "b")
    assert begun["layer"] == len(loading.plan.layers)
    assert begun["conversion"] >= 3
    assert bool(begun["upload"]) == (next(iter(loading.places.values())).mapped is None)
    assert all(event["ts"] >= 0 and event.get("dur", 0) >= 0 for event in events if event["ph"] != "M")


async def test_one_slot_is_enough(loading: Loading) -> None:
    stream = loading.stream(staging_bytes=1)
    await asyncio.wait_for(stream.run(), 60)
    assert download(loading.device, loading.places["1.up"]) == loading.expected("1.up", DType.F16)
    stream.close()


async def test_a_layer_is_usable_once_its_value_is_reached(loading: Loading) -> None:
    stream = loading.stream()
    task = asyncio.create_task(stream.run())
    last = 0
    for layer, names in ((-1, ["embed"]), (0, ["0.qkv", "0.norm"]), (1, ["1.up", "1.norm"]), (2, ["norm"])):
        timeline, value = await stream.layer_submitted(layer)
        assert value > last
        last = value
        await timeline.reached(value)
        for name in names:
            dtype = next(dest.dtype for dest in loading.plan.destinations if dest.name == name)
            assert download(loading.device, loading.places[name]) == loading.expected(name, dtype)
    await task
    stream.close()


async def test_a_submission_may_wait_for_a_layer_on_the_device(loading: Loading) -> None:
    stream = loading.stream()
    task = asyncio.create_task(stream.run())
    device, place = loading.device, loading.places["1.up"]
    target = device.memory.allocate(place.nbytes, MemoryKind.STAGING, name="target")
    pool = CommandPool(device, device.compute)
    recorder = pool.recorder()
    recorder.copy(place.buffer, place.offset, target, 0, place.nbytes)
    recorder.host_barrier()
    value = device.compute.submit([recorder.end()], waits=[await stream.layer_submitted(1)])
    await device.compute.timeline.reached(value)
    assert target.mapped is not None
    assert bytes(target.mapped) == loading.expected("1.up", DType.F16)
    await task
    pool.close()
    target.close()
    stream.close()


async def test_several_watchers_see_progress_grow_to_the_end(loading: Loading) -> None:
    stream = loading.stream()

    async def watch() -> None:
        seen = [progress async for progress in stream.watch()]
        assert seen[-1].done and not any(progress.done for progress in seen[:-1])
        loaded = [progress.bytes_loaded for progress in seen]
        assert loaded == sorted(loaded)

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        group.create_task(watch())
        group.create_task(stream.run())
    assert [progress.done async for progress in stream.watch()] == [True]
    stream.close()


async def test_a_file_that_shrank_is_an_error_for_everybody(loading: Loading) -> None:
    path = loading.checkpoint.files[0]
    os.truncate(path, path.stat().st_size - 100)
    stream = loading.stream()
    waiter = asyncio.create_task(stream.layer_submitted(2))
    with pytest.raises(CheckpointError, match="truncated"):
        await stream.run()
    with pytest.raises(CheckpointError, match="truncated"):
        await waiter
    with pytest.raises(CheckpointError, match="truncated"):
        async for progress in stream.watch():
            assert not progress.done
    stream.close()


async def test_a_file_that_is_gone_is_an_error(loading: Loading) -> None:
    loading.checkpoint.files[1].unlink()
    stream = loading.stream()
    with pytest.raises(CheckpointError, match="No such file"):
        await stream.run()
    stream.close()


async def test_staging_memory_that_does_not_fit_is_an_error(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    allocate, made = loading.device.memory.allocate, []

    def fail(nbytes: int, kind: MemoryKind, *, name: str) -> object:
        if len(made) == 2:
            raise OutOfMemoryError(f"{name}: full")
        made.append(allocate(nbytes, kind, name=name))
        return made[-1]

    monkeypatch.setattr(loading.device.memory, "allocate", fail)
    stream = loading.stream()
    with pytest.raises(OutOfMemoryError, match="full"):
        await stream.run()
    stream.close()


def hold_reads(patch: pytest.MonkeyPatch, num_reads: int) -> None:
    """Let so many reads pass; the others never end."""
    passed = iter(range(num_reads))

    def holding(read: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def held(reader: FileReader, *arguments: object) -> object:
            if next(passed, None) is None:
                await asyncio.Event().wait()
            return await read(reader, *arguments)

        return held

    for name in ("read", "read_around"):
        patch.setattr(FileReader, name, holding(getattr(FileReader, name)))


@pytest.mark.parametrize("mode", [ReadMode.CACHED, ReadMode.DIRECT])
@pytest.mark.parametrize("after", [0, 1, 3, 6])
async def test_a_cancelled_load_leaves_nothing_behind(
    loading: Loading, after: int, mode: ReadMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = loading.stream(strategy=strategy_of(mode))
    if after == 6:
        hold_reads(monkeypatch, 9)
    task = asyncio.create_task(stream.run())
    for _ in range(after):
        await asyncio.sleep(0)
    if after == 6:
        await stream.layer_submitted(-1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    if after:
        with pytest.raises(EngineClosedError):
            await stream.layer_submitted(2)
    stream.close()


async def test_a_plan_without_tensors_is_done_at_once(loading: Loading) -> None:
    stream = loading.stream(plan=LoadPlan((), (), (), ()))
    await stream.run()
    assert stream.progress.done and stream.progress.share == 1.0
    stream.close()


async def test_acquiring_waits_for_a_release_and_may_be_cancelled(device: Device) -> None:
    ring = StagingRing(device.memory, num_slots=1, slot_bytes=256)
    slot = await ring.acquire()
    waiting = asyncio.create_task(ring.acquire())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    ring.release(slot, device.compute.timeline, device.compute.submit([]))
    assert await ring.acquire() is slot
    ring.close()
    device.wait_idle()
    device.memory.collect()


async def test_who_waits_for_a_slot_gets_it_before_who_gave_it_back(device: Device) -> None:
    ring, order = StagingRing(device.memory, num_slots=1, slot_bytes=256), []

    async def use(name: str) -> None:
        for _ in range(3):
            slot = await ring.acquire()
            order.append(name)
            await asyncio.sleep(0)
            ring.release(slot, device.compute.timeline, 0)

    await asyncio.gather(*(use(name) for name in "abc"))
    assert order == list("abcabcabc")
    ring.close()
    device.memory.collect()


async def test_a_slot_stays_in_the_ring_when_the_wait_for_the_device_is_cancelled(device: Device) -> None:
    ring = StagingRing(device.memory, num_slots=1, slot_bytes=256)
    slot = await ring.acquire()
    never = device.compute.timeline.last_submitted + 1
    ring.release(slot, device.compute.timeline, never)
    waiting = asyncio.create_task(ring.acquire())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ring.num_free == 1
    assert device.compute.submit([]) == never
    assert await asyncio.wait_for(ring.acquire(), 10) is slot
    ring.close()
    device.wait_idle()
    device.memory.collect()


async def test_a_closed_reader_has_no_threads_and_no_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)))
    reader = FileReader([path], WARM)
    target = bytearray(16)
    await reader.read(0, 100, memoryview(target))
    assert target == bytes(range(100, 116))
    with pytest.raises(CheckpointError, match="16 bytes expected at byte 250, got 6"):
        await reader.read(0, 250, memoryview(target))
    reader.close()
    assert not reader_threads() and descriptors_of([path]) == 0
    with pytest.raises(CheckpointError, match="No such file"):
        FileReader([path, tmp_path / "none"], WARM)
    assert descriptors_of([path]) == 0
