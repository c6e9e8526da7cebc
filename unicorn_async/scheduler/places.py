"""Who has a place in the steps, who gets the next one, and who gives one up."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.scheduler.admission import fits_beside, wanted_by
from unicorn_async.scheduler.fair_shares import FairShares
from unicorn_async.scheduler.waiting_queue import WaitingQueue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unicorn_async.scheduler.block_manager import BlockManager
    from unicorn_async.scheduler.prefixes import Prefixes
    from unicorn_async.scheduler.sequence import Sequence
    from unicorn_async.scheduler.state_rows import StateRows


class Beginning(NamedTuple):
    """A sequence that waits and can begin, and how many blocks that are there it would begin behind."""

    sequence: Sequence
    num_found: int


class Places:
    """The sequences that run, those that leave, and those that wait.

    A client alone has all there is. Where another one waits who holds less, the youngest sequence of the client that
    holds most gives up its place and its blocks, as long as that client then still holds as much as the other; it
    waits, and is computed again later. What comes free goes to the client that holds least. Where blocks run out, too,
    the youngest of who holds most gives up its own. So the oldest sequence of all always goes on, and each client's
    oldest loses its place to older ones alone, for blocks.

    Who can't begin yet, since a running sequence is to compute its prompt's beginning, or its mask is not known, is
    passed over; who can, and has no room, is not.
    """

    def __init__(
        self, blocks: BlockManager, prefixes: Prefixes, states: StateRows, max_num_seqs: int, max_queries: int
    ) -> None:
        """`max_queries` is how many tokens of a sequence a step may have."""
        self._blocks = blocks
        self._prefixes = prefixes
        self._max_queries = max_queries
        self._shares = FairShares(blocks, max_num_seqs)
        self._states = states
        self._max_num_seqs = max_num_seqs
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []  # in order of their first admission
        self.leaving: list[Sequence] = []  # ended or preempted, with steps in flight that use their blocks
        self.wants_blocks = False
        self.num_preemptions = 0
        self.num_fair_preemptions = 0  # of these, those for other clients' shares

    @property
    def num_taken(self) -> int:
        """Sequences that have a state."""
        return self._max_num_seqs - self._states.num_free

    def first(self) -> Sequence:
        """Return whose turn it is to have a place, whether it can begin or not; somebody has to wait."""
        return next(self._in_order())

    def admissible(self) -> Beginning | None:
        """Return who gets the next place, if it fits beside what runs, with a block more for each that runs."""
        is_giving_up = any(sequence.preempted for sequence in self.leaving)
        if not self.waiting or not self._states.num_free or is_giving_up:
            return None
        beginning = self._next()
        if beginning is None or self._fits(beginning, self.running):
            return beginning
        self.wants_blocks = self._blocks.is_growing
        return None

    def admit(self, beginning: Beginning) -> Sequence:
        """Give who is `admissible` its place."""
        sequence = beginning.sequence
        self.waiting.take(sequence)
        self._states.give(sequence)
        sequence.preempted = False
        sequence.num_given = sequence.length
        sequence.num_uncounted = 0  # all that it has is counted anew
        insort(self.running, sequence, key=lambda running: running.place)
        self._prefixes.begin(sequence, beginning.num_found)
        return sequence

    def make_way(self) -> None:
        """Have others give up their places for who gets the next one, where it has a right to it."""
        if not self.waiting or self._blocks.is_growing or self._is_one_clients():
            return
        beginning = self._next()
        if beginning is None or self._has_way(beginning, self.running):
            return
        first = beginning.sequence
        excess = self._shares.excess(self.running, first, wanted_by(self._blocks, first, self._max_queries))
        if not self._has_way(beginning, [one for one in self.running if one not in excess], excess):
            return
        for victim in excess:
            self._preempt(victim)
            self.num_fair_preemptions += 1
            if self._has_way(beginning, self.running):
                return

    def has_room(self, sequence: Sequence) -> bool:
        """Make sure of at least one position more, at the cost of those whose claims are worse."""
        while not self._blocks.has_room(sequence):
            if self.leaving or self._blocks.is_growing:  # who leaves gives up blocks in every group
                self.wants_blocks |= not self.leaving
                return False
            victim = self._shares.claims(self.running)[-1].sequence
            if victim is sequence:
                return False
            self._preempt(victim)
        return True

    def give_back(self, sequence: Sequence) -> None:
        """Have a sequence that runs, without a step in flight, wait for its place again."""
        sequence.preempted = True
        self.retire(sequence)

    def retire(self, sequence: Sequence) -> None:
        """Take an ended or preempted sequence's blocks and state, as soon as no step in flight uses them."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._prefixes.leave(sequence)
        if sequence.num_in_flight:
            if sequence not in self.leaving:
                self.leaving.append(sequence)
            return
        if sequence in self.leaving:
            self.leaving.remove(sequence)
        self._blocks.release(sequence)
        self._states.take_back(sequence)
        if sequence.finish_reason is None:
            sequence.num_scheduled = sequence.num_computed = 0
            self.waiting.put_back(sequence)

    def _is_one_clients(self) -> bool:
        clients = self.waiting.clients
        return len(clients) == 1 and all(sequence.client == clients[0] for sequence in self.running)

    def _in_order(self) -> Iterator[Sequence]:
        return self.waiting.in_order(self._shares.held(self.running) if len(self.waiting.clients) > 1 else {})

    def _next(self) -> Beginning | None:
        """Return the first in the queue that can begin, if the step has room for what it is to count."""
        for sequence in self._in_order():
            if not sequence.awaits_mask and (found := self._prefixes.find(sequence)) is not None:
                return Beginning(sequence, found) if self._prefixes.has_room(sequence, found) else None
        return None

    def _has_way(self, beginning: Beginning, running: list[Sequence], giving_up: Iterable[Sequence] = ()) -> bool:
        """Whether one can have a place when those that leave have left, and those that give theirs up."""
        leaving = [*self.leaving, *giving_up]
        return bool(self._states.num_free or leaving) and self._fits(beginning, running, leaving)

    def _fits(self, beginning: Beginning, running: list[Sequence], leaving: Iterable[Sequence] = ()) -> bool:
        sequence, found = beginning
        return fits_beside(self._blocks, sequence, found, running, self._max_queries, leaving)

    def _preempt(self, victim: Sequence) -> None:
        victim.preempted = True
        self.num_preemptions += 1
        self.retire(victim)
