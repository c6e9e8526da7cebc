"""Copies of states of fixed size: where there is room for them, and which texts they are of."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.scheduler.sequence import Sequence


class GivenState(NamedTuple):
    """A copy that a sequence begins with in a step: a row of all layers' states."""

    sequence: Sequence
    copy: int


class KeptState(NamedTuple):
    """A copy that a step makes, of a sequence's state behind its first `position` tokens."""

    sequence: Sequence
    position: int
    copy: int


class StateCopies:
    """Rows for copies, each free, promised to a step in flight, or known by the key of a text's last block.

    Where no row is free, the copy that has not been used for longest gives up its own, but for those that the step in
    the making begins with: it reads and writes at once. One that is pinned stays.
    """

    def __init__(self, first: int, count: int) -> None:
        self.count = count
        self._free = list(range(first + count - 1, first - 1, -1))
        self._known: dict[bytes, int] = {}  # the one that was used last is the last
        self._in_use: set[bytes] = set()
        self._pins: Counter[bytes] = Counter()

    @property
    def num_known(self) -> int:
        """Copies that a sequence may begin with."""
        return len(self._known)

    def knows(self, key: bytes) -> bool:
        """Whether there is a copy of the state behind a text."""
        return key in self._known

    @property
    def keys(self) -> Iterable[bytes]:
        """The texts of which there is a copy of the state behind them."""
        return self._known.keys()

    @property
    def has_free(self) -> bool:
        """Whether there is a row for which no copy has to go."""
        return bool(self._free)

    @property
    def has_room(self) -> bool:
        """Whether there is a row to be had."""
        return bool(self._free) or self._oldest() is not None

    def row(self, key: bytes) -> int | None:
        """Return the row of a copy, if there is one."""
        return self._known.get(key)

    def pin(self, key: bytes) -> None:
        """Have a copy stay until it is unpinned as often."""
        self._pins[key] += 1

    def unpin(self, key: bytes) -> None:
        """See `pin`."""
        self._pins[key] -= 1
        if not self._pins[key]:
            del self._pins[key]

    def use(self, key: bytes) -> int:
        """Return the row of a copy that there is, for the step in the making."""
        self._in_use.add(key)
        row = self._known[key] = self._known.pop(key)
        return row

    def take(self) -> int | None:
        """Promise a row to a step, or None where there is none to be had."""
        if self._free:
            return self._free.pop()
        oldest = self._oldest()
        return None if oldest is None else self._known.pop(oldest)

    def end_step(self) -> None:
        """Take it that the step in the making is made."""
        self._in_use.clear()

    def keep(self, row: int, key: bytes) -> None:
        """Note what a promised row holds; of two copies of one state the earlier one stays."""
        if key in self._known:
            self._free.append(row)
        self._known[key] = self._known.pop(key, row)

    def drop(self, row: int) -> None:
        """Free a promised row."""
        self._free.append(row)

    def forget(self, key: bytes) -> None:
        """Free the row of a copy, if there still is one."""
        if key in self._known and self._may_go(key):
            self._free.append(self._known.pop(key))

    def _oldest(self) -> bytes | None:
        return next(filter(self._may_go, self._known), None)

    def _may_go(self, key: bytes) -> bool:
        return key not in self._in_use and key not in self._pins
