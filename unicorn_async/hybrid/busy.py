"""When the two devices of a step worked, as the host saw it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Span(NamedTuple):
    """A device's work on one layer of one half of a step, in seconds of `time.perf_counter`.

    On the near device `layer` is what the work leads to: its attention, or with the number of layers the step's end.
    """

    step: int
    half: int
    layer: int
    start_s: float
    stop_s: float


class BusyTrack:
    """A device that works in the order of submission; its spans do not overlap.

    A piece of work began when it was submitted, or when the one before it was seen to end. The host sees ends late, by
    tens of microseconds.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._last_stop_s = 0.0

    def ended(self, step: int, half: int, layer: int, submitted_s: float) -> None:
        """Note work that has just been seen to end."""
        now = time.perf_counter()
        self.spans.append(Span(step, half, layer, max(submitted_s, self._last_stop_s), now))
        self._last_stop_s = now

    def take(self, step: int) -> list[Span]:
        """Return a step's spans, and forget them."""
        taken = [span for span in self.spans if span.step == step]
        self.spans = [span for span in self.spans if span.step != step]
        return taken


def busy_s(spans: Sequence[Span]) -> float:
    """Return how long a device worked."""
    return sum(span.stop_s - span.start_s for span in spans)


def both_busy_s(first: Sequence[Span], second: Sequence[Span]) -> float:
    """Return how long two devices worked at the same time; the spans of each are in order and do not overlap."""
    total, i, j = 0.0, 0, 0
    while i < len(first) and j < len(second):
        a, b = first[i], second[j]
        total += max(0.0, min(a.stop_s, b.stop_s) - max(a.start_s, b.start_s))
        if a.stop_s < b.stop_s:
            i += 1
        else:
            j += 1
    return total
