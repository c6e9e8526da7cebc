"""Reads through the page cache and past it: any offset, any size, the file's end, no page too many."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from unicorn_async.loader.open_file import PAGE_BYTES, PIECE_BYTES, CachedFile, DirectFile, page_memory, span_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from unicorn_async.loader.open_file import OpenFile

SIZE = 5 * PAGE_BYTES + 1234
DATA = np.random.default_rng(3).integers(0, 256, SIZE, np.uint8).tobytes()
OFFSETS = (0, 1, 8, PAGE_BYTES - 1, PAGE_BYTES, 2 * PAGE_BYTES + 512, SIZE - 1, SIZE, SIZE + 100)
SIZES = (1, 7, 512, PAGE_BYTES, PAGE_BYTES + 1, SIZE, 2 * SIZE)


def open_direct(path: Path) -> DirectFile:
    try:
        return DirectFile(path)
    except OSError as exc:
        pytest.skip(f"{path}: the file system has no O_DIRECT: {exc.strerror}")


OPENERS: dict[str, Callable[[Path], OpenFile]] = {
    "cached": CachedFile,
    "dropped": lambda path: CachedFile(path, drops=True),
    "direct": open_direct,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "file"
    file.write_bytes(DATA)
    return file


@pytest.fixture(params=OPENERS)
def opened(path: Path, request: pytest.FixtureRequest) -> Iterator[OpenFile]:
    file = OPENERS[request.param](path)
    yield file
    file.close()


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("nbytes", SIZES)
def test_a_fill_has_the_files_bytes_and_tells_where_they_end(opened: OpenFile, offset: int, nbytes: int) -> None:
    target = bytearray(b"\xee" * nbytes)
    expected = DATA[offset : offset + nbytes]
    assert opened.fill([memoryview(target)], offset) == len(expected)
    assert target == expected + b"\xee" * (nbytes - len(expected))


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, PAGE_BYTES, 5), (PAGE_BYTES - 1, 2), (SIZE - 13, 4, 4)])
def test_parts_are_filled_one_after_the_other(opened: OpenFile, sizes: tuple[int, ...]) -> None:
    parts = [bytearray(size) for size in sizes]
    assert opened.fill([memoryview(part) for part in parts], 5) == sum(sizes)
    assert b"".join(parts) == DATA[5 : 5 + sum(sizes)]


def test_asking_ahead_changes_nothing(opened: OpenFile) -> None:
    opened.will_need(0, 1 << 30)
    target = bytearray(SIZE)
    assert opened.fill([memoryview(target)], 0) == SIZE
    assert target == DATA


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("nbytes", SIZES)
def test_whole_pages_hold_the_bytes_where_the_offset_says(path: Path, offset: int, nbytes: int) -> None:
    file = open_direct(path)
    pages = page_memory(span_bytes(offset, nbytes))
    filled = file.fill_around(pages, offset, nbytes)
    file.close()
    expected = DATA[offset : offset + nbytes]
    assert filled == len(expected)
    start = offset % PAGE_BYTES
    assert bytes(pages[start : start + filled]) == expected


def test_a_direct_read_that_ends_early_goes_on_at_a_whole_page(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, offsets = os.preadv, []

    def short(descriptor: int, parts: list[memoryview], offset: int) -> int:
        offsets.append(offset)
        return whole(descriptor, [parts[0][: 2 * PAGE_BYTES]], offset)

    file = open_direct(path)
    monkeypatch.setattr(os, "preadv", short)
    target = bytearray(SIZE)
    assert file.fill([memoryview(target)], 0) == SIZE
    file.close()
    assert target == DATA
    assert offsets == [0, 2 * PAGE_BYTES, 4 * PAGE_BYTES]


def test_a_span_is_whole_pages() -> None:
    assert span_bytes(0, 1) == span_bytes(PAGE_BYTES - 1, 1) == PAGE_BYTES
    assert span_bytes(PAGE_BYTES - 1, 2) == 2 * PAGE_BYTES
    assert span_bytes(123, PIECE_BYTES) == PIECE_BYTES + PAGE_BYTES


def test_page_memory_starts_at_a_page_and_has_whole_ones() -> None:
    memory = page_memory(PAGE_BYTES + 1)
    assert len(memory) == 2 * PAGE_BYTES
    assert np.frombuffer(memory, np.uint8).ctypes.data % PAGE_BYTES == 0
