#!/usr/bin/env python3
"""What another device should reach, from the fractions of its limits that a measured device reached.

    roofline.py REPORT.json [--bandwidth GB/s] [--tflops N] [--measured-tflops N] [--context 256]
                [--streams 1 8 16 32] [--seed-target 81]

REPORT.json is what batched.py --json (or model.py's) wrote: steps of a model at several numbers of streams, beside the
limits of the device in the same run. Of each step's time the report tells which share its bytes, keys and values among
them, would have needed at the copy's rate, and its operations at the highest measured rate (of matrix units fed from
registers, or --measured-tflops); the larger of the two is the limit, and what it is of the step's time is the
fraction. The other device (by default a Radeon 780M: 89.6 GB/s of memory, 16.6 TFLOP/s in half precision, from data
sheets and not measured) is taken to reach the same fraction of its own limit, with streams of `--context` tokens. An
estimate, and no measurement. Streams between two measured numbers get the fraction of the larger; more than were
measured get that of the most, which is a guess: such rows say so, and the verdict does not count them.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from amounts import amount, positive, whole
from report_files import SOURCE, Expected, a_count, above_zero, an_amount, read_reports
from step_work import StepWork

from unicorn_async.cli.options import count

BEYOND = "  beyond what was measured: a guess"
REPORT: dict[str, Expected] = {
    **SOURCE,
    "limits": {"copy_bytes_per_s": above_zero, "fma_flops_per_s": above_zero, "matrix_flops_per_s": an_amount},
    "work": {
        "weight_bytes": an_amount,
        "layer_weights": an_amount,
        "head_weights": an_amount,
        "kv_token_bytes": an_amount,
        "windows": [an_amount],
    },
    "decode": [
        {
            "streams": a_count,
            "tokens_per_s": {"median": above_zero},
            "weight_bytes": above_zero,
            "kv_bytes": an_amount,
            "flops": above_zero,
        }
    ],
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
    work = StepWork(**{name: report["work"][name] for name in REPORT["work"]})
    runs = sorted(report["decode"], key=lambda run: run["streams"])
    found = []
    for number in streams:
        run = next((run for run in runs if run["streams"] >= number), runs[-1])
        rate = run["tokens_per_s"]["median"]
        fraction = measured.step_s(run["weight_bytes"] + run["kv_bytes"], run["flops"]) * rate / run["streams"]
        nbytes, flops = work.weight_bytes + number * work.kv_bytes(context), work.decode_flops(number)
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


def main() -> None:
    """Print a table for each report."""
    parser = argparse.ArgumentParser(description="Carries measured fractions of the limits over to another device.")
    parser.add_argument("reports", type=reports_of, metavar="REPORT.json")
    parser.add_argument("--bandwidth", type=positive, default=89.6, metavar="GB/s", help="of the other device's memory")
    parser.add_argument("--tflops", type=positive, default=16.6, help="of the other device, in half precision")
    parser.add_argument("--measured-tflops", type=amount, default=0.0, help="limit of the measured device")
    parser.add_argument("--context", type=whole, default=256, metavar="N", help="tokens of each stream")
    parser.add_argument("--streams", type=count, nargs="+", default=[1, 8, 16, 32], metavar="N")
    parser.add_argument("--seed-target", type=amount, default=81.0, help="tok/s in sum that were hoped for")
    options = parser.parse_args()
    for report in options.reports:
        print("\n".join(lines(report, options)))


if __name__ == "__main__":
    main()
