"""The sequences that wait for a place in the steps."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from unicorn_async.round_robin import RoundRobin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from unicorn_async.scheduler.sequence import Sequence


class WaitingQueue:
    """Sequences in the order in which they get places.

    The client is first who holds least; of those who hold equally much, who has lost a place, and then each in turn.
    Of a client those come first that had a place and lost it, in the order in which they had got it; then the others,
    in the order of their arrival.
    """

    def __init__(self) -> None:
        self._returned: dict[str, list[Sequence]] = {}
        self._new: RoundRobin[Sequence] = RoundRobin()
        self._num_admitted = 0

    def __len__(self) -> int:
        return sum(map(len, self._returned.values())) + len(self._new)

    def __iter__(self) -> Iterator[Sequence]:
        """All that wait."""
        for returned in self._returned.values():
            yield from returned
        yield from self._new

    @property
    def clients(self) -> list[str]:
        """Who waits: those who have lost places first, and then in the order of their turns."""
        lost = sorted(self._returned, key=lambda client: self._returned[client][0].place)
        return [*lost, *(client for client in self._new.owners if client not in self._returned)]

    def first(self, held: Mapping[str, int]) -> Sequence:
        """Return who gets the next place, where clients hold so much; somebody has to wait."""
        client = min(self.clients, key=lambda client: held.get(client, 0))
        returned = self._returned.get(client)
        return returned[0] if returned else self._new.first_of(client)

    def add(self, sequence: Sequence) -> None:
        """Have a new sequence wait."""
        self._new.add(sequence.client, sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Have one wait that has lost its place."""
        insort(self._returned.setdefault(sequence.client, []), sequence, key=lambda waiting: waiting.place)

    def take(self, sequence: Sequence) -> None:
        """Have its client's first one wait no longer, and give it its place in the order of all that were admitted."""
        if self._remove_returned(sequence):
            return
        popped = self._new.pop_of(sequence.client)
        assert popped is sequence, f"{sequence.request_id} is not its client's first"
        sequence.place = self._num_admitted
        self._num_admitted += 1

    def remove(self, sequence: Sequence) -> None:
        """Have one wait no longer; harmless for one that does not."""
        if not self._remove_returned(sequence):
            self._new.remove(sequence.client, sequence)

    def place_for(self, sequence: Sequence) -> Sequence | None:
        """Return who should give up its place in the queue to a new sequence, None if nobody should.

        That is the latest of the client with most of those that never had a place in the steps, if it has two more.
        """
        if not len(self._new):
            return None
        last = self._new.last_of_most()
        return last if self._new.num_of(last.client) > self._new.num_of(sequence.client) + 1 else None

    def _remove_returned(self, sequence: Sequence) -> bool:
        returned = self._returned.get(sequence.client, [])
        if sequence not in returned:
            return False
        returned.remove(sequence)
        if not returned:
            del self._returned[sequence.client]
        return True
