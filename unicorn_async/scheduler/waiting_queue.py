"""The sequences that wait for a place in the steps."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from unicorn_async.round_robin import RoundRobin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unicorn_async.scheduler.sequence import Sequence


class WaitingQueue:
    """Sequences in the order in which they get places.

    First come those that had one and lost it, in the order in which they had got it; then those of each client in turn,
    in the order of their arrival.
    """

    def __init__(self) -> None:
        self._returned: list[Sequence] = []
        self._new: RoundRobin[Sequence] = RoundRobin()
        self._num_admitted = 0

    def __len__(self) -> int:
        return len(self._returned) + len(self._new)

    def __iter__(self) -> Iterator[Sequence]:
        """All that wait."""
        yield from self._returned
        yield from self._new

    @property
    def first(self) -> Sequence:
        """Who gets the next place; somebody has to wait."""
        return self._returned[0] if self._returned else self._new.first

    def add(self, sequence: Sequence) -> None:
        """Have a new sequence wait."""
        self._new.add(sequence.client, sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Have one wait that has lost its place."""
        insort(self._returned, sequence, key=lambda waiting: waiting.place)

    def pop(self) -> Sequence:
        """Take the first one, and give it its place in the order of all that were admitted."""
        if self._returned:
            return self._returned.pop(0)
        sequence = self._new.pop()
        sequence.place = self._num_admitted
        self._num_admitted += 1
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Have one wait no longer; harmless for one that does not."""
        if sequence in self._returned:
            self._returned.remove(sequence)
        else:
            self._new.remove(sequence.client, sequence)

    def place_for(self, sequence: Sequence) -> Sequence | None:
        """Return who should give up its place in the queue to a new sequence, None if nobody should.

        That is the latest of the client with most of those that never had a place in the steps, if it has two more.
        """
        if not len(self._new):
            return None
        last = self._new.last_of_most()
        return last if self._new.num_of(last.client) > self._new.num_of(sequence.client) + 1 else None
