"""Faults while a model loads: a clear error, nothing left behind, and the same process loads the model again."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from unicorn_async.config import WeightScheme
from unicorn_async.errors import CheckpointError, OutOfMemoryError
from unicorn_async.loader.allocator import BackgroundAllocator
from unicorn_async.loader.staging import StagingBuffer, StagingRing

from .answers import PROMPT, answer
from .leftovers import no_leftovers
from .load_faults import DeviceMemoryLimit, FailingDisk, LoadMoments
from .loading_gate import HELD_FROM, LoadingGate, some_layers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .conftest import OpenEngine, WriteModel

WEIGHTS = "model.safetensors"
SCHEMES = [WeightScheme.AUTO, WeightScheme.INT8]  # read straight into place where that is mapped, and staged
STRAIGHT = pytest.mark.whole("memory that runs out where tensors are read straight into place")
SHARES = [share / 16 for share in range(17)]  # of the moments of a load


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch, directory: Path) -> Iterator[None]:
    with no_leftovers(monkeypatch):
        yield
    assert not open_files(directory)


@pytest.fixture
def directory(model_directory: WriteModel, tmp_path: Path) -> Path:
    """A copy of a model, to do damage to."""
    return shutil.copytree(model_directory("gemma3"), tmp_path / "model")


def open_files(directory: Path) -> list[str]:
    """This process's open files in a directory."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:  # the one that listed them
            continue
    return [link for link in links if link.startswith(f"{directory.resolve()}/")]


async def tokens(open_engine: OpenEngine, model: Path, scheme: WeightScheme = WeightScheme.AUTO) -> list[int]:
    """Load a model and answer."""
    async with open_engine(model, weights=scheme) as engine:
        await engine.loaded()
        return (await answer(engine, max_tokens=8)).ids


async def failed_load(open_engine: OpenEngine, model: Path, scheme: WeightScheme = WeightScheme.AUTO) -> str:
    """Load a model that can't be read, with a request that waits for it; return the error's text."""
    async with open_engine(model, weights=scheme) as engine:
        waiting = asyncio.create_task(answer(engine))
        with pytest.raises(CheckpointError) as caught:
            await engine.loaded()
        with pytest.raises(CheckpointError):
            await waiting
    return str(caught.value)


