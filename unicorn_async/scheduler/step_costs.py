"""What steps of some sizes take, and how many tokens more would be worth their time."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf

_KEPT = 5  # times of each size
_FEW = 2  # with fewer a size is taken to be as fast as a smaller one, and so is tried
_FORGOTTEN_AFTER = 512  # steps of other sizes
_DOUBTED_AFTER = 32  # steps, of a gap while few are known: one that was long for once would keep all from trying
_LEAST_GAIN = 1.05


class StepCosts:
    """Keeps the last times that the device took for steps which decode alone, padded to one of `sizes`.

    What is proposed to a sequence is worth it where the step's tokens, as many as are to be expected, come faster than
    without. A size that was never seen, or long ago, is tried, the smallest of them first: where steps take as long as
    they have tokens, the largest would cost as much as a dozen others.
    """

    def __init__(self, sizes: SequenceOf[int]) -> None:
        self._sizes = tuple(sizes)
        self._times: dict[int, deque[float]] = {}
        self._last: dict[int, int] = {}  # of each size, the number of its last step
        self._num_steps = 0
        self._gaps: deque[float] = deque(maxlen=2 * _KEPT)
        self._last_gap = 0  # the number of the step before it

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Note what a step of so many tokens took on the device; no time at all says nothing."""
        if seconds <= 0:
            return
        size = self._size(num_tokens)
        self._times.setdefault(size, deque(maxlen=_KEPT)).append(seconds)
        self._num_steps += 1
        self._last[size] = self._num_steps

    def observe_gap(self, seconds: float) -> None:
        """Note how long the device waited for a step that could not be made while the one before it ran.

        One that is much shorter than those of long ago has nothing to do with them.
        """
        if self._gaps and not self._has_gap_since(_FORGOTTEN_AFTER) and 2 * seconds < median(self._gaps):
            self._gaps.clear()
        self._gaps.append(seconds)
        self._last_gap = self._num_steps

    @property
    def most_tokens(self) -> int:
        """The most tokens of a step."""
        return self._sizes[-1]

    @property
    def gap_s(self) -> float:
        """Seconds that the device waits for such a step; 0 where that is not known, or was long ago.

        Of few the shortest counts: the others may have waited for what was there for the first time.
        """
        are_few = len(self._gaps) < _KEPT
        if not self._gaps or not self._has_gap_since(_DOUBTED_AFTER if are_few else _FORGOTTEN_AFTER):
            return 0.0
        return min(self._gaps) if are_few else median(self._gaps)

    def seconds(self, num_tokens: int) -> float:
        """Return what a step of so many tokens is taken to need; 0 where nothing is known of those that are smaller.

        A size that is not known lies between those that are, or is as fast as the largest of them.
        """
        index = bisect_left(self._sizes, num_tokens)
        below = next((size for size in self._sizes[index::-1] if self._is_known(size)), None)
        if below is None:
            return 0.0
        size, least_s = self._sizes[index], self._time(below)
        above = next((size for size in self._sizes[index:] if self._is_known(size)), None)
        if below == size or above is None:
            return least_s
        return least_s + max(self._time(above) - least_s, 0.0) * (size - below) / (above - below)

    def most_tried(self, num_tokens: int) -> int:
        """Return the most tokens of a step that has so many already: a size more than the largest that is known."""
        index = bisect_left(self._sizes, num_tokens)
        known = (at for at in range(len(self._sizes) - 1, index, -1) if self._is_known(self._sizes[at]))
        return self._sizes[min(next(known, index) + 1, len(self._sizes) - 1)]

    def _has_gap_since(self, num_steps: int) -> bool:
        return self._num_steps - self._last_gap < num_steps

    def _time(self, size: int) -> float:
        times = self._times[size]
        return median(times) if len(times) > _FEW else min(times)

    def _is_known(self, size: int) -> bool:
        is_fresh = self._num_steps - self._last.get(size, 0) < _FORGOTTEN_AFTER
        return len(self._times.get(size, ())) >= _FEW and is_fresh

    def worth(
        self,
        num_tokens: int,
        expected: float,
        rate: float,
        most: int,
        *,
        ahead: int,
        is_alone: bool,
        is_awaited: bool = False,
    ) -> int:
        """Return how many tokens to propose to one sequence, `most` at most, in a step that has `num_tokens` already.

        Of the step `expected` tokens are to be expected without. Each one that is proposed is right with the chance
        `rate`, if all before it are, the `ahead` ones among them that nobody has seen yet. While others decode, the
        sequence is left out of the next step; one `is_alone` has the device wait. One that `is_awaited` without
        proposals, too, loses nothing by that.
        """
        without_s = self.seconds(num_tokens)
        if not without_s or not rate:
            return 0
        waits, gap_s = (0.0, self.gap_s) if is_alone else (1.0, 0.0)
        if is_awaited:
            waits, without_s = 0.0, without_s + gap_s
        best, count = _LEAST_GAIN * expected / without_s, 0
        most = min(most, self.most_tried(num_tokens) - num_tokens)
        for size in self._sizes[bisect_left(self._sizes, num_tokens + 1) :]:
            proposed = min(size - num_tokens, most)
            if proposed > 0:
                tokens = expected + rate**ahead * expected_right(rate, proposed) - waits
                speed = tokens / (self.seconds(size) + gap_s)
                if speed > best:
                    best, count = speed, proposed
            if size - num_tokens >= most:
                break
        return count

    def _size(self, num_tokens: int) -> int:
        return self._sizes[bisect_left(self._sizes, num_tokens)]


def expected_right(rate: float, num_proposed: int) -> float:
    """Return how many of so many proposed tokens should be right, each of them only where those before it are."""
    return sum(rate**number for number in range(1, num_proposed + 1))
