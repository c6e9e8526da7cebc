"""To whom a draft model drafts, and how much, by how often it was right and by what its steps cost."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from unicorn_async.config import MAX_PROPOSED
from unicorn_async.scheduler.proposer import HitRate

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf

    from unicorn_async.scheduler.sequence import Sequence
    from unicorn_async.scheduler.step_costs import StepCosts

_KEPT = 5  # times of drafts
_FEW = 2  # with fewer a draft is taken to cost nothing, and so is tried
_FORGOTTEN_AFTER = 512  # steps without a draft: what the first ones took may have been a compiler's time
_DOUBTED_AFTER = 32  # the same of what the device waited beside, while few times are known
_TRIED_AFTER = 64  # tokens without a draft, behind which one is worth a try by the share of all sequences
LEAST_GAIN = 1.05
GAIN_BEHIND = 1.1  # that makes it worth for a draft model to catch up
_FIRST_RATE = 0.5  # that counts half where those of others are lower
_TRIED_RATE = 0.75  # at least, of what is tried again: few drafts of a sequence may all have been unlucky


class DraftRates:
    """How often drafts were right, of each sequence and of all together, and what one of their steps costs."""

    def __init__(self) -> None:
        self._all = HitRate()
        self._of: dict[Sequence, tuple[HitRate, int]] = {}  # and how long its answer was at its last draft
        self._step_s: deque[float] = deque(maxlen=_KEPT)
        self._wait_s: deque[float] = deque(maxlen=_KEPT)  # beside the steps' own time
        self._num_without = 0  # steps since the last draft

    @property
    def step_s(self) -> float:
        """Seconds that one of a draft's steps takes; 0 where that is not known."""
        return self._usual(self._step_s, _FORGOTTEN_AFTER)

    @property
    def first_s(self) -> float:
        """Seconds by which a draft of one step keeps the next step waiting; 0 where that is not known."""
        return self.step_s + self._usual(
            self._wait_s, _FORGOTTEN_AFTER if len(self._wait_s) == _KEPT else _DOUBTED_AFTER
        )

    def _usual(self, times: deque[float], forgotten_after: int) -> float:
        """Return one of the shorter times: a long one may have waited for something else as well."""
        if len(times) < _FEW or self._num_without >= forgotten_after:
            return 0.0
        return sorted(times)[(len(times) - 1) // 3]

    def rate(self, sequence: Sequence) -> float:
        """Return how likely the next drafted token of a sequence is right, if those before it were."""
        hits, length = self._of.get(sequence) or (None, 0)
        own = self._first_rate if hits is None else hits.value
        is_old = len(sequence.output_ids) - length >= _TRIED_AFTER
        return max(own, self._all.value, _TRIED_RATE) if is_old else own

    @property
    def _first_rate(self) -> float:
        """The rate of a sequence that had no draft yet: others' misfortune can't bring it so low that it gets none."""
        return max(self._all.value, (self._all.value + _FIRST_RATE) / 2)

    def note(self, sequence: Sequence, *, is_right: bool) -> None:
        """Count a drafted token, those before which were right."""
        hits, _ = self._of.get(sequence) or (HitRate(self._first_rate), 0)
        hits.note(is_right=is_right)
        self._all.note(is_right=is_right)
        self._of[sequence] = hits, len(sequence.output_ids)

    def observe(self, num_steps: int, seconds: float, wait_s: float = 0.0) -> None:
        """Note what a draft of so many steps took, and for how long it kept the device waiting beside that."""
        if seconds > 0:
            if self._num_without >= _FORGOTTEN_AFTER:
                self._step_s.clear()
                self._wait_s.clear()
            self._num_without = 0
            self._step_s.append(seconds / num_steps)
            self._wait_s.append(wait_s)

    def pass_step(self) -> None:
        """Note a step without drafts."""
        self._num_without += 1

    def keep(self, running: SequenceOf[Sequence]) -> None:
        """Forget all sequences but these."""
        if any(sequence not in running for sequence in self._of):
            self._of = {sequence: found for sequence, found in self._of.items() if sequence in running}


def wished_drafts(
    rates: dict[Sequence, float],
    most: dict[Sequence, int],
    costs: StepCosts,
    draft_step_s: float,
    *,
    num_decodes: int,
    room: int,
    first_s: float | None = None,
    least_gain: float = LEAST_GAIN,
) -> dict[Sequence, int]:
    """Return how many tokens to draft to each sequence of a step in which `num_decodes` decode, `room` in all at most.

    Of all tokens that may be drafted those come first that are likeliest to be right, as long as the step, with the
    draft before it, brings `least_gain` times the tokens a second or more: a draft takes as many steps as the longest
    of them has tokens, the first of them `first_s` where that is something else.
    """
    without_s, more_s = costs.seconds(num_decodes), 0.0 if first_s is None else first_s - draft_step_s
    if not without_s:
        return {}
    room = min(room, costs.most_tried(num_decodes) - num_decodes)
    chances = sorted(
        (
            (rate**number, -number, index)
            for index, (sequence, rate) in enumerate(rates.items())
            for number in range(1, min(most[sequence], MAX_PROPOSED) + 1)
        ),
        reverse=True,
    )[:room]
    best, chosen, tokens, num_steps = least_gain * num_decodes / without_s, 0, float(num_decodes), 0
    for count, (chance, number, _) in enumerate(chances, 1):
        tokens, num_steps = tokens + chance, max(num_steps, -number)
        draft_s = more_s + num_steps * draft_step_s
        if tokens <= best * (without_s + draft_s):
            continue  # not even if the step took no longer
        seconds = costs.seconds(num_decodes + count) + draft_s
        if tokens / seconds > best:
            best, chosen = tokens / seconds, count
    counts = [0] * len(rates)
    for _, _, index in chances[:chosen]:
        counts[index] += 1
    return {sequence: count for sequence, count in zip(rates, counts, strict=True) if count}