async def held_load(
    open_engine: OpenEngine, model: Path, patch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    """Load a model, change its file once some layers are active, and go on to the end."""
    with patch.context() as held:
        gate = LoadingGate(held, HELD_FROM)
        async with open_engine(model) as engine:
            await some_layers(engine)
            change(model / WEIGHTS)
            gate.open()
            await engine.loaded()
            await answer(engine, max_tokens=2)


def truncate(path: Path) -> None:
    os.truncate(path, HELD_FROM)


def overwrite(path: Path) -> None:
    """Write other bytes behind what was read, without changing the size."""
    stamp = path.stat()
    with path.open("r+b") as file:
        file.seek(-1000, os.SEEK_END)
        file.write(bytes(1000))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))  # a file system's clock may be too coarse to tell


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (truncate, "truncated"),
        (overwrite, "written to after its header was read"),
        (lengthen, r"changed: \d+ bytes when its header was read, \d+ now"),
    ],
)
async def test_a_file_that_changes_while_it_is_loaded(
    change: Callable[[Path], None],
    message: str,
    directory: Path,
    open_engine: OpenEngine,
    model_directory: WriteModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = await tokens(open_engine, directory)
    with pytest.raises(CheckpointError, match=rf"{WEIGHTS}: {message}"):
        await held_load(open_engine, directory, monkeypatch, change)
    shutil.copyfile(model_directory("gemma3") / WEIGHTS, directory / WEIGHTS)
    assert await tokens(open_engine, directory) == wanted


async def test_a_file_that_another_takes_the_name_of_is_loaded_to_its_end(
    directory: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is open, and still what it was."""

    def replace(path: Path) -> None:
        (path.parent / "other").write_bytes(b"something else")
        os.replace(path.parent / "other", path)

    await held_load(open_engine, directory, monkeypatch, replace)


async def test_a_file_that_is_replaced_before_it_is_opened(
    directory: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, begin = directory / WEIGHTS, BackgroundAllocator.begin

    def replace_and_begin(places: BackgroundAllocator) -> None:
        shutil.copyfile(path, directory / "other")  # the same bytes, but who knows that?
        os.replace(directory / "other", path)
        begin(places)

    with monkeypatch.context() as patch:
        patch.setattr(BackgroundAllocator, "begin", replace_and_begin)
        async with open_engine(directory) as engine:
            with pytest.raises(CheckpointError, match=f"{WEIGHTS}: replaced by another file"):
                await engine.loaded()
    await tokens(open_engine, directory)


@pytest.mark.combinations("every place of the failure with either scheme")
@pytest.mark.parametrize("after_bytes", [0, 100_000, 700_000])
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_disk_that_fails(
    scheme: WeightScheme, after_bytes: int, directory: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = await tokens(open_engine, directory, scheme)
    disk = FailingDisk(monkeypatch, directory, after_bytes=after_bytes)
    message = await failed_load(open_engine, directory, scheme)
    assert f"{WEIGHTS}: reading at byte" in message
    assert message.endswith("Input/output error")
    disk.mend()
    assert await tokens(open_engine, directory, scheme) == wanted


@pytest.mark.parametrize(
    ("scheme", "times"),
    [
        pytest.param(WeightScheme.AUTO, 1, id="once", marks=pytest.mark.whole("one cancellation of a load as it is")),
        pytest.param(WeightScheme.INT8, 3, id="impatiently"),
    ],
)
async def test_a_cancellation_at_any_moment(
    scheme: WeightScheme, times: int, directory: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = LoadMoments(monkeypatch)
    wanted = await tokens(open_engine, directory, scheme)
    numbers = sorted({max(1, round(share * moments.count)) for share in SHARES})
    loop, num_cancelled = asyncio.get_running_loop(), 0
    for number in numbers:
        task = asyncio.create_task(tokens(open_engine, directory, scheme))

        def cancel(now: int, task: asyncio.Task[list[int]] = task, number: int = number) -> None:
            if number <= now < number + times:
                loop.call_soon_threadsafe(task.cancel)

        moments.count, moments.at = 0, cancel
        try:
            assert await task == wanted  # it was too late to cancel anything
        except asyncio.CancelledError:
            num_cancelled += 1
    assert num_cancelled > len(numbers) / 2
    moments.at = lambda number: None
    assert await tokens(open_engine, directory, scheme) == wanted


@pytest.mark.parametrize("scheme", [WeightScheme.INT8, pytest.param(WeightScheme.AUTO, marks=STRAIGHT)])
async def test_device_memory_that_runs_out_on_the_way(
    scheme: WeightScheme, directory: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = DeviceMemoryLimit(monkeypatch)
    wanted = await tokens(open_engine, directory, scheme)
    total = limit.count
    assert total > 2
    num_failed = 0
    for room in range(total):
        limit.count, limit.room = 0, room
        try:
            assert await tokens(open_engine, directory, scheme) == wanted
        except OutOfMemoryError as exc:
            assert re.search(r"\d+ bytes of .* memory needed|out of device memory", str(exc))
            num_failed += 1
        else:
            assert limit.count <= room  # how many staging buffers a load needs depends on how fast it reads
    assert num_failed > total / 2
    limit.room = None
    assert await tokens(open_engine, directory, scheme) == wanted


async def test_requests_while_memory_runs_out(
    directory: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asked already gets the error, not a wait without an end."""
    limit, gate = DeviceMemoryLimit(monkeypatch), asyncio.Event()
    acquire = StagingRing.acquire

    async def held(ring: StagingRing) -> StagingBuffer:
        await gate.wait()
        return await acquire(ring)

    monkeypatch.setattr(StagingRing, "acquire", held)
    async with open_engine(directory, weights=WeightScheme.INT8) as engine:
        limit.count, limit.room = 0, 0
        gate.set()
        waiting = [asyncio.create_task(answer(engine)), asyncio.create_task(engine.logits(PROMPT))]
        for task in waiting:
            with pytest.raises(OutOfMemoryError):
                await asyncio.wait_for(task, 120)
