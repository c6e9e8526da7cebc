"""Rows that a read puts into another order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from unicorn_async.errors import CheckpointError
from unicorn_async.loader import open_file
from unicorn_async.loader import reader as reader_module
from unicorn_async.loader.reader import FileReader
from unicorn_async.weights.row_order import HeadOrder, RowOrder

if TYPE_CHECKING:
    from pathlib import Path


def interleaved(head_rows: int, row_bytes: int) -> RowOrder:
    return RowOrder(HeadOrder.rotary(head_rows, interleaved=True), row_bytes)


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
    await reader.read(0, 5, memoryview(target), interleaved(head_rows, row_bytes))
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
    await reader.read(0, 0, memoryview(target), interleaved(8, 7))
    reader.close()
    assert bytes(target) == rows.swapaxes(1, 2).tobytes()


async def test_a_file_that_ends_among_the_rows_is_truncated(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(30))
    reader = FileReader([tmp_path / "f"])
    with pytest.raises(CheckpointError, match="truncated while it was read: 32 bytes expected at byte 0, got 30"):
        await reader.read(0, 0, memoryview(bytearray(32)), interleaved(4, 4))
    reader.close()


@pytest.mark.parametrize("is_interleaved", [False, True])
def test_pairs_of_a_part_of_a_head_come_into_its_halves(is_interleaved: bool) -> None:
    order = HeadOrder.rotary(16, rotary_rows=8, interleaved=is_interleaved)
    first = (0, 2, 4, 6) if is_interleaved else (0, 1, 2, 3)
    second = (1, 3, 5, 7) if is_interleaved else (4, 5, 6, 7)
    assert order.rows == (*first, 8, 9, 10, 11, *second, 12, 13, 14, 15)
    assert HeadOrder.rotary(8, interleaved=False).rows == tuple(range(8))


async def test_heads_behind_the_ordered_ones_lie_as_they_are(tmp_path: Path) -> None:
    rows = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
    (tmp_path / "f").write_bytes(rows.tobytes())
    order = RowOrder(HeadOrder.rotary(4, interleaved=True, num_heads=3), 3)
    expected = np.concatenate([rows[:3, [0, 2, 1, 3]], rows[3:]]).tobytes()
    reader = FileReader([tmp_path / "f"])
    for cut in (12, 24, 36, 48, 60):  # bytes of whole heads
        target = bytearray(rows.nbytes)
        await reader.read(0, 0, memoryview(target)[:cut], order)
        if cut < len(target):
            await reader.read(0, cut, memoryview(target)[cut:], order.after(cut))
        assert bytes(target) == expected
    reader.close()
    assert [len(part) for part in order.after(36).places(memoryview(bytearray(24)))] == [24]
