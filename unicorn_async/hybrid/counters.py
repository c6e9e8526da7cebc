"""Counts what two devices do in steps that may overlap."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unicorn_async.hybrid.busy import both_busy_s, busy_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.hybrid.busy import Span


@dataclass(slots=True)
class HybridCounters:
    """What was done so far.

    `step_s` is the time in which there was a step on a device, `both_s` that in which both devices worked.
    """

    split_steps: int = 0
    whole_steps: int = 0
    step_s: float = 0.0
    near_s: float = 0.0
    far_s: float = 0.0
    both_s: float = 0.0
    _stop_s: float = 0.0
    _last: list[tuple[Sequence[Span], Sequence[Span]]] = field(default_factory=list)

    def note(self, near: Sequence[Span], far: Sequence[Span], *, is_split: bool) -> float:
        """Count a step, in the order of steps; returns its seconds without those before the end of the step before it.

        Two steps that go on beside each other take long each, but together less than the sum.
        """
        stop_s = near[-1].stop_s
        added_s = max(0.0, stop_s - max(near[0].start_s, self._stop_s))
        self._stop_s = max(self._stop_s, stop_s)
        self.split_steps += is_split
        self.whole_steps += not is_split
        self.step_s += added_s
        self.near_s += busy_s(near)
        self.far_s += busy_s(far)
        self.both_s += both_busy_s(near, far)
        self._last = [(last, of_far) for last, of_far in self._last if last[-1].stop_s > near[0].start_s]
        for last_near, last_far in self._last:
            self.both_s += both_busy_s(near, last_far) + both_busy_s(last_near, far)
        self._last.append((near, far))
        return added_s
