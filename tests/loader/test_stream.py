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

import pytest

from unicorn_async.errors import CheckpointError, EngineClosedError, OutOfMemoryError
from unicorn_async.gpu.command import CommandPool
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.gpu.queue import Queue
from unicorn_async.loader import pipeline as source_load
from unicorn_async.loader.read_strategy import ReadMode
from unicorn_async.loader.reader import FileReader
from unicorn_async.loader.staging import StagingRing
from unicorn_async.loader.trace import LoadTrace
from unicorn_async.loader.transfer import make_transfers
from unicorn_async.loader.uploader import Uploader
from unicorn_async.tensor import DType
from unicorn_async.weights.plan import LoadPlan, make_plan

from .loading import (
    WANTED,
    WARM,
    Loading,
    descriptors_of,
    download,
    hold_reads,
    reader_threads,
    strategy_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from unicorn_async.gpu.queue import Submission
    from unicorn_async.gpu.timeline import Timeline
    from unicorn_async.loader.staging import StagingBuffer
    from unicorn_async.weights.chunk import AnyChunk, Chunk


async def test_every_destination_has_the_checkpoints_values(loading: Loading) -> None:
    stream = loading.stream()
    await stream.run()
    for dest in loading.plan.destinations:
        assert download(loading.device, loading.places[dest.name]) == loading.expected(dest.name, dest.dtype), dest.name
    progress = stream.progress
    assert progress.done and progress.share == 1.0
    assert progress.bytes_loaded == sum(len(data) for _, _, data in loading.data.values())
    assert (progress.layers_active, progress.layers_total) == (4, 4)
    await stream.close()


async def test_a_load_took_as_long_as_until_its_last_layer_was_active(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, seconds = StagingRing.close, []
    stream = loading.stream(stages_in_vram=True)

    def noted(ring: StagingRing) -> None:
        seconds.append(stream.progress.seconds)
        close(ring)

    monkeypatch.setattr(StagingRing, "close", noted)
    await stream.run()
    assert seconds == [stream.progress.seconds]
    assert stream.progress.seconds > 0
    await stream.close()


@pytest.mark.parametrize("mode", ReadMode)
@pytest.mark.parametrize("small_bytes", [0, 1 << 20], ids=["alone", "together"])
async def test_every_way_of_reading_brings_the_same_values(
    loading: Loading, mode: ReadMode, small_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_load, "make_transfers", partial(make_transfers, small_bytes=small_bytes))
    stream = loading.stream(strategy=strategy_of(mode))
    await stream.run()
    for dest in loading.plan.destinations:
        assert download(loading.device, loading.places[dest.name]) == loading.expected(dest.name, dest.dtype), dest.name
    await stream.close()


async def test_what_is_staged_near_the_device_needs_no_other_memory_mapped(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    rings: list[StagingRing] = []
    acquire = StagingRing.acquire

    async def noted(ring: StagingRing) -> StagingBuffer:
        rings.append(ring)
        return await acquire(ring)

    async def not_mapped(uploader: Uploader, chunk: Chunk) -> memoryview:
        raise NotImplementedError(chunk.dest)

    monkeypatch.setattr(StagingRing, "acquire", noted)
    monkeypatch.setattr(Uploader, "direct_target", not_mapped)
    stream = loading.stream(stages_in_vram=True)
    await stream.run()
    for dest in loading.plan.destinations:
        assert download(loading.device, loading.places[dest.name]) == loading.expected(dest.name, dest.dtype), dest.name
    assert {ring._in_vram for ring in rings} == {True}
    await stream.close()


@pytest.mark.parametrize("refusal", ["extension", "memory"])
async def test_direct_reads_do_without_memory_that_the_device_takes(
    loading: Loading, refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(view: memoryview, *, name: str) -> object:
        raise OutOfMemoryError(f"{name}: {len(view)} bytes can't be pinned")

    if refusal == "extension":
        monkeypatch.setattr(source_load, "can_import", lambda device: False)
    else:
        monkeypatch.setattr(loading.device.memory, "import_host", refuse)
    stream = loading.stream(strategy=strategy_of(ReadMode.DIRECT))
    await stream.run()
    assert download(loading.device, loading.places["0.qkv"]) == loading.expected("0.qkv", DType.BF16)
    assert download(loading.device, loading.places["1.norm"]) == loading.expected("1.norm", DType.F32)
    await stream.close()


async def test_small_tensors_of_a_layer_are_one_submission(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted: list[list[str]] = []
    submit = Uploader.submit

    async def count(
        uploader: Uploader, placed: Sequence[tuple[Chunk, int]], buffer: StagingBuffer
    ) -> tuple[Timeline, int]:
        submitted.append([chunk.dest for chunk, _ in placed])
        return await submit(uploader, placed, buffer)

    monkeypatch.setattr(Uploader, "submit", count)
    stream = loading.stream(plan=make_plan(loading.checkpoint, WANTED))  # chunks as large as the tensors
    await stream.run()
    conversions = [("1.norm", "1.up"), ("norm",)]
    copies = [("0.norm", "0.qkv", "0.qkv"), ("embed",)] if loading.places["embed"].mapped is None else []
    assert sorted(tuple(sorted(names)) for names in submitted) == sorted(conversions + copies)
    await stream.close()


async def test_what_little_could_be_read_into_its_place_is_staged_with_all_else(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mapping the memory that it lies in would take longer."""
    monkeypatch.setattr(source_load, "_LEAST_DIRECT_SHARE", 1.0)
    monkeypatch.delattr(Uploader, "direct_target")
    stream = loading.stream()
    await stream.run()
    for dest in loading.plan.destinations:
        assert download(loading.device, loading.places[dest.name]) == loading.expected(dest.name, dest.dtype), dest.name
    await stream.close()


@pytest.mark.parametrize(("converted", "is_staged"), [("embed", True), ("b.up", False)])
async def test_less_than_a_sixty_fourth_of_the_bytes_is_not_worth_mapping_memory_for(
    converted: str, is_staged: bool, loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 bytes could be read into their place, beside 6400 or 2048 that are converted."""
    read_into_place: list[str] = []
    direct_target = Uploader.direct_target

    async def noted(uploader: Uploader, chunk: AnyChunk) -> memoryview:
        read_into_place.append(chunk.dest)
        return await direct_target(uploader, chunk)

    monkeypatch.setattr(Uploader, "direct_target", noted)
    wanted = [replace(want, as_f32=True) for want in WANTED if want.name in ("a.norm", converted)]
    is_mapped = loading.places["0.norm"].buffer.is_mappable
    loading.places["embed"] = loading.arena.allocate(200 * 16 * DType.F32.itemsize)
    plan = make_plan(loading.checkpoint, wanted)
    stream = loading.stream(plan=plan)
    await stream.run()
    for dest in plan.destinations:
        assert download(loading.device, loading.places[dest.name]) == loading.expected(dest.name, DType.F32), dest.name
    assert read_into_place == (["0.norm"] if is_mapped and not is_staged else [])
    await stream.close()


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
    await stream.close()


async def test_a_trace_has_every_read_every_submission_and_every_layer(loading: Loading, tmp_path: Path) -> None:
    trace = LoadTrace(tmp_path / "trace.json")
    stream = loading.stream(trace=trace)
    await stream.run()
    await stream.close()
    await trace.write()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    reads = [event for event in events if event["ph"] == "X"]
    assert sum(read["args"]["bytes"] for read in reads) == loading.plan.bytes_to_read
    begun = Counter(event["cat"] for event in events if event["ph"] == "b")
    assert begun["layer"] == len(loading.plan.layers)
    assert begun["conversion"] >= 3
    assert begun["submit"] == begun["conversion"] + begun["upload"] + begun["layer"]
    assert bool(begun["upload"]) == (next(iter(loading.places.values())).mapped is None)
    assert all(event["ts"] >= 0 and event.get("dur", 0) >= 0 for event in events if event["ph"] != "M")


async def test_one_buffer_is_enough(loading: Loading) -> None:
    stream = loading.stream(staging_bytes=1)
    await asyncio.wait_for(stream.run(), 240)
    assert download(loading.device, loading.places["1.up"]) == loading.expected("1.up", DType.F32)
    await stream.close()


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
    await stream.close()


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
    assert bytes(target.mapped) == loading.expected("1.up", DType.F32)
    await task
    pool.close()
    target.close()
    await stream.close()


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
    await stream.close()


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
    await stream.close()


async def test_a_file_that_is_gone_is_an_error(loading: Loading) -> None:
    loading.checkpoint.files[1].unlink()
    stream = loading.stream()
    with pytest.raises(CheckpointError, match="No such file"):
        await stream.run()
    await stream.close()


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
    await stream.close()


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
    await stream.close()


async def test_a_load_that_is_cancelled_in_a_submission_frees_its_buffers_when_the_device_is_done(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, may_end, submit, close = threading.Event(), threading.Event(), Queue.submit_each, StagingRing.close
    waited: list[bool] = []

    def held(queue: Queue, submissions: Sequence[Submission]) -> list[int]:
        entered.set()
        assert may_end.wait(120)
        return submit(queue, submissions)

    def noted_close(ring: StagingRing) -> None:
        queues = (loading.device.transfer, loading.device.compute)
        waited.append(all(queue.timeline.completed() == queue.timeline.last_submitted for queue in queues))
        close(ring)

    monkeypatch.setattr(Queue, "submit_each", held)
    monkeypatch.setattr(StagingRing, "close", noted_close)
    stream = loading.stream()
    task = asyncio.create_task(stream.run())
    await asyncio.to_thread(entered.wait, 120)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert waited and all(waited)
    await stream.close()


async def test_a_plan_without_tensors_is_done_at_once(loading: Loading) -> None:
    stream = loading.stream(plan=LoadPlan((), (), (), ()))
    await stream.run()
    assert stream.progress.done and stream.progress.share == 1.0
    await stream.close()


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
