"""How fast a disk brings a sequence's blocks back, and when computing them is the faster way after all."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.scheduler.fetch_costs import FetchCosts


class RestorePace:
    """One patience for all that a sequence waits for, and what the disk has read of it so far.

    `num_tokens` would be computed without it; a disk that has not answered for `silent_s` is silent, and for so long
    there is patience where nobody knows how long computing takes. The disk may have been asleep before its first
    answer, which so is no measure of those behind it: until the next one it is as fast as it was for others.
    """

    def __init__(self, costs: FetchCosts, num_tokens: int, silent_s: float) -> None:
        self._costs = costs
        self._silent_s = silent_s
        patience_s = costs.patience_s(num_tokens)
        self.until_s = time.monotonic() + (silent_s if patience_s is None else patience_s)  # of the monotonic clock
        self._has_answered = False
        self._nbytes = 0  # behind the first answer
        self._read_s = 0.0

    def note(self, nbytes: int, read_s: float) -> None:
        """Note that so many bytes have come."""
        if nbytes and not self._has_answered:
            self._has_answered = True
            return
        self._nbytes += nbytes
        self._read_s += read_s

    @property
    def is_over(self) -> bool:
        """Whether the patience has ended."""
        return time.monotonic() >= self.until_s

    def pays_to_go_on(self, num_tokens: int, nbytes: int, disk_nbytes: int) -> bool:
        """Whether to wait for so many bytes more, a part of them from the disk, and not to compute so many tokens.

        What lies in the host's memory alone comes at once, however long the disk has taken.
        """
        if not disk_nbytes:
            return True
        each_s = self._read_s / self._nbytes if self._nbytes else self._costs.read.each_s
        return not self.is_over and self._costs.pays_to_go_on(num_tokens, nbytes, disk_nbytes * each_s)

    def give_up(self, nbytes: int) -> None:
        """Have others go by what the disk took behind its first answer, which is one measurement among others.

        Where not even a block of `nbytes` has come, it may be asleep, which says little, or silent, which says nothing.
        """
        if self._nbytes:
            self._costs.read.begin_anew(self._nbytes, self._read_s)
        elif self._read_s < self._silent_s:
            self._costs.read.observe(nbytes, self._read_s)
