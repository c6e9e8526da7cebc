"""The name of an entry: other for everything that would make other weights, the same for all else."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from unicorn_async.cache.key import cache_key, is_key, is_made
from unicorn_async.checkpoint.checkpoint import Checkpoint
from unicorn_async.checkpoint.file_identity import FileIdentity, blob_of, identify_files
from unicorn_async.config import WeightScheme
from unicorn_async.errors import CheckpointError

from .cache_files import key_of, plan_of, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def rewrite(path: Path, offset: int, data: bytes) -> None:
    """Change bytes and keep the time."""
    found = path.stat()
    with path.open("r+b") as file:
        file.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
        file.write(data)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def edit_config(directory: Path) -> None:
    (directory / "config.json").write_text(json.dumps({"architectures": ["Test"], "rope_theta": 1}))


def edit_last_bytes(directory: Path) -> None:
    rewrite(next(directory.glob("*1-of*.safetensors")), -2, b"\x12\x34")


def edit_time(directory: Path) -> None:
    path = next(directory.glob("*2-of*.safetensors"))
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 1))


def rename_tensors(directory: Path) -> None:
    """The same header's size and the same bytes under other names."""
    path = next(directory.glob("*1-of*.safetensors"))
    data = path.read_bytes()
    rewrite(path, 0, data.replace(b'"format": "pt"', b'"format": "tf"'))


@pytest.mark.parametrize("edit", [edit_config, edit_last_bytes, edit_time, rename_tensors])
def test_another_checkpoint_has_another_key(tmp_path: Path, edit: Callable[[Path], None]) -> None:
    before = key_of(write_checkpoint(tmp_path))
    edit(tmp_path)
    assert key_of(Checkpoint.read(tmp_path)) != before


def test_what_is_made_of_it_counts(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path)
    files, plan = identify_files(checkpoint), plan_of(checkpoint)
    other = replace(plan, destinations=plan.destinations[:-1])
    keys = {
        key_of(checkpoint),
        key_of(checkpoint, WeightScheme.INT4),
        key_of(checkpoint, lora_digest="ab"),
        cache_key(files, checkpoint, other, scheme=WeightScheme.INT8, lora_digest=""),
        cache_key(files, checkpoint, plan, scheme=WeightScheme.INT8, lora_digest="", layout_version=999),
        cache_key(files[::-1], checkpoint, plan, scheme=WeightScheme.INT8, lora_digest=""),
    }
    assert len(keys) == 6
    assert all(is_key(key) for key in keys)


def test_where_it_lies_and_the_size_of_chunks_do_not_count(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copy2)
    assert key_of(Checkpoint.read(tmp_path / "b")) == key_of(checkpoint)


def test_a_blob_s_name_stands_for_its_bytes(tmp_path: Path) -> None:
    name = "0123456789abcdef" * 4
    blob = tmp_path / "blobs" / name
    blob.parent.mkdir()
    blob.write_bytes(b"x" * 10_000)
    link = tmp_path / "snapshots" / "model.safetensors"
    link.parent.mkdir()
    link.symlink_to(f"../blobs/{name}")
    assert blob_of(link) == name
    before = FileIdentity.of(link, 100)
    os.utime(blob, (1, 1))
    assert FileIdentity.of(link, 100) == before
    assert blob_of(blob) == ""
    plain = tmp_path / "blobs" / "main"
    plain.write_bytes(b"")
    link.unlink()
    link.symlink_to(plain)
    assert blob_of(link) == ""


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 70_000])
def test_files_of_any_size_are_sampled(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(size))
    identity = FileIdentity.of(path, size // 2)
    assert identity.nbytes == size
    if size:
        rewrite(path, size - 1, b"\1")
        assert FileIdentity.of(path, size // 2) != identity


def test_a_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="none: No such file"):
        FileIdentity.of(tmp_path / "none", 10)


def test_plain_copies_are_not_worth_an_entry(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path)
    assert is_made(plan_of(checkpoint))
    assert not is_made(plan_of(checkpoint, WeightScheme.AUTO))
    assert not is_made(plan_of(checkpoint, WeightScheme.F16))
