"""Loading from an entry of the cache: checked before it is used, and left for the checkpoint when it is damaged."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING

import pytest

from unicorn_async.cache.container import container_chunks, container_of
from unicorn_async.checkpoint.safetensors import read_header
from unicorn_async.errors import CheckpointError, DeviceLostError, EngineClosedError
from unicorn_async.loader.checksums import LayerChecksums
from unicorn_async.loader.read_strategy import ReadMode
from unicorn_async.loader.reader import FileReader
from unicorn_async.loader.source import LoadSource, only_checkpoint_error
from unicorn_async.loader.trace import LoadTrace
from unicorn_async.ops.checksum import Checksum
from unicorn_async.ops.host_checksum import HostChecksum

from .loading import CHUNK_BYTES, WARM, descriptors_of, download, hold_reads, strategy_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from unicorn_async.loader.checksums import ChecksumKernel
    from unicorn_async.loader.read_strategy import ReadStrategy

    from .loading import Loading


class Cached:
    """An entry's file with what the checkpoint would become; notes that it was found damaged."""

    def __init__(self, loading: Loading, path: Path) -> None:
        self.path = path
        self.checksum: ChecksumKernel = Checksum(loading.device.info, loading.device.kernels)
        self.damage: list[CheckpointError] = []
        self._plan = loading.plan
        container = container_of(loading.plan.destinations)
        data = bytearray(container.nbytes)
        data[: len(container.header)] = container.header
        self.offsets = container.offsets
        self.checksums = {}
        for dest in loading.plan.destinations:
            content = loading.expected(dest.name, dest.dtype)
            data[self.offsets[dest.name] : self.offsets[dest.name] + len(content)] = content
            checksum = HostChecksum()
            checksum.update(memoryview(content))
            self.checksums[dest.name] = checksum.value()
        path.write_bytes(data)
        self.read_as(WARM)

    def read_as(self, strategy: ReadStrategy) -> None:
        chunks = container_chunks(read_header(self.path), self._plan.destinations, chunk_bytes=CHUNK_BYTES)
        self.source = LoadSource((self.path,), chunks, strategy, checksums=self.checksums)

    def flip(self, dest: str) -> None:
        with self.path.open("r+b") as file:
            file.seek(self.offsets[dest])
            byte = file.read(1)[0]
            file.seek(self.offsets[dest])
            file.write(bytes([byte ^ 0x80]))

    async def damaged(self, error: CheckpointError) -> None:
        self.damage.append(error)


@pytest.fixture
def cached(loading: Loading, tmp_path: Path) -> Iterator[Cached]:
    made = Cached(loading, tmp_path / "tensors.safetensors")
    yield made
    assert descriptors_of([made.path]) == 0


def check_everything(loading: Loading) -> None:
    for dest in loading.plan.destinations:
        assert download(loading.device, loading.places[dest.name]) == loading.expected(dest.name, dest.dtype), dest.name


@pytest.mark.parametrize("mode", ReadMode)
async def test_every_destination_has_its_bytes_however_they_are_read(
    loading: Loading, cached: Cached, mode: ReadMode
) -> None:
    cached.read_as(strategy_of(mode))
    stream = loading.stream(cached=cached)
    assert stream.strategy.mode is mode
    await stream.run()
    check_everything(loading)
    progress = stream.progress
    assert progress.done and progress.from_cache
    assert progress.bytes_loaded == progress.bytes_total == loading.plan.dest_bytes
    assert cached.damage == []
    await stream.close()


