"""The sequences that wait for a place in the steps."""

from __future__ import annotations

from bisect import insort
from itertools import islice
from typing import TYPE_CHECKING

from unicorn_async.round_robin import RoundRobin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from unicorn_async.scheduler.sequence import Sequence


MOST_PASSED_OVER = 32  # of a client's sequences that can't begin yet, by others of its own


class WaitingQueue:
    """Sequences in the order in which they get places.

    The client is first who holds least; of those who hold equally much, who has lost a place, and then each in turn.
    Of a client those come first that had a place and lost it, in the order in which they had got it; then the others,
    in the order of their arrival.

    Who can't begin yet is passed over, and keeps its place in the queue: by its client's next ones, if it never had a
    place in the steps, and by other clients.
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

    def in_order(self, held: Mapping[str, int]) -> Iterator[Sequence]:
        """Who may get the next place, where clients hold so much: the first one, or who comes next if it can't begin.

        Of a client these are no more than `MOST_PASSED_OVER` and one.
        """
        for client in sorted(self.clients, key=lambda client: held.get(client, 0)):
            returned = self._returned.get(client)
            if returned:
                yield returned[0]
            else:
                yield from islice(self._new.of(client), MOST_PASSED_OVER + 1)

    def add(self, sequence: Sequence) -> None:
        """Have a new sequence wait."""
        self._new.add(sequence.client, sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Have one wait that has lost its place."""
        insort(self._returned.setdefault(sequence.client, []), sequence, key=lambda waiting: waiting.place)

    def take(self, sequence: Sequence) -> None:
        """Have one of `in_order` wait no longer, and give it its place in the order of all that were admitted."""
        if self._remove_returned(sequence):
            return
        self._new.take(sequence.client, sequence)
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
