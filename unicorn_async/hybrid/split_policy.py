"""Whether splitting a batch in two halves pays, by measured times of steps. Pure.

Two halves let two devices work at the same time, and make each of them read its weights twice. What weighs more depends
on the devices and on the step, so both ways are tried for each kind of step, and the faster one is taken: the one with
the lower median of its last steps, which no single slow step moves.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median_low
from typing import NamedTuple

from unicorn_async.config import SplitMode

_KEPT = 5  # measurements of a way
_TRIALS = 3  # of each way in a row, before one is preferred: most of those that are kept, so that they decide
_RETRIAL_STEPS = 512  # after so many steps of a kind the other way is tried again


class StepKind(NamedTuple):
    """Steps that take about equally long: their bucket of tokens, and the keys that they attend to, by powers of 2."""

    tokens: int
    keys_log2: int

    @classmethod
    def of(cls, tokens: int, keys: int) -> StepKind:
        """Return the kind of a step with these numbers of tokens and of attended keys."""
        return cls(tokens, keys.bit_length())


@dataclass(slots=True)
class _Way:
    last_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    @property
    def trials(self) -> int:
        return len(self.last_s)

    @property
    def seconds(self) -> float:
        return median_low(self.last_s)


@dataclass(slots=True)
class _Known:
    ways: dict[bool, _Way] = field(default_factory=lambda: {False: _Way(), True: _Way()})
    steps: int = 0

    @property
    def preferred(self) -> bool | None:
        """Whether splitting was faster; None as long as both ways are tried."""
        whole, split = self.ways[False], self.ways[True]
        return split.seconds < whole.seconds if min(whole.trials, split.trials) >= _TRIALS else None


class SplitPolicy:
    """Chooses for each step; `choose` and `observe` may be some steps apart."""

    def __init__(self, mode: SplitMode) -> None:
        self._mode = mode
        self._known: dict[StepKind, _Known] = {}

    def choose(self, kind: StepKind) -> bool:
        """Return whether to split a step that can be split."""
        if self._mode is not SplitMode.AUTO:
            return self._mode is SplitMode.ALWAYS
        known = self._known.setdefault(kind, _Known())
        known.steps += 1
        preferred = known.preferred
        if preferred is None:  # steps of one way in a row: halves may begin beside those before them
            return known.ways[False].trials >= _TRIALS
        return not preferred if known.steps % _RETRIAL_STEPS < _TRIALS else preferred

    def observe(self, kind: StepKind, seconds: float, *, split: bool) -> None:
        """Note what a step took on the device that runs the model, waiting included.

        Steps that took long for a reason that has nothing to do with their way are not to be noted.
        """
        self._known.setdefault(kind, _Known()).ways[split].last_s.append(seconds)

    def preferences(self) -> list[dict[str, object]]:
        """Return what is known, kind by kind, as JSON values; milliseconds, None where there is no measurement.

        `way` is "split" or "whole", which steps of this kind are now, or None as long as both ways are tried.
        """
        return [
            {
                "tokens": kind.tokens,
                "keys_below": 1 << kind.keys_log2,
                "whole_ms": _milliseconds(known.ways[False]),
                "split_ms": _milliseconds(known.ways[True]),
                "way": self._way(known),
            }
            for kind, known in sorted(self._known.items())
        ]

    def _way(self, known: _Known) -> str | None:
        split = known.preferred if self._mode is SplitMode.AUTO else self._mode is SplitMode.ALWAYS
        return None if split is None else "split" if split else "whole"


def _milliseconds(way: _Way) -> float | None:
    return round(1e3 * way.seconds, 4) if way.trials else None
