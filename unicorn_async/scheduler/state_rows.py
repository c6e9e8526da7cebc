"""Which row of the device's states each sequence has, and spare rows for what may have to be taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.config import MAX_PROPOSED
from unicorn_async.scheduler.state_copies import GivenState

if TYPE_CHECKING:
    from unicorn_async.scheduler.sequence import Sequence


class StateRows:
    """Rows of sequences, and behind those of others the spare ones.

    A state of fixed size is of all tokens before, and what wrong ones did to it can't be undone. So a step that checks
    proposed tokens leaves the state behind each of its tokens in a row of its own, and reads the one before from where
    it stays: the sequence goes on with that behind the last right one. The next step without proposals brings its state
    back to the sequence's own row.

    Steps run in order, so a row that a step reads is free for the next one, but not for others in that step.
    """

    def __init__(self, num_seqs: int, first_spare: int = 0, num_spares: int | None = None) -> None:
        """`num_spares` is None where no layer has a state of fixed size: nothing is to be taken back there."""
        self._free = list(range(num_seqs - 1, -1, -1))
        self._spares = list(range(first_spare, first_spare + (num_spares or 0)))
        self._has_fixed = num_spares is not None
        self._given: list[GivenState] = []  # of the step in the making

    @property
    def num_free(self) -> int:
        """Sequences that can have a row."""
        return len(self._free)

    def give(self, sequence: Sequence) -> None:
        """Give a sequence its row; there is one."""
        sequence.state_index = self._free.pop()

    def take_back(self, sequence: Sequence) -> None:
        """Free the rows of a sequence, of which no step is in flight; one that has none is left alone."""
        if sequence.state_index >= 0:
            self._leave_spare(sequence)
            self._free.append(sequence.state_index)
            sequence.state_index = -1

    def step(self, sequence: Sequence) -> None:
        """Have the step in the making leave a sequence's state in its own row, wherever it is before that."""
        if sequence.spare_row >= 0:
            self._given.append(GivenState(sequence, sequence.spare_row))
            sequence.spare_row = -1

    def most_proposed(self, sequence: Sequence) -> int:
        """Return how many tokens may be proposed to a sequence of the step in the making: each wants a row."""
        if not self._has_fixed:
            return MAX_PROPOSED
        return len(self._spares) + self._is_elsewhere(sequence) - 1

    def take(self, sequence: Sequence, num_proposed: int) -> list[int]:
        """Return rows for the states behind its token of the step in the making, and behind those proposed to it.

        They are -1 where no layer has such a state.
        """
        if not self._has_fixed:
            return [-1] * (1 + num_proposed)
        rows = [sequence.state_index] if self._is_elsewhere(sequence) else []
        while len(rows) <= num_proposed:
            rows.append(self._spares.pop())
        return rows

    def end_step(self) -> tuple[GivenState, ...]:
        """Return where the states of sequences are before the step that is made, as far as not in their own rows."""
        given = tuple(self._given)
        self._given.clear()
        self._spares += [state.copy for state in given]
        return given

    def commit(self, sequence: Sequence, row: int, *, is_right: bool) -> None:
        """Have a sequence go on with the state that a step has left in a row, or free the row of a wrong one.

        A row of -1 is the sequence's own, which it has anyway.
        """
        if row < 0:
            return
        if is_right:
            self._leave_spare(sequence)
        if row != sequence.state_index:
            if is_right:
                sequence.spare_row = row
            else:
                self._spares.append(row)

    def _is_elsewhere(self, sequence: Sequence) -> bool:
        """Whether the step in the making reads a sequence's state elsewhere than in its own row."""
        return any(state.sequence is sequence for state in self._given)

    def _leave_spare(self, sequence: Sequence) -> None:
        if sequence.spare_row >= 0:
            self._spares.append(sequence.spare_row)
            sequence.spare_row = -1
