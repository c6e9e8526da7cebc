"""Files that are loaded while they come: each chunk when its bytes are there, the last layer when they are right."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.checkpoint.partial_files import Coming
from unicorn_async.errors import DownloadError
from unicorn_async.loader import pipeline
from unicorn_async.loader.read_strategy import ReadMode, download_strategy
from unicorn_async.loader.reader import FileReader

from .loading import Loading, descriptors_of, download, reader_threads

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.loader.stream import LoadStream


@pytest.fixture
def files(loading: Loading) -> list[Coming]:
    """Files of which the headers are there."""
    starts = [min(t.offset for t in loading.checkpoint.tensors.values() if t.file == file) for file in range(2)]
    paths = loading.checkpoint.files
    return [Coming.of(path, start, turn=turn) for turn, (path, start) in enumerate(zip(paths, starts, strict=True))]


def stream_of(loading: Loading, files: list[Coming]) -> LoadStream:
    return loading.stream(partial={one.path: one.file for one in files}, strategy=download_strategy(2))


async def loaded_to(stream: LoadStream, nbytes: int) -> None:
    async for progress in stream.watch():
        if progress.bytes_loaded >= nbytes:
            return


async def test_chunks_are_loaded_as_they_come_and_the_last_layer_waits_for_the_check(
    loading: Loading, files: list[Coming]
) -> None:
    stream = stream_of(loading, files)
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        group.create_task(stream.run())
        files[0].come()
        of_first = sum(tensor.nbytes for tensor in loading.checkpoint.tensors.values() if tensor.file == 0)
        await loaded_to(stream, of_first)
        assert stream.progress.bytes_loaded == of_first
        files[1].come()
        await loaded_to(stream, stream.progress.bytes_total)
        assert not stream.all_active
        for one in files:
            one.settle()
        await stream.checked()
    for dest in loading.plan.destinations:
        assert download(loading.device, loading.places[dest.name]) == loading.expected(dest.name, dest.dtype), dest.name
    await stream.close()


async def test_what_comes_first_is_loaded_first_whatever_its_layer(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_WORKERS_PER_THREAD", 1)  # who waits holds up others
    *earlier, last = loading.checkpoint.files
    files = [Coming.of(path, 0, turn=1) for path in earlier]
    files.append(Coming.of(last, 0, turn=0))
    stream = stream_of(loading, files)
    of_last = [tensor.nbytes for tensor in loading.checkpoint.tensors.values() if tensor.file == len(earlier)]
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        group.create_task(stream.run())
        files[-1].settle()
        await loaded_to(stream, sum(of_last))
        for one in files[:-1]:
            one.settle()
    await stream.close()


async def test_a_download_that_ends_early_ends_the_load(loading: Loading, files: list[Coming]) -> None:
    stream = stream_of(loading, files)
    running = asyncio.create_task(stream.run())
    files[0].come()
    await asyncio.wait_for(loaded_to(stream, 1), 120)
    for one in files:
        one.file.fail(DownloadError("no room is left"))
    with pytest.raises(DownloadError, match=r"^no room is left$"):
        await asyncio.wait_for(running, 120)
    assert not reader_threads() and not stream.all_active
    with pytest.raises(DownloadError, match=r"^no room is left$"):
        await stream.layer_submitted(loading.plan.layers[-1])
    await stream.close()


async def test_bytes_that_turn_out_to_be_others_never_make_the_last_layer(
    loading: Loading, files: list[Coming]
) -> None:
    stream = stream_of(loading, files)
    running = asyncio.create_task(stream.run())
    for one in files:
        one.come()
    await asyncio.wait_for(loaded_to(stream, stream.progress.bytes_total), 120)
    files[0].settle()
    files[1].file.fail(DownloadError("another sha256"))
    with pytest.raises(DownloadError, match=r"^another sha256$"):
        await asyncio.wait_for(running, 120)
    assert stream.progress.layers_active < stream.progress.layers_total
    await stream.close()


async def test_a_load_that_waits_for_bytes_can_be_cancelled(loading: Loading, files: list[Coming]) -> None:
    stream = stream_of(loading, files)
    running = asyncio.create_task(stream.run())
    await stream.begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await stream.close()


def test_a_file_whose_download_has_ended_leaves_no_thread_and_no_descriptor(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.write_bytes(bytes(100))
    ended = Coming(tmp_path / "part", bytes(100), 10)
    ended.file.fail(DownloadError("the download was stopped"))
    with pytest.raises(DownloadError, match=r"^the download was stopped$"):
        FileReader([whole, ended.path], partial={ended.path: ended.file})
    assert not reader_threads() and descriptors_of([whole]) == 0


def test_what_has_just_come_is_read_through_the_page_cache() -> None:
    assert download_strategy(64).mode is ReadMode.WARM
    assert download_strategy(64, num_threads=3).num_threads == 3
