"""Cuts a step into submissions that a slow GPU finishes well before its driver would reset it.

amdgpu resets a GPU when one submission runs for about ten seconds. How long a layer takes is measured per bucket of
tokens; a bucket that was never run is taken to cost in proportion to the nearest one that was.
"""

from __future__ import annotations

_UNTIMED_TOKENS = 32  # a step of so few tokens reads the weights once: it needs no cutting before it was measured


class SubmissionPlan:
    """Chooses how many layers go into one submission, by a budget of seconds."""

    def __init__(self, num_layers: int, budget_s: float) -> None:
        self._num_layers = num_layers
        self._budget_s = budget_s
        self._seconds: dict[int, float] = {}

    def layers_per_submission(self, bucket: int) -> int:
        """Return the number of layers, at least 1, at most all."""
        step_s = self._estimate(bucket)
        if step_s is None:
            return self._num_layers if bucket <= _UNTIMED_TOKENS else 1
        if step_s <= self._budget_s:
            return self._num_layers
        return max(1, int(self._num_layers * self._budget_s / step_s))

    def observe(self, bucket: int, seconds: float) -> None:
        """Note what a step of this bucket took on the device."""
        known = self._seconds.get(bucket)
        self._seconds[bucket] = seconds if known is None else max(seconds, 0.9 * known)

    def _estimate(self, bucket: int) -> float | None:
        if not self._seconds:
            return None
        nearest = min(self._seconds, key=lambda known: abs(known - bucket))
        return self._seconds[nearest] * max(1.0, bucket / nearest)
