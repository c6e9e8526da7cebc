"""Where a draft model has its states of fixed size: behind those tokens of each copy from which it may go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from unicorn_async.scheduler.sequence import Sequence


class _State(NamedTuple):
    num_positions: int  # behind which it is
    row: int


class DraftStates:
    """Rows of states: one of each copy, and spare ones.

    What a wrong token did to a state can't be undone. So each step of a draft leaves its own in another row than the
    one that it reads, and a draft begins with that behind the last right token. There always is one before a copy's
    newest token. Steps run in order, so a row that is free may be read by a step yet that comes before its next user.
    """

    def __init__(self, num_seqs: int, num_spares: int) -> None:
        self._spares = list(range(num_seqs, num_seqs + num_spares))
        self._num_seqs = num_seqs
        self._free: dict[Sequence, list[int]] = {}  # rows that a copy has and does not use
        self._states: dict[Sequence, list[_State]] = {}  # by positions

    def begin(self, copy: Sequence) -> None:
        """Have a copy of which nothing is computed: before a sequence's first token there is no state."""
        self._free[copy] = []
        self._states[copy] = [_State(0, copy.state_index)]

    def settle(self, copy: Sequence) -> None:
        """Have a copy go on behind its last computed position that is none of its newest token, and free all others."""
        states, most = self._states[copy], min(copy.num_computed, copy.num_seen - 1)
        kept = next(state for state in reversed(states) if state.num_positions <= most)
        unused, self._free[copy] = self._free[copy], []
        for row in (*unused, *(state.row for state in states if state is not kept)):
            (self._free[copy] if row == copy.state_index else self._spares).append(row)
        self._states[copy] = [kept]
        copy.num_computed = copy.num_scheduled = kept.num_positions

    def room(self, copy: Sequence, num_copies: int) -> int:
        """Return how many steps a draft may have, of so many that have none yet: each leaves a state."""
        return len(self._free[copy]) + len(self._spares) // num_copies

    def reserve(self, copy: Sequence, count: int) -> None:
        """Have rows for so many steps; there is room."""
        free = self._free[copy]
        while len(free) < count:
            free.append(self._spares.pop())

    def row(self, copy: Sequence) -> int:
        """Return where the next step of a copy finds its state."""
        return self._states[copy][-1].row

    def advance(self, copy: Sequence, num_positions: int) -> int:
        """Return where a step leaves the state behind so many positions."""
        row = self._free[copy].pop()
        self._states[copy].append(_State(num_positions, row))
        return row

    def stay(self, copy: Sequence, num_positions: int) -> int:
        """Return where a step leaves it that goes on where it is: behind tokens that are right."""
        before = self._states[copy].pop()
        self._states[copy].append(_State(num_positions, before.row))
        return before.row

    def forget(self, copy: Sequence) -> None:
        """Free all that a copy has."""
        for row in (*self._free.pop(copy), *(state.row for state in self._states.pop(copy))):
            if row >= self._num_seqs:
                self._spares.append(row)
