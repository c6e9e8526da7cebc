"""Whether splitting a batch in two halves pays, by measured times of steps. Pure.

Two halves let two devices work at the same time, and make each of them read its weights twice. What weighs more depends
on the devices and on the step, so both ways are tried for each kind of step, and the faster one is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from unicorn_async.config import SplitMode

_TRIALS = 3  # of each way, before one is preferred
_RETRIAL_STEPS = 512  # after so many steps of a kind the other way is tried once more
_KEPT = 0.75  # of the estimate, with each new measurement


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
    trials: int = 0
    seconds: float = 0.0

    def note(self, seconds: float) -> None:
        # The first step of a shape is slow for other reasons; it counts until there is a better one.
        self.seconds = seconds if self.trials < 2 else _KEPT * self.seconds + (1 - _KEPT) * seconds
        self.trials += 1


@dataclass(slots=True)
class _Known:
    ways: dict[bool, _Way] = field(default_factory=lambda: {False: _Way(), True: _Way()})
    steps: int = 0


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
        whole, split = known.ways[False], known.ways[True]
        if min(whole.trials, split.trials) < _TRIALS:
            return split.trials < whole.trials
        faster = split.seconds < whole.seconds
        return not faster if known.steps % _RETRIAL_STEPS == 0 else faster

    def observe(self, kind: StepKind, seconds: float, *, split: bool) -> None:
        """Note what a step took on the device that runs the model, waiting included."""
        self._known.setdefault(kind, _Known()).ways[split].note(seconds)

    def preferences(self) -> list[dict[str, object]]:
        """Return what is known, kind by kind, as JSON values; milliseconds, None where there is no measurement."""
        return [
            {
                "tokens": kind.tokens,
                "keys_below": 1 << kind.keys_log2,
                "whole_ms": _milliseconds(known.ways[False]),
                "split_ms": _milliseconds(known.ways[True]),
            }
            for kind, known in sorted(self._known.items())
        ]


def _milliseconds(way: _Way) -> float | None:
    return round(1e3 * way.seconds, 4) if way.trials else None
