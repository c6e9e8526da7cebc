"""Which blocks have changed lately, and what is remembered of a sequence's blocks until they do."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_CHANGES = 2048  # that are remembered: looking at a text's blocks costs as much


class BlockChanges:
    """The keys of blocks of which something has changed, the latest of them."""

    def __init__(self) -> None:
        self.count = 0
        self._latest: deque[bytes] = deque(maxlen=_MOST_CHANGES)

    def note(self, key: bytes) -> None:
        """Note that something of a block is another now."""
        self.count += 1
        self._latest.append(key)

    def note_all(self) -> None:
        """Note that any block may have changed."""
        self.count += 1
        self._latest.clear()

    def since(self, count: int) -> Iterable[bytes] | None:
        """Return the keys that were noted since there were `count`; None where they are not remembered."""
        number = self.count - count
        return None if number > len(self._latest) else islice(reversed(self._latest), number)


class Remembered:
    """The marks of one sequence's blocks, by test, and how many changes these have seen."""

    __slots__ = ("marks", "seen")

    def __init__(self, num_tests: int, num_changes: int) -> None:
        self.marks = [bytearray() for _ in range(num_tests)]
        self.seen = [0] * num_changes
