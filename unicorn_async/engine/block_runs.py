"""The blocks of a sequence as runs of neighbours."""

from __future__ import annotations

from collections import deque


class BlockRuns:
    """Runs, (first, how many), of a block table that grows at its end and is freed from its beginning.

    They are kept up with the table: only what is new in it is looked at, however long it is.
    """

    def __init__(self, table: list[int]) -> None:
        self.table = table
        self._num_seen = 0
        self._num_freed = 0
        self._runs: deque[tuple[int, int]] = deque()
        self._all: tuple[tuple[int, int], ...] = ()

    def update(self, num_freed: int) -> tuple[tuple[int, int], ...]:
        """Return the runs as of now; the first `num_freed` blocks of the table are freed."""
        if num_freed > self._num_freed:
            self._drop(min(num_freed, self._num_seen) - self._num_freed)
            self._num_freed, self._num_seen = num_freed, max(self._num_seen, num_freed)
        elif len(self.table) == self._num_seen:
            return self._all
        for block in self.table[self._num_seen :]:
            self._add(block)
        self._num_seen = len(self.table)
        self._all = tuple(self._runs)
        return self._all

    def _add(self, block: int) -> None:
        if self._runs:
            first, count = self._runs[-1]
            if block == first + count:
                self._runs[-1] = (first, count + 1)
                return
        self._runs.append((block, 1))

    def _drop(self, number: int) -> None:
        while number > 0:
            first, count = self._runs.popleft()
            if count > number:
                self._runs.appendleft((first + number, count - number))
            number -= count
