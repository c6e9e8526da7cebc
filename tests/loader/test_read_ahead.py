"""The window of bytes that the kernel is asked for."""

from __future__ import annotations

from unicorn_async.loader.read_ahead import ReadAhead
from unicorn_async.tensor import DType
from unicorn_async.weights.plan import Chunk, Transform


def chunks(*places: tuple[int, int, int]) -> list[Chunk]:
    return [Chunk(*place, "dest", 0, Transform.COPY, DType.F16, DType.F16, 0) for place in places]


def test_the_window_is_asked_for_first_and_kept_ahead() -> None:
    ahead = ReadAhead(chunks(*((0, 100 * number, 100) for number in range(6))), 200)
    assert ahead.advance(100) == [(0, 0, 300)]
    assert ahead.advance(100) == [(0, 300, 100)]
    assert ahead.advance(50) == [(0, 400, 100)]
    assert ahead.advance(50) == []
    assert ahead.advance(100) == [(0, 500, 100)]
    assert ahead.advance(100) == []


def test_only_neighbours_of_one_file_are_one_range() -> None:
    ahead = ReadAhead(chunks((0, 0, 10), (0, 10, 10), (0, 30, 10), (1, 40, 10)), 1000)
    assert ahead.advance(0) == [(0, 0, 20), (0, 30, 10), (1, 40, 10)]
