"""What a sampler is to count of prompts without a step that computes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.config import MAX_COUNTED

if TYPE_CHECKING:
    from unicorn_async.scheduler.sequence import Sequence


class FoundCounts:
    """Room for the tokens that sequences with a repetition penalty have found computed.

    Such a penalty goes by every token of a prompt. Those found are counted, each different one once, with the first
    part that a step has of the sequence; a step has room for `MAX_COUNTED`.
    """

    def __init__(self) -> None:
        self._to_come: dict[Sequence, int] = {}  # of those that have begun and no step has
        self._num_in_step = 0  # of those that the step in the making has

    def most(self, sequence: Sequence) -> int:
        """Return how many tokens of its prompt a sequence may find."""
        if sequence.sampling.repetition_penalty == 1.0 or len(sequence.prompt_ids) <= MAX_COUNTED:
            return len(sequence.prompt_ids)
        if sequence.num_countable is None:
            sequence.num_countable = _num_countable(sequence.prompt_ids)
        return sequence.num_countable

    def has_room(self, sequence: Sequence, num_found: int) -> bool:
        """Whether a sequence can begin behind so many tokens now; once it has begun, there is room until its step."""
        taken = self._num_in_step + sum(self._to_come.values())
        return taken + _number(sequence, num_found) <= MAX_COUNTED

    def begin(self, sequence: Sequence) -> None:
        """Take room for what a sequence has found."""
        if number := _number(sequence, sequence.num_found):
            self._to_come[sequence] = number

    def reach(self, sequence: Sequence) -> None:
        """Take it that the step in the making has a part of a sequence."""
        self._num_in_step += self._to_come.pop(sequence, 0)

    def end_step(self) -> None:
        """Take it that the step in the making is made."""
        self._num_in_step = 0

    def leave(self, sequence: Sequence) -> None:
        """Give the room back of a sequence that runs no more."""
        self._to_come.pop(sequence, None)


def _number(sequence: Sequence, num_found: int) -> int:
    """Return how many different tokens these are at most."""
    return 0 if sequence.sampling.repetition_penalty == 1.0 else min(num_found, MAX_COUNTED)


def _num_countable(prompt_ids: tuple[int, ...]) -> int:
    """Return how long a prompt's beginning is that has no more than `MAX_COUNTED` different tokens."""
    seen: set[int] = set()
    for number, token in enumerate(prompt_ids):
        seen.add(token)
        if len(seen) > MAX_COUNTED:
            return number
    return len(prompt_ids)
