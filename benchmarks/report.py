#!/usr/bin/env python3
"""What follows from the reports that speed.py decode wrote by --json: an estimate for another device, and plots.

    report.py estimate REPORT.json [--bandwidth GB/s] [--tflops N] [--measured-tflops N] [--context 256]
              [--streams 1 8 16 32] [--seed-target 81]
    report.py throughput OUT.svg REPORT.json ...    tokens per second against the number of streams, a line each report
    report.py kernels OUT.svg REPORT.json           shares of a step's time by kernel, a bar each number of streams

estimate: of each step's time the report tells which share its bytes, keys, values and states among them, would have
needed at the copy's rate, and its operations at the highest measured rate (of matrix units fed from registers, or
--measured-tflops); the larger of the two is the limit, and what it is of the step's time is the fraction. The other
device (by default a Radeon 780M: 89.6 GB/s of memory, 16.6 TFLOP/s in half precision, from data sheets and not
measured) is taken to reach the same fraction of its own limit, with streams of `--context` tokens. An estimate, and no
measurement. Streams between two measured numbers get the fraction of the larger; more than were measured get that of
the most, which is a guess: such rows say so, and the verdict does not count them.

The plots are drawn by plot.py; kernels need the report of a run with --kernels. What is missing in a report or makes no
sense is named by its place.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import plot
from command_line import add_part, amount, positive, run_part, run_script, whole
from step_work import StepWork

from unicorn_async.cli.options import count

# What a value has to be: a mapping with these keys, a list of at least one of these, which a tuple stands for if there
# may be none, or what a function does not name.
Expected: TypeAlias = "Mapping[str, Expected] | list[Expected] | tuple[Expected] | Callable[[object], str]"
_LARGEST = 1e30


def a_text(value: object) -> str:
    """Name what is expected unless it is text."""
    return "" if isinstance(value, str) else "text"


def a_flag(value: object) -> str:
    """Name what is expected unless it is true or false."""
    return "" if isinstance(value, bool) else "true or false"


def an_amount(value: object) -> str:
    """Name what is expected unless it is a number, 0 or more."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "" if is_number and 0 <= value < _LARGEST else "a number, 0 or more"


def above_zero(value: object) -> str:
    """Name what is expected unless it is a number above 0."""
    return "a number above 0" if an_amount(value) or value == 0 else ""


def a_count(value: object) -> str:
    """Name what is expected unless it is a positive whole number."""
    return "" if isinstance(value, int) and not above_zero(value) else "a positive whole number"


SOURCE: dict[str, Expected] = {
    "model": a_text,
    "weights": a_text,
    "device": a_text,
    "driver": a_text,
    "software": a_flag,
}


def read_reports(name: str, expected: Mapping[str, Expected]) -> list[dict[str, Any]]:
    """Read a file of at least one report, each with what is expected; more in it does no harm.

    Raises:
        argparse.ArgumentTypeError: it can't be read, or something in it is absent or otherwise.
    """
    try:
        found = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise argparse.ArgumentTypeError(f"{name}: {exc}") from None
    except RecursionError:
        raise argparse.ArgumentTypeError(f"{name}: nested too deeply") from None
    check(name, found, {"reports": [expected]})
    reports: list[dict[str, Any]] = found["reports"]
    return reports


def check(name: str, found: object, expected: Expected) -> None:
    """See that what a file holds is what is expected; raises as `read_reports` does."""
    if wrong := _wrong(found, expected, ""):
        raise argparse.ArgumentTypeError(f"{name}: not what speed.py --json writes: {wrong}")


def _wrong(value: object, expected: Expected, place: str) -> str:
    """Say where something is absent or otherwise, first of all places; "" where all is well."""
    where = place or "the file"
    if isinstance(expected, Mapping):
        if not isinstance(value, dict):
            return f"{where}: expected an object"
        for key, inner in expected.items():
            inside = f"{place}.{key}" if place else key
            if key not in value:
                return f"{inside} is missing"
            if wrong := _wrong(value[key], inner, inside):
                return wrong
        return ""
    if isinstance(expected, list | tuple):
        if not isinstance(value, list) or (isinstance(expected, list) and not value):
            return f"{where}: expected a list{' of at least one' if isinstance(expected, list) else ''}"
        checked = (_wrong(one, expected[0], f"{place}[{index}]") for index, one in enumerate(value))
        return next((wrong for wrong in checked if wrong), "")
    wanted = expected(value)
    return f"{where}: expected {wanted}, got {_short(value)}" if wanted else ""


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