@pytest.mark.parametrize(("dest", "good_layers"), [("embed", 0), ("0.norm", 1), ("1.up", 2), ("norm", 3)])
async def test_after_damage_the_checkpoint_brings_what_is_not_active_yet(
    loading: Loading, cached: Cached, dest: str, good_layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached.flip(dest)
    read_from: list[str] = []
    read = FileReader._read

    def noted(reader: FileReader, file: int, *rest: object) -> None:
        read_from.append(reader._paths[file].name)
        read(reader, file, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(FileReader, "_read", noted)
    stream = loading.stream(cached=cached)
    await stream.run()
    check_everything(loading)
    assert [f"tensor {dest!r} is damaged" in str(error) for error in cached.damage] == [True]
    wanted = [chunk for chunk in loading.plan.chunks if chunk.layer in loading.plan.layers[good_layers:]]
    assert sum(name.startswith("model") for name in read_from) == len(wanted)
    progress = stream.progress
    assert progress.done and not progress.from_cache
    assert progress.bytes_loaded == progress.bytes_total == loading.plan.bytes_to_read
    await stream.close()


@pytest.mark.parametrize("how", ["truncated", "gone"])
async def test_a_file_that_can_not_be_read_is_damage(loading: Loading, cached: Cached, how: str) -> None:
    if how == "truncated":
        os.truncate(cached.path, cached.offsets["1.up"] + 100)
    else:
        cached.path.unlink()
    stream = loading.stream(cached=cached)
    watched = asyncio.create_task(anext(aiter(stream.watch())))
    await stream.run()
    check_everything(loading)
    assert len(cached.damage) == 1
    assert not (await watched).done
    await stream.close()


async def test_a_layer_is_not_active_before_its_checksums_were_right(
    loading: Loading, cached: Cached, monkeypatch: pytest.MonkeyPatch
) -> None:
    checksums, held, begun = LayerChecksums.checksums, asyncio.Event(), asyncio.Event()

    async def hold(self: LayerChecksums, *arguments: object) -> dict[str, str]:
        found = await checksums(self, *arguments)  # type: ignore[arg-type]
        begun.set()
        await held.wait()
        return found

    monkeypatch.setattr(LayerChecksums, "checksums", hold)
    stream = loading.stream(cached=cached)
    running = asyncio.create_task(stream.run())
    waiting = asyncio.create_task(stream.layer_submitted(-1))
    await begun.wait()
    async for progress in stream.watch():
        if progress.share == 1.0:  # the others came meanwhile
            break
    assert not waiting.done()
    assert stream.progress.layers_active == 0
    held.set()
    await running
    assert (await waiting)[1] == 1
    await stream.close()


@pytest.mark.parametrize("after", [0, 1, 2, 3, 5, 8, "held"])
@pytest.mark.parametrize("is_damaged", [False, True])
async def test_a_cancelled_load_leaves_nothing_behind(
    loading: Loading, cached: Cached, after: int | str, is_damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_damaged:
        cached.flip("embed")
    if after == "held":
        hold_reads(monkeypatch, 1)
    stream = loading.stream(cached=cached)
    running = asyncio.create_task(stream.run())
    if isinstance(after, int):
        for _ in range(after):
            await asyncio.sleep(0)
    else:
        async for progress in stream.watch():
            if progress.bytes_loaded:
                break
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    if after and not stream.all_active:  # it may have been about to end
        with pytest.raises(EngineClosedError):
            await stream.checked()
    await stream.close()


async def test_a_device_that_fails_is_no_damage(
    loading: Loading, cached: Cached, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose(self: LayerChecksums, *arguments: object) -> dict[str, str]:
        raise DeviceLostError("gone")

    monkeypatch.setattr(LayerChecksums, "checksums", lose)
    stream = loading.stream(cached=cached)
    with pytest.raises(DeviceLostError):
        await stream.run()
    assert cached.damage == []
    await stream.close()


async def test_a_checkpoint_that_fails_too_is_the_error(loading: Loading, cached: Cached) -> None:
    cached.flip("1.up")
    for path in loading.checkpoint.files:
        os.truncate(path, 100)
    stream = loading.stream(cached=cached)
    with pytest.raises(CheckpointError, match=r"model-0000\d.*truncated"):
        await stream.run()
    assert len(cached.damage) == 1
    await stream.close()


async def test_a_trace_has_the_checks(loading: Loading, cached: Cached, tmp_path: Path) -> None:
    trace = LoadTrace(tmp_path / "trace.json")
    stream = loading.stream(cached=cached, trace=trace)
    await stream.run()
    await stream.close()
    await trace.write()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    checks = [event for event in events if event["ph"] == "b" and event.get("cat") == "check"]
    assert sum(event["args"]["bytes"] for event in checks) == loading.plan.dest_bytes


def test_other_errors_among_those_of_files_count() -> None:
    damage, other = CheckpointError("a"), OSError("b")
    assert only_checkpoint_error(ExceptionGroup("", [damage, ExceptionGroup("", [CheckpointError("c")])])) is damage
    assert only_checkpoint_error(ExceptionGroup("", [damage, other])) is None
    assert only_checkpoint_error(other) is None
