"""Rows that lie in a file in another order than the model wants."""

from __future__ import annotations

from dataclasses import dataclass, replace


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
class RowRun:
    """Rows of a tensor that follow each other: `count` from `file_row` of the file on are the model's from `row` on."""

    file_row: int
    row: int
    count: int


def head_runs(order: HeadOrder, num_rows: int) -> tuple[RowRun, ...]:
    """Return the runs of a tensor of so many rows, whole heads that lie in an order."""
    size = len(order.rows)
    ordered = num_rows if order.num_heads is None else min(num_rows, order.num_heads * size)
    runs: list[RowRun] = []
    for row in range(ordered):
        file_row = row - row % size + order.rows[row % size]
        if runs and runs[-1].file_row + runs[-1].count == file_row:
            runs[-1] = replace(runs[-1], count=runs[-1].count + 1)
        else:
            runs.append(RowRun(file_row, row, 1))
    return (*runs, RowRun(ordered, ordered, num_rows - ordered)) if ordered < num_rows else tuple(runs)


def grouped_runs(num_groups: int, parts: tuple[int, ...]) -> tuple[RowRun, ...]:
    """Return the order for a file that has each group's parts side by side, of so many rows each.

    The model has those of the first part of all groups, then those of the second, and so on.
    """
    runs: list[RowRun] = []
    for group in range(num_groups):
        within, before = 0, 0
        for count in parts:
            runs.append(RowRun(group * sum(parts) + within, before + group * count, count))
            within, before = within + count, before + num_groups * count
    return tuple(runs)


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
        nbytes, size = len(target), self.head_bytes
        ordered = nbytes if self.heads.num_heads is None else min(nbytes, size * self.heads.num_heads)
        runs = [(first * self.row_bytes, stop * self.row_bytes) for first, stop in self._runs()]
        parts = [target[head + start : head + stop] for head in range(0, ordered, size) for start, stop in runs]
        return [*parts, target[ordered:]] if ordered < nbytes else parts

    def _runs(self) -> list[tuple[int, int]]:
        """A head's rows, from one to before another, that follow each other in the file too; in the file's order."""
        rows = sorted(range(len(self.heads.rows)), key=self.heads.rows.__getitem__)
        starts = [index for index, row in enumerate(rows) if not index or rows[index - 1] + 1 != row]
        stops = [*starts[1:], len(rows)]
        return [(rows[start], rows[start] + stop - start) for start, stop in zip(starts, stops, strict=True)]
