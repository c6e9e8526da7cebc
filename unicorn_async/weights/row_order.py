"""Rows that lie in a file in another order than the model wants."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class HeadOrder:
    """The order of the rows of heads: row `rows[i]` of a head in the file becomes the model's row i.

    The first `num_heads` heads of a tensor have it, those behind them lie as the model wants them; None = all have it.
    """

    rows: tuple[int, ...]
    num_heads: int | None = None

    @classmethod
    def rotary(
        cls, head_rows: int, *, rotary_rows: int = 0, interleaved: bool, num_heads: int | None = None
    ) -> HeadOrder:
        """Return the order for heads of which the first `rotary_rows` rotate in pairs (0 = all).

        Row i of the model's first half of a head makes a pair with row i of the second. Pairs are neighbours in the
        file if `interleaved`, otherwise they lie in the halves of the rows that rotate. Rows that do not rotate follow
        in both halves.
        """
        rotary_rows = rotary_rows or head_rows
        pairs = rotary_rows // 2
        first = range(0, rotary_rows, 2) if interleaved else range(pairs)
        second = range(1, rotary_rows, 2) if interleaved else range(pairs, rotary_rows)
        rest, half = range(rotary_rows, head_rows), (head_rows - rotary_rows) // 2
        return cls((*first, *rest[:half], *second, *rest[half:]), num_heads)


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Whole heads of rows of `row_bytes`, ordered as `heads` says, from a head of the tensor on."""

    heads: HeadOrder
    row_bytes: int

    @property
    def head_bytes(self) -> int:
        """Bytes of a head."""
        return len(self.heads.rows) * self.row_bytes

    @property
    def is_uniform(self) -> bool:
        """Whether all heads have the order, so that it does not matter where they begin."""
        return self.heads.num_heads is None

    def after(self, nbytes: int) -> RowOrder:
        """Return the order of what comes behind so many bytes, which are whole heads."""
        if self.heads.num_heads is None:
            return self
        left = max(0, self.heads.num_heads - nbytes // self.head_bytes)
        return replace(self, heads=replace(self.heads, num_heads=left))

    def places(self, target: memoryview) -> list[memoryview]:
        """Return parts of `target`, in the model's order, as the file has them one after the other."""
        return [
            target[first * self.row_bytes : (first + count) * self.row_bytes]
            for first, count in _runs(self._rows(len(target) // self.row_bytes))
        ]

    def _rows(self, num_rows: int) -> Iterator[int]:
        """The model's rows in the order of the file's."""
        size = len(self.heads.rows)
        rows = [0] * size
        for row, source in enumerate(self.heads.rows):
            rows[source] = row
        ordered = num_rows if self.heads.num_heads is None else min(num_rows, size * self.heads.num_heads)
        for head in range(0, ordered, size):
            for row in rows:
                yield head + row
        yield from range(ordered, num_rows)


def _runs(rows: Iterator[int]) -> Iterator[tuple[int, int]]:
    """First row and number of rows that follow each other."""
    first, count = next(rows), 1
    for row in rows:
        if row == first + count:
            count += 1
            continue
        yield first, count
        first, count = row, 1
    yield first, count
