"""Rows that a read puts into another order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from unicorn_async.errors import CheckpointError
from unicorn_async.loader import open_file
from unicorn_async.loader import reader as reader_module
from unicorn_async.loader.reader import FileReader
from unicorn_async.weights.row_order import InterleavedHeads

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("heads", "head_rows", "row_bytes"), [(1, 2, 1), (3, 8, 5), (40, 64, 6), (2, 4, 300)])
@pytest.mark.parametrize("most", [1, 7, 1024])
async def test_halves_of_heads_are_put_apart(
    heads: int, head_rows: int, row_bytes: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "_MAX_PARTS", most)
    rows = np.random.default_rng(heads).integers(0, 256, (heads, head_rows // 2, 2, row_bytes), np.uint8)
    (tmp_path / "f").write_bytes(b"begin" + rows.tobytes() + b"end")
    target = bytearray(rows.nbytes)
    reader = FileReader([tmp_path / "f"])
    await reader.read(0, 5, memoryview(target), InterleavedHeads(head_rows, row_bytes))
    reader.close()
    assert bytes(target) == rows.swapaxes(1, 2).tobytes()


async def test_reads_that_end_early_go_on_in_the_middle_of_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = open_file.os.preadv

    def short(descriptor: int, parts: list[memoryview], offset: int) -> int:
        first = [parts[0][:3]] if len(parts[0]) > 3 else parts[:1]
        return whole(descriptor, first, offset)

    monkeypatch.setattr(open_file.os, "preadv", short)
    rows = np.arange(2 * 4 * 2 * 7, dtype=np.uint8).reshape(2, 4, 2, 7)
    (tmp_path / "f").write_bytes(rows.tobytes())
    target = bytearray(rows.nbytes)
    reader = FileReader([tmp_path / "f"])
    await reader.read(0, 0, memoryview(target), InterleavedHeads(8, 7))
    reader.close()
    assert bytes(target) == rows.swapaxes(1, 2).tobytes()


async def test_a_file_that_ends_among_the_rows_is_truncated(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(30))
    reader = FileReader([tmp_path / "f"])
    with pytest.raises(CheckpointError, match="truncated while it was read: 32 bytes expected at byte 0, got 30"):
        await reader.read(0, 0, memoryview(bytearray(32)), InterleavedHeads(4, 4))
    reader.close()
