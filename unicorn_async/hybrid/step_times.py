"""Times of steps that were measured on this machine with attention on the GPU and on the NPU, by classes of steps.

They are kept for a model, its weights, a GPU with its driver and an NPU, in a file for either place, and go before
every estimate. The NPU's are of its kernels, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections import deque
from dataclasses import dataclass, field
from hashlib import sha256
from math import inf
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any

from unicorn_async.config import AttentionKind
from unicorn_async.errors import ConfigError
from unicorn_async.hybrid.step_class import StepClass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.step.result import StepResult

FORMAT = 1
MAX_ROWS = 256
LEAST_STEPS = 3  # before a time counts
_KEPT = 9
_MAX_BYTES = 1 << 20
_MAX_COUNT = 1 << 40
_PLACES = {AttentionKind.GPU, AttentionKind.NPU}


@dataclass(slots=True)
class _Times:
    count: int = 0
    last_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))


class StepTimes:
    """Seconds of steps by where the attention was, and by their class."""

    def __init__(self) -> None:
        self._rows: dict[tuple[AttentionKind, StepClass], _Times] = {}

    def observe(self, place: AttentionKind, result: StepResult) -> None:
        """Note what a step took; one that waited for layers of a load says nothing, nor one that checks proposals."""
        if not result.waited and not result.batch.has_proposals:
            self.add(place, StepClass.of(result.batch), [result.device_s])

    def add(self, place: AttentionKind, step: StepClass, seconds: list[float], count: int | None = None) -> None:
        """Note steps of a class, `count` of them where not all have their times; beyond MAX_ROWS classes, nothing."""
        if (place, step) not in self._rows and len(self._rows) >= MAX_ROWS:
            return
        times = self._rows.setdefault((place, step), _Times())
        times.count = min(_MAX_COUNT, times.count + (len(seconds) if count is None else count))
        times.last_s.extend(seconds)

    def seconds(self, place: AttentionKind, step: StepClass) -> float | None:
        """Return the median of a class' last steps; None where there were too few."""
        times = self._rows.get((place, step))
        return None if times is None or len(times.last_s) < LEAST_STEPS else median_low(times.last_s)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was noted."""
        return not self._rows

    def counts(self) -> Mapping[StepClass, int]:
        """Return how many steps there were of each class, wherever their attention was."""
        found: dict[StepClass, int] = {}
        for (_, step), times in self._rows.items():
            found[step] = found.get(step, 0) + times.count
        return dict(sorted(found.items()))

    def joined(self, later: StepTimes) -> StepTimes:
        """Return both together."""
        both = StepTimes()
        for times in (self, later):
            for (place, step), row in times._rows.items():
                both.add(place, step, list(row.last_s), row.count)
        return both

    def at(self, place: AttentionKind) -> StepTimes:
        """Return those of steps whose attention was there."""
        found = StepTimes()
        found._rows = {key: times for key, times in self._rows.items() if key[0] is place}
        return found

    def to_json(self) -> dict[str, object]:
        """Return what `parse` reads."""
        return {
            "format": FORMAT,
            "rows": [
                {"attention": place.value, **step._asdict(), "steps": times.count, "last_s": list(times.last_s)}
                for (place, step), times in self._rows.items()
            ],
        }

    @classmethod
    def parse(cls, values: object) -> StepTimes:
        """Return the times that a file holds.

        Raises:
            ConfigError: it holds none.
        """
        rows = values.get("rows") if isinstance(values, dict) and values.get("format") == FORMAT else None
        if not isinstance(rows, list) or len(rows) > MAX_ROWS:
            raise ConfigError(f"expected format {FORMAT} with at most {MAX_ROWS} rows")
        found = cls()
        for row in rows:
            found._parse_row(row)
        return found

    def _parse_row(self, row: object) -> None:
        fields: dict[str, Any] = row if isinstance(row, dict) else {}
        numbers = [fields.get(key) for key in (*StepClass._fields, "steps")]
        seconds = fields.get("last_s")
        place = next((place for place in _PLACES if place.value == fields.get("attention")), None)
        if (
            place is None
            or not all(type(number) is int and 0 < number <= _MAX_COUNT for number in numbers)
            or not isinstance(seconds, list)
            or len(seconds) > _KEPT
            or not all(type(one) in (int, float) and 0 <= one < inf for one in seconds)
        ):
            raise ConfigError("a row is none of steps' times")
        step = StepClass(*(fields[key] for key in StepClass._fields))
        self.add(place, step, [float(one) for one in seconds], fields["steps"])


class StepTimesFile:
    """Where the times of one model on one machine, in one place, are kept; all methods block on the disk."""

    def __init__(self, folder: Path, *identity: object) -> None:
        """Name the file by what its times are of."""
        self.path = folder / f"{sha256(repr(identity).encode()).hexdigest()[:32]}.json"

    def read(self) -> StepTimes:
        """Return the times; none where there is no file.

        Raises:
            ConfigError: the file can't be read, or holds something else.
        """
        try:
            with os.fdopen(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                return StepTimes.parse(json.loads(file.read(_MAX_BYTES)))
        except FileNotFoundError:
            return StepTimes()
        except OSError as exc:
            raise ConfigError(f"{self.path}: not read: {exc.strerror or exc}") from exc
        except (ValueError, RecursionError, ConfigError) as exc:
            raise ConfigError(f"{self.path}: no times of steps: {exc}") from exc

    def add(self, times: StepTimes) -> None:
        """Join times to those that are there, in one step; what can't be read is replaced.

        Raises:
            ConfigError: that is not possible.
        """
        with contextlib.suppress(ConfigError):  # who reads says so
            times = self.read().joined(times)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, partial = tempfile.mkstemp(prefix=self.path.name, suffix=".part", dir=self.path.parent)
            try:
                with os.fdopen(descriptor, "w") as file:
                    json.dump(times.to_json(), file)
                Path(partial).replace(self.path)
            except BaseException:
                Path(partial).unlink(missing_ok=True)
                raise
        except OSError as exc:
            raise ConfigError(f"{self.path}: not written: {exc.strerror or exc}") from exc
