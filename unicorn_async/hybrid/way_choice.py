"""Which way a model's attention goes where nobody says it: by measured times of steps, and by estimates for the rest.

The NPU is taken where steps are faster with it at all ends of the figures' ranges. As long as one time is estimated,
that is no certainty, and the choice says so: what estimates leave out (`cost_model`) is in the NPU's favour. Times of
this machine's own steps say how often a class of steps was there; without any, no class that is assumed may be slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.config import AttentionKind
from unicorn_async.hybrid.cost_model import StepWork, Way, corners, way_seconds
from unicorn_async.hybrid.step_class import StepClass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unicorn_async.config import EngineConfig
    from unicorn_async.hybrid.cost_model import Corner
    from unicorn_async.hybrid.figures import Figure, GpuFigures, NpuFigures
    from unicorn_async.hybrid.step_times import StepTimes
    from unicorn_async.models.spec import ModelSpec

GAIN = 0.05  # less is within what equal steps differ by, and no reason to have two devices
_KEYS = 4096  # assumed of a long conversation


@dataclass(frozen=True, slots=True)
class WayTime:
    """Seconds of a class of steps in one way, at least and at most; of the NPU measured ones are of both its ways."""

    way: Way
    low_s: float
    high_s: float
    is_measured: bool

    def text(self) -> str:
        """Return it for people."""
        low, high = (f"{1e3 * value:.4g}" for value in (self.low_s, self.high_s))
        how = "measured" if self.is_measured else "estimated"
        return f"{self.way.value} {low if low == high else f'{low} to {high}'} ms {how}"


@dataclass(frozen=True, slots=True)
class ClassTimes:
    """A class of steps, how many of them this machine had (0 = it is assumed), and what they take."""

    step: StepClass
    count: int
    times: tuple[WayTime, ...]

    def text(self) -> str:
        """Return a line for people."""
        how_often = f"{self.count} times here" if self.count else "assumed"
        return f"{self.step.text()} ({how_often}): {'; '.join(time.text() for time in self.times)}"

    def to_json(self) -> dict[str, object]:
        """Return everything as JSON values, in milliseconds."""
        return {
            **self.step._asdict(),
            "steps": self.count,
            "ways": [
                {
                    "way": time.way.value,
                    "low_ms": round(1e3 * time.low_s, 4),
                    "high_ms": round(1e3 * time.high_s, 4),
                    "measured": time.is_measured,
                }
                for time in self.times
            ],
        }


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """What `auto` chose and why, with the times that were compared and the figures that estimates are made of."""

    kind: AttentionKind
    reason: str
    classes: tuple[ClassTimes, ...] = ()
    figures: tuple[Figure, ...] = ()

    def lines(self) -> list[str]:
        """Return lines for people: the choice, then its numbers."""
        return [
            f"attention auto: {self.kind.value}: {self.reason}",
            *(f"  {one.text()}" for one in self.classes),
            *(f"  {figure.text()}" for figure in self.figures),
        ]

    def to_json(self) -> dict[str, object]:
        """Return everything as JSON values."""
        return {
            "chosen": self.kind.value,
            "reason": self.reason,
            "classes": [one.to_json() for one in self.classes],
            "figures": [figure.to_json() for figure in self.figures],
        }


def assumed_classes(model: ModelSpec, options: EngineConfig) -> tuple[StepClass, ...]:
    """Return the steps that an engine is made for: one sequence, as many as there may be, and a long prompt's."""
    keys = min(_KEYS, options.max_context or model.max_position)
    counts = [(1, 1), (options.max_seqs, options.max_seqs), (1, min(options.max_num_batched_tokens, keys))]
    return tuple(dict.fromkeys(StepClass(*counted, keys) for counted in counts))


def choose_way(
    work_of: Callable[[StepClass], StepWork],
    assumed: Sequence[StepClass],
    times: StepTimes,
    gpu: GpuFigures | None,
    npu: NpuFigures,
) -> AttentionChoice:
    """Compare; without the GPU's figures, measured times alone count."""
    counts = times.counts()
    rows = [_Row(step, counts.get(step, 0), work_of(step), times) for step in (counts or assumed)]
    figures = (*(gpu.all() if gpu is not None else ()), *npu.all())
    at = list(corners(gpu, npu)) if gpu is not None else [None]
    if gpu is None and not (counts and all(row.is_measured for row in rows)):
        reason = "of this GPU no rates are known, and not all classes of steps were measured in both ways"
        return AttentionChoice(AttentionKind.GPU, reason, (), npu.all())
    classes = tuple(row.shown(at) for row in rows)
    if counts:
        ratios = [_ratio([(row.count, *row.gpu_and_npu(corner)) for row in rows]) for corner in at]
        of_what = f"this machine's {sum(counts.values())} steps take"
    else:
        ratios = [_ratio([(1, *row.gpu_and_npu(corner))]) for corner in at for row in rows]
        of_what = "steps of each class take"
    low, high = f"{min(ratios):.3g}", f"{max(ratios):.3g}"
    times_as_long = f"with the NPU {of_what} {low if low == high else f'{low} to {high}'} times as long"
    if not all(row.is_measured for row in rows):
        times_as_long += " by estimate, which leaves out the host's copies and runs that are cut by their time"
    if max(ratios) < 1.0 - GAIN:
        return AttentionChoice(AttentionKind.NPU, times_as_long, classes, figures)
    reason = f"{times_as_long}; it is taken where that is less than {1.0 - GAIN:g} at all ends of the figures' ranges"
    return AttentionChoice(AttentionKind.GPU, reason, classes, figures)


def _ratio(weighted: list[tuple[int, float, float]]) -> float:
    gpu_s, npu_s = (sum(row[0] * row[place] for row in weighted) for place in (1, 2))
    return npu_s / gpu_s if gpu_s else 1.0


@dataclass(frozen=True, slots=True)
class _Row:
    step: StepClass
    count: int
    work: StepWork
    times: StepTimes

    @property
    def gpu_s(self) -> float | None:
        return self.times.seconds(AttentionKind.GPU, self.step)

    @property
    def npu_s(self) -> float | None:
        return self.times.seconds(AttentionKind.NPU, self.step)

    @property
    def is_measured(self) -> bool:
        return self.gpu_s is not None and self.npu_s is not None

    def ways(self, at: Corner | None) -> dict[Way, float]:
        """What is measured in a way goes before what is estimated; the NPU's ways have been chosen by times already."""
        ways = {} if at is None else way_seconds(self.work, at, self.gpu_s)
        if self.gpu_s is not None:
            ways[Way.GPU] = self.gpu_s
        if self.npu_s is not None:
            ways = {Way.GPU: ways[Way.GPU], Way.WHOLE: self.npu_s}
        return ways

    def gpu_and_npu(self, at: Corner | None) -> tuple[float, float]:
        ways = self.ways(at)
        return ways[Way.GPU], min(seconds for way, seconds in ways.items() if way is not Way.GPU)

    def shown(self, at: Sequence[Corner | None]) -> ClassTimes:
        found = [self.ways(corner) for corner in at]
        measured = {Way.GPU: self.gpu_s is not None, Way.WHOLE: self.npu_s is not None}
        times = (
            WayTime(way, min(ways[way] for ways in found), max(ways[way] for ways in found), measured.get(way, False))
            for way in found[0]
        )
        return ClassTimes(self.step, self.count, tuple(times))