BEYOND = "  beyond what was measured: a guess"
REPORT: dict[str, Expected] = {
    **SOURCE,
    "limits": {"copy_bytes_per_s": above_zero, "fma_flops_per_s": above_zero, "matrix_flops_per_s": an_amount},
    "work": {
        "weight_bytes": an_amount,
        "mixtures": ({"num_experts": a_count, "num_chosen": a_count, "nbytes": an_amount},),
        "layer_weights": an_amount,
        "head_weights": an_amount,
        "attending": ({"window": an_amount, "token_bytes": an_amount},),
        "state_bytes": an_amount,
    },
    "decode": [
        {
            "streams": a_count,
            "tokens_per_s": {"median": above_zero},
            "weight_bytes": above_zero,
            "kv_bytes": an_amount,
            "state_bytes": an_amount,
            "flops": above_zero,
        }
    ],
}
THROUGHPUT: dict[str, Expected] = {
    **SOURCE,
    "decode": [
        {
            "streams": a_count,
            "context": an_amount,
            "tokens_per_s": {"median": above_zero, "lowest": above_zero, "highest": above_zero},
        }
    ],
}
KERNELS: dict[str, Expected] = {
    "kernel_times": [{"tokens": a_count, "kernel": a_text, "detail": a_text, "ns": an_amount, "steps": a_count}],
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device can do: bytes and operations per second."""

    bytes_per_s: float
    flops_per_s: float

    def step_s(self, nbytes: float, flops: float) -> float:
        """The shortest time of a step that needs so much; reading and computing overlap."""
        return max(nbytes / self.bytes_per_s, flops / self.flops_per_s)

    def bound(self, nbytes: float, flops: float) -> str:
        """Say which of the two limits a step."""
        return "memory" if nbytes / self.bytes_per_s >= flops / self.flops_per_s else "operations"


@dataclass(frozen=True, slots=True)
class Estimate:
    """One number of streams: what was measured, and what follows."""

    streams: int
    measured_streams: int
    measured_tokens_per_s: float
    fraction: float
    bound: str
    tokens_per_s: float

    @property
    def is_beyond(self) -> bool:
        """Whether there are more streams than were measured."""
        return self.streams > self.measured_streams


def estimates(
    report: dict[str, Any], measured: Limits, other: Limits, *, context: int, streams: list[int]
) -> list[Estimate]:
    """Carry each measured step over; streams between two measured ones get the fraction of the next larger one.

    More streams than were measured get the fraction of the most.
    """
    work = StepWork.of_report(report["work"])
    runs = sorted(report["decode"], key=lambda run: run["streams"])
    found = []
    for number in streams:
        run = next((run for run in runs if run["streams"] >= number), runs[-1])
        rate = run["tokens_per_s"]["median"]
        read = run["weight_bytes"] + run["kv_bytes"] + run["state_bytes"]
        fraction = measured.step_s(read, run["flops"]) * rate / run["streams"]
        nbytes, flops = work.step_bytes(number, context), work.decode_flops(number)
        seconds = other.step_s(nbytes, flops) / fraction
        found.append(Estimate(number, run["streams"], rate, fraction, other.bound(nbytes, flops), number / seconds))
    return found


def lines(report: dict[str, Any], options: argparse.Namespace) -> list[str]:
    """Return the table of one report."""
    limits = report["limits"]
    flops_per_s = 1e12 * options.measured_tflops or max(limits["fma_flops_per_s"], limits["matrix_flops_per_s"])
    measured = Limits(limits["copy_bytes_per_s"], flops_per_s)
    other = Limits(1e9 * options.bandwidth, 1e12 * options.tflops)
    kind = "SOFTWARE device" if report["software"] else "GPU"
    table = [
        f"{report['model']}, weights {report['weights']}, measured on {report['device']}, {report['driver']}, {kind};"
        f" carried over to {options.bandwidth} GB/s and {options.tflops} TFLOP/s",
        f"{'streams':>8}{'of a run with':>15}{'measured tok/s':>16}{'of the limit':>14}{'bound there by':>16}"
        f"{'estimate tok/s':>16}",
    ]
    found = estimates(report, measured, other, context=options.context, streams=options.streams)
    table += [
        f"{one.streams:>8}{one.measured_streams:>15}{one.measured_tokens_per_s:>16,.1f}{one.fraction:>14.0%}"
        f"{one.bound:>16}{one.tokens_per_s:>16,.1f}{BEYOND if one.is_beyond else ''}"
        for one in found
    ]
    reaching = [one for one in found if one.tokens_per_s >= options.seed_target]
    reached = next((one.streams for one in reaching if not one.is_beyond), None)
    verdict = f"reached with {reached} streams" if reached else "not reached"
    if reaching and not reached:
        verdict += f" with up to {reaching[0].measured_streams} streams, the most that were measured"
    return [*table, f"{options.seed_target:g} tok/s in sum: {verdict}, by this estimate"]


def reports_of(name: str) -> list[dict[str, Any]]:
    """Read a file of reports that have runs of decoding, beside the device's limits."""
    return read_reports(name, REPORT)


def drawn(kind: str, names: list[str]) -> str:
    """Read the reports and draw a plot of them.

    Raises:
        argparse.ArgumentTypeError: a file is not one of reports, or there is no one report of kernels.
    """
    if kind == "throughput":
        return plot.throughput([report for name in names for report in read_reports(name, THROUGHPUT)])
    reports = [(name, report) for name in names for report in read_reports(name, SOURCE)]
    timed = [(name, report) for name, report in reports if report.get("kernel_times")]
    if len(timed) != 1:
        found = f"found {len(timed)} of {len(reports)}"
        raise argparse.ArgumentTypeError(f"expected one report with the times of kernels, {found}")
    ((name, report),) = timed
    check(name, report, KERNELS)
    return plot.kernels(report)


def run_estimate(options: argparse.Namespace, _: argparse.ArgumentParser) -> None:
    """Print a table for each report."""
    for report in options.reports:
        print("\n".join(lines(report, options)))


def run_plot(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Draw one plot."""
    try:
        options.out.write_text(drawn(options.plot, options.reports), encoding="utf-8")
    except (argparse.ArgumentTypeError, OSError) as exc:
        parser.error(str(exc))


def main() -> None:
    """Run the part that is asked for."""
    parser = argparse.ArgumentParser(description="What follows from the reports of speed.py decode.")
    parts = parser.add_subparsers(required=True, metavar="estimate, throughput or kernels")

    estimate = add_part(parts, "estimate", run_estimate, "Measured fractions of the limits, carried to another device.")
    estimate.add_argument("reports", type=reports_of, metavar="REPORT.json")
    text = "of the other device's memory"
    estimate.add_argument("--bandwidth", type=positive, default=89.6, metavar="GB/s", help=text)
    estimate.add_argument("--tflops", type=positive, default=16.6, help="of the other device, in half precision")
    estimate.add_argument("--measured-tflops", type=amount, default=0.0, help="limit of the measured device")
    estimate.add_argument("--context", type=whole, default=256, metavar="N", help="tokens of each stream")
    estimate.add_argument("--streams", type=count, nargs="+", default=[1, 8, 16, 32], metavar="N")
    estimate.add_argument("--seed-target", type=amount, default=81.0, help="tok/s in sum that were hoped for")

    for kind, text in (("throughput", "Tokens a second by streams, as SVG."), ("kernels", "A step's time, as SVG.")):
        part = add_part(parts, kind, run_plot, text)
        part.set_defaults(plot=kind)
        part.add_argument("out", type=Path, metavar="OUT.svg")
        part.add_argument("reports", nargs="+", metavar="REPORT.json")
    run_part(parser)


if __name__ == "__main__":
    run_script(main)
