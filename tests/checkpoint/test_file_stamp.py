"""Files that change between two looks at them, and disks that fail, by every way of reading."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from unicorn_async.checkpoint.checkpoint import Checkpoint
from unicorn_async.checkpoint.file_stamp import FileStamp
from unicorn_async.checkpoint.strict_json import MAX_FILE_BYTES, read_object
from unicorn_async.errors import CheckpointError
from unicorn_async.loader.open_file import page_memory
from unicorn_async.loader.read_strategy import ReadMode, ReadStrategy
from unicorn_async.loader.reader import FileReader

from . import builders

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(bytes(10_000))
    return tmp_path / "file"


def test_a_file_that_nobody_touched_has_the_same_stamp(path: Path) -> None:
    stamp = FileStamp.of(path)
    with path.open("rb") as file:
        assert FileStamp.of(path, file.fileno()) == stamp
    stamp.check(path, FileStamp.of(path))


def test_the_difference_is_named(path: Path) -> None:
    stamp = FileStamp.of(path)
    others = {
        "truncated: 10000 bytes when its header was read, 9999 now": replace(stamp, nbytes=9999),
        "changed: 10000 bytes when its header was read, 10001 now": replace(stamp, nbytes=10_001),
        "replaced by another file": replace(stamp, inode=stamp.inode + 1),
        "written to after its header": replace(stamp, mtime_ns=stamp.mtime_ns + 1),
    }
    for message, now in others.items():
        with pytest.raises(CheckpointError, match=message) as caught:
            stamp.check(path, now)
        assert str(path) in str(caught.value)


def test_a_file_that_is_gone_has_no_stamp(path: Path) -> None:
    path.unlink()
    with pytest.raises(CheckpointError, match="No such file"):
        FileStamp.of(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (FileStamp.of, read_object):
        with pytest.raises(CheckpointError, match="pipe: is no regular file"):
            read(tmp_path / "pipe")


def test_a_json_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(CheckpointError, match=r"config\.json: 16777217 bytes"):
        read_object(tmp_path / "config.json")


def test_a_checkpoint_has_the_stamps_of_its_files(tmp_path: Path) -> None:
    shards = [{name: builders.tensor("F32", 4)} for name in ("a", "b")]
    checkpoint = Checkpoint.read(builders.write(tmp_path / "model", *shards))
    assert checkpoint.stamps == tuple(FileStamp.of(file) for file in checkpoint.files)
    assert len(checkpoint.stamps) == 2


@pytest.mark.parametrize("mode", ReadMode)
async def test_a_reader_notices_a_file_that_is_written_to(mode: ReadMode, path: Path) -> None:
    stamp = FileStamp.of(path)
    reader = FileReader([path], ReadStrategy(mode, 1), stamps=[stamp])
    await reader.check_unchanged()
    os.utime(path, ns=(0, stamp.mtime_ns + 1))
    with pytest.raises(CheckpointError, match="written to"):
        await reader.check_unchanged()
    reader.close()
    with pytest.raises(CheckpointError, match="written to"):
        FileReader([path], ReadStrategy(mode, 1), stamps=[stamp])


@pytest.mark.parametrize("mode", ReadMode)
async def test_a_disk_that_fails_is_an_error_with_the_place(
    mode: ReadMode, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int, buffers: object, offset: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    reader = FileReader([path], ReadStrategy(mode, 1))
    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(CheckpointError, match="file: reading at byte 5000: Input/output error"):
        await reader.read(0, 5000, memoryview(bytearray(100)))
    if reader.is_direct:
        with pytest.raises(CheckpointError, match="file: reading at byte 5000: Input/output error"):
            await reader.read_around(0, 5000, 100, page_memory(8192))
    reader.close()
