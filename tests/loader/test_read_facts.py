"""What is in the page cache, by samples."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from unicorn_async.errors import CheckpointError
from unicorn_async.gpu import host_pages
from unicorn_async.gpu.host_memory import HostMemory
from unicorn_async.loader.read_facts import read_facts, resident_share
from unicorn_async.loader.read_strategy import ReadMode, choose_read_strategy

if TYPE_CHECKING:
    from pathlib import Path

MEGABYTE = 1 << 20


def drop(path: Path) -> None:
    """Write the file's pages back and drop them."""
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "one", tmp_path / "two"]
    paths[0].write_bytes(bytes(4 * MEGABYTE))
    paths[1].write_bytes(bytes(12 * MEGABYTE))
    for path in paths:
        drop(path)
    if resident_share(paths, seed=1):
        pytest.skip(f"{tmp_path}: this file system keeps its files in memory")
    return paths


def test_dropped_files_are_not_resident(files: list[Path]) -> None:
    assert resident_share(files) <= 0.1  # earlier samples may have fetched single pages


def test_files_that_were_read_are_resident(files: list[Path]) -> None:
    for path in files:
        path.read_bytes()
    assert resident_share(files) >= 0.9  # the kernel may have taken a page back


def test_files_count_by_their_size(files: list[Path]) -> None:
    files[1].read_bytes()
    assert 0.6 <= resident_share(files, num_samples=500, seed=2) <= 0.9


def test_looking_fetches_single_pages_at_most(files: list[Path]) -> None:
    for seed in range(3):
        resident_share(files, num_samples=16, seed=seed)
    assert resident_share(files, num_samples=500, seed=9) < 0.1


def test_nothing_to_read_is_resident(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert resident_share([]) == resident_share([tmp_path / "empty"]) == 1.0


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        resident_share([tmp_path / "none"])


def test_facts_are_of_these_files_and_this_machine(files: list[Path]) -> None:
    facts = read_facts(files, file_bytes=16 * MEGABYTE, host_bytes=3)
    assert (facts.file_bytes, facts.host_bytes) == (16 * MEGABYTE, 3)
    assert facts.num_cores >= 1
    assert facts.free_bytes is None or facts.free_bytes > MEGABYTE
    assert facts.resident_share <= 0.1


def test_of_files_in_memory_nothing_else_is_looked_up(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for path in files:
        path.read_bytes()
    monkeypatch.setattr(HostMemory, "available_bytes", lambda self: pytest.fail("the free memory was looked up"))
    facts = read_facts(files, file_bytes=16 * MEGABYTE, host_bytes=0)
    assert facts.free_bytes is None
    assert choose_read_strategy(facts).mode is ReadMode.WARM


def test_a_c_library_without_such_reads_is_no_error(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_pages, "_quick_libc", object)
    assert resident_share(files) <= 0.1
    for path in files:
        path.read_bytes()
    assert resident_share(files) >= 0.9
