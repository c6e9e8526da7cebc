"""Files that are on their way: what is there is read, what is not is waited for, and what never comes is told."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from tests.checkpoint import builders
from tests.checkpoint.gguf.builders import write_parts
from tests.checkpoint.gguf.golden_files import gguf_metadata, gguf_tensors
from tests.checkpoint.partial_files import Coming
from unicorn_async.checkpoint.checkpoint import Checkpoint
from unicorn_async.checkpoint.file_identity import FileIdentity, identify_files
from unicorn_async.checkpoint.file_stamp import FileStamp
from unicorn_async.checkpoint.partial_file import ModelDownload
from unicorn_async.errors import CheckpointError, DownloadError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONTENT = bytes(range(256)) * 100


class Reader(threading.Thread):
    """Does something that may have to wait, and keeps what came of it."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.found: object = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.found = self._work()
        except Exception as exc:
            self.error = exc


@pytest.fixture
def coming(tmp_path: Path) -> Coming:
    return Coming(tmp_path / "m", CONTENT, 1000)


def test_what_is_there_is_read_at_once_and_the_rest_when_it_comes(coming: Coming) -> None:
    with coming.file.open() as opened:
        assert opened.read(1000) == CONTENT[:1000]
        reader = Reader(lambda: opened.read())
        coming.come(9000)
        assert reader.is_alive()
        coming.come()
        reader.join(120)
        assert reader.found == CONTENT[1000:]
        opened.seek(-5, 2)
        assert opened.read() == CONTENT[-5:]


def test_all_waiters_are_told_what_ended_the_download(coming: Coming) -> None:
    with coming.file.open() as opened:
        readers = [Reader(lambda: opened.read(2000)), Reader(lambda: coming.file.wait(1001))]
        coming.file.fail(DownloadError("no more"))
        coming.file.fail(DownloadError("later"))
        for reader in readers:
            reader.join(120)
            assert isinstance(reader.error, DownloadError) and str(reader.error) == "no more"
    with pytest.raises(DownloadError, match=r"^no more$"):
        coming.file.wait(10)


async def test_a_loop_waits_for_bytes_and_then_for_what_they_are(coming: Coming) -> None:
    await coming.file.reached(1000)
    bytes_there = asyncio.create_task(coming.file.reached(len(CONTENT)))
    settled = asyncio.create_task(coming.file.settled())
    cancelled = asyncio.create_task(coming.file.reached(5000))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.to_thread(coming.come)
    await asyncio.wait_for(bytes_there, 120)
    assert not settled.done() and not coming.file.is_settled
    await asyncio.to_thread(coming.settle)
    await asyncio.wait_for(settled, 120)
    assert coming.file.is_settled and coming.path.read_bytes() == CONTENT
    coming.file.fail(DownloadError("too late"))
    await coming.file.settled()


async def test_a_loop_is_told_what_ended_the_download(coming: Coming) -> None:
    waiting = asyncio.create_task(coming.file.settled())
    await asyncio.sleep(0)
    await asyncio.to_thread(coming.file.fail, DownloadError("no more"))
    with pytest.raises(DownloadError, match=r"^no more$"):
        await asyncio.wait_for(waiting, 120)


def test_bytes_that_are_taken_back_are_missed(coming: Coming, tmp_path: Path) -> None:
    with coming.file.open() as opened:
        (tmp_path / "m.part").write_bytes(b"")
        with pytest.raises(CheckpointError, match="truncated at byte 0 while it is downloaded"):
            opened.read(10)


def test_a_directory_whose_headers_are_there_is_known_as_when_all_of_it_is(tmp_path: Path) -> None:
    shards = [{"a": builders.tensor("BF16", 100, 10)}, {"b": builders.tensor("BF16", 9, 100)}]
    whole = Checkpoint.read(builders.write(tmp_path, *shards))
    files = {path: Coming.of(path, 200, turn=turn) for turn, path in enumerate(whole.files)}
    partial = {path: one.file for path, one in files.items()}
    found = Checkpoint.read(tmp_path, partial=partial)
    assert (found.tensors, found.files) == (whole.tensors, whole.files)
    download = ModelDownload("org/m", tmp_path, partial)
    for path, one in files.items():
        assert not download.is_settled
        one.settle()
        assert FileStamp.of(path) == partial[path].stamp
    assert found.stamps == tuple(map(FileStamp.of, found.files)) and download.is_settled


def test_a_gguf_model_in_parts_is_known_by_their_headers(tmp_path: Path) -> None:
    tensors = gguf_tensors("gemma3", "F16")
    names = list(tensors)
    parts = [{name: tensors[name] for name in names[start::2]} for start in range(2)]
    first = write_parts(tmp_path, "m", gguf_metadata("gemma3"), parts)[0]
    whole = Checkpoint.read(first)
    ends = [min(t.offset for t in whole.tensors.values() if t.file == file) for file in range(2)]
    files = {path: Coming.of(path, end) for path, end in zip(whole.files, ends, strict=True)}
    found = Checkpoint.read(first, partial={path: one.file for path, one in files.items()})
    assert (found.tensors, found.files, found.config) == (whole.tensors, whole.files, whole.config)


def test_a_file_on_its_way_is_to_the_weight_cache_what_it_will_be(tmp_path: Path) -> None:
    content = builders.file_bytes({"a": builders.tensor("BF16", 100, 10)})
    (tmp_path / "config.json").write_text("{}")
    one = Coming(tmp_path / "model.safetensors", content, 300)
    found = Checkpoint.read(tmp_path, partial={one.path: one.file})
    before = identify_files(found)
    blob = tmp_path / "blobs" / one.file.sha256
    blob.parent.mkdir()
    blob.write_bytes(content)
    one.path.symlink_to(blob)
    assert before == (FileIdentity.of(one.path, found.tensors["a"].offset),)
    assert before[0].blob == one.file.sha256
