"""How many tokens of prompts a step may have beside sequences that decode, so that those get their next token soon."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf

_MOST_OF_DECODES = 2.0  # times as long as without prompts, where that is more than a limit that was given
_FOLLOWED_DECODES = 3.0  # the same, where the device decides
_LEAST_S = 0.02  # that the device's limit is: shorter pauses are seen by nobody
_HELD_STEPS = 16  # for which no step is as large again as one that took too long; twice as many each time that it does
_MOST_HELD_STEPS = 1024


class StepBudget:
    """Sizes steps by the times that earlier ones took on the device.

    Steps are padded to one of `sizes`, which are in ascending order. A step with prompts that was fast enough lets the
    next one be a size larger. One that took too long lets the next one be as large as the last that did not, if that
    was smaller, and its size is not tried again for some steps, for more of them each time. Where steps of that size
    were fast before, the second slow one in a row counts, and cuts the next one in proportion: a single one means
    little.

    The limit is `max_step_s` seconds. Where decoding alone takes more than half of that, it is twice the time of
    decoding, so that prompts get half of the device's time at least. Without `max_step_s` the limit is three times what
    decoding takes on this device, and 0.02 s at least.
    """

    def __init__(self, sizes: SequenceOf[int], max_step_s: float | None = None) -> None:
        self._sizes = tuple(sizes)
        self._max_step_s = _LEAST_S if max_step_s is None else max_step_s
        self._most_of_decodes = _FOLLOWED_DECODES if max_step_s is None else _MOST_OF_DECODES
        self._decodes_s = 0.0  # of a step without prompts; 0 = not seen yet
        self._tokens = 0.0  # of the next step with prompts
        self._fast_enough = 0  # the last size that was; 0 = none, or that is in doubt
        self._too_slow = 0  # the last size that was
        self._held_steps = 0
        self._next_hold = _HELD_STEPS

    @property
    def limit_s(self) -> float:
        """Seconds that a step with prompts may take beside decoding sequences."""
        return max(self._max_step_s, self._most_of_decodes * self._decodes_s)

    def observe(self, num_decodes: int, num_tokens: int, seconds: float) -> None:
        """Note what a step of so many tokens, some of them decodes, took."""
        if num_tokens == num_decodes:
            self._decodes_s = (self._decodes_s + seconds) / 2 if self._decodes_s else seconds
            return
        self._held_steps = max(self._held_steps - 1, 0)
        index = bisect_left(self._sizes, num_tokens)
        size = self._sizes[index]
        if seconds <= self.limit_s:
            self._fast_enough = size
            if size >= self._too_slow:
                self._next_hold = _HELD_STEPS
            self._tokens = max(self._tokens, *self._sizes[index : index + 2])
            return
        if self._fast_enough >= size:
            self._fast_enough = 0
            return
        fitting = max(size * self.limit_s / seconds, self._fast_enough)
        self._tokens = min(self._tokens or fitting, fitting)
        hold = self._next_hold if size == self._too_slow else _HELD_STEPS
        self._too_slow, self._held_steps, self._next_hold = size, hold, min(2 * hold, _MOST_HELD_STEPS)

    def room_beside(self, num_decodes: int) -> int:
        """Return how many tokens of prompts fit into a step with so many decoding sequences; 0 where none do."""
        most = min(self._tokens, self._too_slow - 1) if self._held_steps else self._tokens
        return max(max((size for size in self._sizes if size <= most), default=0) - num_decodes, 0)
