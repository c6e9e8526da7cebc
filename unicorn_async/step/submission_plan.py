"""Cuts a step into submissions that a slow GPU finishes well before its driver would reset it.

amdgpu resets a GPU when one submission runs for about ten seconds. What a step takes is learnt from steps that ran: per
bucket of tokens what it took with short contexts, and how much longer attention makes it, in proportion to what
its queries see. A bucket that was never run is taken to cost in proportion to the nearest one that was; attention that
never ran is taken to run at the device's least rates. What is not known is taken to be long, for to cut once more than
is needed costs next to nothing.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.step.attention_load import AttentionSeconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.step.attention_load import AttentionLoad, LayerCost

_UNTIMED_TOKENS = 32  # a step of so few tokens reads the weights once: it needs no cutting before it was measured
_SMALL = 1 / 8  # of a step's time: what is less says nothing of attention
_ROUNDING = 1e-9  # of sums
_DECAY = 0.9  # of what is known, in a step that took less


class _Known(NamedTuple):
    """A step that ran: its seconds, and those of its attention at the device's least rates."""

    seconds: float
    attention: AttentionSeconds


class SubmissionPlan:
    """Chooses how many layers go into one submission, by a budget of seconds."""

    def __init__(self, layers: Sequence[LayerCost | None], budget_s: float) -> None:
        """Plan for a model's layers, each with the cost of its attention; None where it has none."""
        self.layers = tuple(layers)
        self._kinds = tuple(Counter(layer for layer in layers if layer is not None).items())
        self._budget_s = budget_s * (1 + _ROUNDING)
        self._known: dict[int, _Known] = {}
        self._factors = [1.0, 1.0]  # by which decodes and prompts take longer than at the least rates

    def layers_per_submission(self, bucket: int, load: AttentionLoad) -> int:
        """Return the number of layers, at least 1, at most all, for a step of this bucket whose queries see so much."""
        num_layers = len(self.layers)
        if not self._known and bucket > _UNTIMED_TOKENS:
            return 1
        known_s, known = self._known.get(bucket) or self._nearest(bucket)
        if known_s + sum(self._grown(self._attention(load), known)) <= self._budget_s:
            return num_layers
        costs = {kind: self._now(load.seconds(kind)) for kind, _ in self._kinds}
        ends = (0.0, *accumulate(known_s / num_layers + (costs[each] if each else 0.0) for each in self.layers))
        return next((size for size in self._sizes() if self._longest(ends, size) <= self._budget_s), 1)

    def observe(self, bucket: int, load: AttentionLoad, seconds: float) -> None:
        """Note what a step of this bucket, whose queries saw so much, took on the device."""
        if seconds <= 0:  # no time at all says nothing
            return
        attention = self._attention(load)
        known = self._known.get(bucket) or _Known(0.0, attention)
        decode, prefill = self._grown(attention, known.attention)
        growth = decode + prefill
        if not growth and attention != known.attention:  # the least that it saw
            self._known[bucket] = _Known(seconds, attention)
        elif growth <= _SMALL * seconds or seconds < known.seconds:
            self._known[bucket] = _Known(max(seconds, _DECAY * known.seconds), known.attention)
        else:  # what has grown most is what was taken to be too fast, if that was
            self._factors[decode <= prefill] *= max((seconds - known.seconds) / growth, 1.0)
        for which, at_least in enumerate(self._attention(load, at_least=True)):  # no step is shorter than its attention
            if at_least * self._factors[which] > seconds:
                self._factors[which] = seconds / at_least

    def _nearest(self, bucket: int) -> _Known:
        """Return what a step of the bucket is taken to need."""
        if not self._known:
            return _Known(0.0, AttentionSeconds(0.0, 0.0))
        nearest = min(self._known, key=lambda known: abs(known - bucket))
        known = self._known[nearest]
        return known._replace(seconds=known.seconds * max(1.0, bucket / nearest))

    def _attention(self, load: AttentionLoad, *, at_least: bool = False) -> AttentionSeconds:
        """Return what all layers' attention takes at the least rates, at most or `at_least`."""
        decode = prefill = 0.0
        for kind, count in self._kinds:
            layer = load.least_seconds(kind) if at_least else load.seconds(kind)
            decode += count * layer.decode
            prefill += count * layer.prefill
        return AttentionSeconds(decode, prefill)

    def _now(self, attention: AttentionSeconds) -> float:
        """Return what attention takes as it is known to run."""
        return attention.decode * self._factors[0] + attention.prefill * self._factors[1]

    def _grown(self, attention: AttentionSeconds, known: AttentionSeconds) -> tuple[float, float]:
        """Return how much longer it takes than what is known, as it is known to run."""
        (decode, prefill), (known_decode, known_prefill) = attention, known
        return (
            (decode - known_decode) * self._factors[0] if decode > known_decode else 0.0,
            (prefill - known_prefill) * self._factors[1] if prefill > known_prefill else 0.0,
        )

    def _sizes(self) -> list[int]:
        """Parts of about the same size, the largest first: few sizes, as each is recorded for itself."""
        num_layers = len(self.layers)
        return list(dict.fromkeys(-(-num_layers // parts) for parts in range(1, num_layers + 1)))

    @staticmethod
    def _longest(ends: Sequence[float], size: int) -> float:
        last = len(ends) - 1
        return max(ends[min(first + size, last)] - ends[first] for first in range(0, last, size))
