"""Verifying: what was read whole is compared with what it was."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING

import pytest

from unicorn_async.cache import verify as cache_verify
from unicorn_async.cache.entry import ENTRY_FILE, TENSORS_FILE, CacheEntry
from unicorn_async.cache.folder import CacheFolder
from unicorn_async.cache.verify import Verification, Verifier
from unicorn_async.checkpoint.safetensors import read_header
from unicorn_async.errors import CacheError
from unicorn_async.ops.host_checksum import HostChecksum

from .cache_files import write_checkpoint, write_entry

if TYPE_CHECKING:
    from pathlib import Path


class Verified:
    """An entry, and what verifying says of it now."""

    def __init__(self, tmp_path: Path) -> None:
        self.checkpoint = write_checkpoint(tmp_path / "model")
        self.folder = CacheFolder(tmp_path / "weights")
        self.path = self.folder.folder_of(write_entry(self.folder, self.checkpoint).key)
        self.tensors = self.path / TENSORS_FILE

    def verify(self) -> Verification:
        [stored] = self.folder.entries()
        return Verifier(HostChecksum).verify(stored)

    def differences(self) -> str:
        return "\n".join(self.verify().differences)

    @property
    def entry(self) -> CacheEntry:
        return CacheEntry.read(self.path)


@pytest.fixture
def verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verified:
    monkeypatch.setattr(cache_verify, "_PIECE_BYTES", 1024)
    return Verified(tmp_path)


def flip(path: Path, offset: int) -> None:
    """Change a byte and keep the time."""
    found = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def test_a_sound_entry_is_noted_with_its_hashes_and_stays_as_old(verified: Verified) -> None:
    os.utime(verified.path / ENTRY_FILE, (1000, 1000))
    assert verified.differences() == ""
    entry = verified.entry
    assert entry.sha256 == hashlib.sha256(verified.tensors.read_bytes()).hexdigest()
    for source in entry.sources:
        with open(source.path, "rb") as file:
            assert source.sha256 == hashlib.sha256(file.read()).hexdigest()
    assert (verified.path / ENTRY_FILE).stat().st_mtime == 1000
    assert verified.differences() == ""
    assert sorted(path.name for path in verified.path.iterdir()) == [ENTRY_FILE, TENSORS_FILE]


def test_a_damaged_tensor_is_named(verified: Verified) -> None:
    flip(verified.tensors, read_header(verified.tensors)["0.up"].offset + 5)
    assert verified.differences().endswith("tensor '0.up' is damaged")
    assert verified.entry.sha256 == ""


def test_bytes_that_no_checksum_covers_are_noticed_by_the_second_time(verified: Verified) -> None:
    header = read_header(verified.tensors)["0.norm"]
    assert verified.differences() == ""
    flip(verified.tensors, header.offset + header.nbytes - 1)  # in the rest of its last page
    assert "is not the file any more that was verified before" in verified.differences()


def test_of_which_sources_too_little_is_known_is_said(verified: Verified, tmp_path: Path) -> None:
    first, second = verified.checkpoint.files
    flip(first, first.stat().st_size // 2)  # nothing that is known of it tells
    blob = tmp_path / "blobs" / hashlib.sha256(second.read_bytes()).hexdigest()
    blob.parent.mkdir()
    second.rename(blob)
    second.symlink_to(blob)
    found = verified.verify()
    assert (found.differences, found.first_hashed, found.hashed_before) == ((), (str(first),), ())
    found = verified.verify()
    assert (found.differences, found.first_hashed, found.hashed_before) == ((), (), (str(first),))


def test_a_source_that_changed_behind_its_time_is_noticed_by_the_second_time(verified: Verified) -> None:
    assert verified.differences() == ""
    flip(verified.checkpoint.files[0], verified.checkpoint.files[0].stat().st_size - 1)
    assert "model-00001-of-00002.safetensors: has another SHA-256" in verified.differences()


def test_sources_that_differ_are_named(verified: Verified) -> None:
    first, second = verified.checkpoint.files
    os.utime(first, (1, 1))
    second.unlink()
    said = verified.differences()
    assert f"{first}: was written to after the entry was made" in said
    assert f"{second}: No such file or directory" in said
    os.truncate(first, 100)
    assert "bytes when the entry was made, has 100" in verified.differences()
    assert all(not source.sha256 for source in verified.entry.sources)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_a_source_that_is_no_file_is_not_read(verified: Verified, kind: str, tmp_path: Path) -> None:
    fields = json.loads((verified.path / ENTRY_FILE).read_text())
    places = {"pipe": str(tmp_path / "pipe"), "device": "/dev/zero", "folder": "/"}
    os.mkfifo(tmp_path / "pipe")
    fields["sources"][0]["path"] = places[kind]
    (verified.path / ENTRY_FILE).write_text(json.dumps(fields))
    assert f"{places[kind]}: is no file" in verified.differences()


def test_a_damaged_entry_says_how(verified: Verified) -> None:
    os.truncate(verified.tensors, 4096)
    assert "tensors.safetensors: expected" in verified.differences()


def test_an_interrupt_ends_the_threads(verified: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Verifier._read

    def interrupted(self: Verifier, path: Path, start: int, end: int) -> object:
        if path == verified.tensors:
            raise KeyboardInterrupt
        return read(self, path, start, end)

    monkeypatch.setattr(Verifier, "_read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        verified.differences()
    assert verified.entry.sha256 == ""


def test_hashes_that_can_not_be_noted_are_an_error(verified: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache_verify, "write_synced", refuse)
    with pytest.raises(CacheError, match="the hashes can't be noted: Permission denied"):
        verified.differences()
