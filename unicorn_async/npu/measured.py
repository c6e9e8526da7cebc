"""Rates of this machine's NPU as `unicorn npu validate` measured them, kept beside the build that they are of."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from unicorn_async.errors import NpuBuildError
from unicorn_async.npu.pace import FEW_TASKS

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.npu.manifest import Build

FORMAT = 2
MOST_TASKS = 1 << 16
_MAX_BYTES = 4096
_MAX_TEXT = 200
_TEXTS = ("sha256", "software", "time")
_RATES = ("bytes_per_s", "multiply_adds_per_s", "dispatch_s")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MeasuredRates:
    """What all cores together read and compute a second, and what a layer with nothing to do takes.

    Runs of `tasks_per_run` ended well. `sha256` is the measured build's, `software` its machine's as
    `NpuHost.npu_software` tells it, `time` when it was measured.
    """

    sha256: str
    software: str
    time: str
    bytes_per_s: float
    multiply_adds_per_s: float
    dispatch_s: float
    tasks_per_run: int = FEW_TASKS


def rates_path(folder: Path, build: Build) -> Path:
    """Return where a build's rates are, or would be, in the folder of builds."""
    return folder / f"rates_{build.chip.name}_d{build.head_dim}.json"


def write_rates(folder: Path, build: Build, rates: MeasuredRates) -> Path:
    """Keep them in the place of earlier ones; raises OSError where that is not possible."""
    path = rates_path(folder, build)
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps({"format": FORMAT, **asdict(rates)}, indent=1) + "\n")
    partial.replace(path)
    return path


def remove_rates(folder: Path, build: Build) -> bool:
    """Remove a build's rates, of which a validation has not come out right; returns whether there were any.

    Raises OSError where they can't be removed.
    """
    path = rates_path(folder, build)
    had_some = path.exists()
    path.unlink(missing_ok=True)
    return had_some


def find_rates(folder: Path, build: Build, software: str) -> MeasuredRates | None:
    """Return a build's rates with this software; None where there are none.

    Those of another build, of another firmware or driver, or of no form, are so for the log.
    """
    path = rates_path(folder, build)
    try:
        with path.open("rb") as file:
            rates = _parse(json.loads(file.read(_MAX_BYTES)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, NpuBuildError) as exc:
        _log.warning("%s: no rates of an NPU: %s; `unicorn npu validate` measures them again", path, exc)
        return None
    if rates.sha256 != build.sha256:
        _log.warning("%s: measured with another build; `unicorn npu validate` measures this one", path)
        return None
    if rates.software != software:
        _log.warning(
            "%s: measured with %s, this is %s; `unicorn npu validate` measures it", path, rates.software, software
        )
        return None
    return rates


def _parse(values: object) -> MeasuredRates:
    fields: dict[str, Any] = values if isinstance(values, dict) else {}
    texts, rates = [fields.get(key) for key in _TEXTS], [fields.get(key) for key in _RATES]
    are_rates = all(isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < inf for rate in rates)
    tasks = fields.get("tasks_per_run")
    are_tasks = type(tasks) is int and FEW_TASKS <= tasks <= MOST_TASKS
    are_right = are_rates and are_tasks and all(isinstance(text, str) for text in texts)
    if fields.get("format") != FORMAT or not are_right:
        raise NpuBuildError(
            f"expected format {FORMAT} with {', '.join(_TEXTS)}, more than 0 in {', '.join(_RATES)}, and {FEW_TASKS} to"
            f" {MOST_TASKS} tasks_per_run"
        )
    sha256, software, measured = (fields[key][:_MAX_TEXT] for key in _TEXTS)
    read, computed, dispatch = (float(fields[key]) for key in _RATES)
    return MeasuredRates(sha256, software, measured, read, computed, dispatch, fields["tasks_per_run"])
