#!/usr/bin/env python3
"""What another device should reach, from the fractions of its limits that a measured device reached.

    roofline.py REPORT.json [--bandwidth GB/s] [--tflops N] [--context 256] [--kv-bytes BYTES] [--seed-target 81]

REPORT.json is what model.py --json wrote: steps of a model at several numbers of streams, beside the copy rate of the
same run. Of each step's time the report tells which share its weights' bytes would have needed at that rate, and its
operations at the highest measured rate; the larger of the two is the limit, and what it is of the step's time is the
fraction. The other device (by default a Radeon 780M: 89.6 GB/s of memory, 16.6 TFLOP/s in half precision, from data
sheets and not measured) is taken to reach the same fraction of its own limit. Keys and values are added at the memory's
rate and the same fraction. An estimate, and no measurement.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
    measured_tokens_per_s: float
    fraction: float
    bound: str
    tokens_per_s: float


def estimates(
    report: dict[str, Any], measured: Limits, other: Limits, *, kv_bytes: float, streams: list[int]
) -> list[Estimate]:
    """Carry each measured step over; streams between two measured ones get the fraction of the next larger one."""
    nbytes, flops = float(report["step_bytes"]), 2.0 * float(report["step_weights"])
    rates = {int(batch): float(found["tokens_per_s"]["median"]) for batch, found in report["decode"].items()}
    found = []
    for count in streams:
        at = min((batch for batch in rates if batch >= count), default=max(rates))
        step_s = at / rates[at]
        fraction = measured.step_s(nbytes, at * flops) / step_s
        needed = nbytes + count * kv_bytes
        seconds = other.step_s(needed, count * flops) / fraction
        found.append(Estimate(count, rates[at], fraction, other.bound(needed, count * flops), count / seconds))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Carries measured fractions of the limits over to another device.")
    parser.add_argument("report", type=Path)
    parser.add_argument("--bandwidth", type=float, default=89.6, metavar="GB/s", help="of the other device's memory")
    parser.add_argument("--tflops", type=float, default=16.6, help="of the other device, in half precision")
    parser.add_argument("--measured-tflops", type=float, required=True, help="the measured device's highest rate")
    parser.add_argument("--context", type=int, default=256, metavar="N", help="tokens of each stream")
    parser.add_argument("--kv-bytes", type=float, default=0.0, help="of a token of context, in all layers")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16, 32], metavar="N")
    parser.add_argument("--seed-target", type=float, default=81.0, help="tok/s in sum that were hoped for")
    options = parser.parse_args()
    report = json.loads(options.report.read_text())
    measured = Limits(report["copy_bytes_per_s"], 1e12 * options.measured_tflops)
    other = Limits(1e9 * options.bandwidth, 1e12 * options.tflops)
    kv_bytes = options.kv_bytes * options.context
    print(f"measured on {report['device']}; carried over to {options.bandwidth} GB/s and {options.tflops} TFLOP/s")
    print(f"{'streams':>8}{'measured tok/s':>16}{'of the limit':>14}{'bound there by':>16}{'estimate tok/s':>16}")
    found = estimates(report, measured, other, kv_bytes=kv_bytes, streams=options.streams)
    for one in found:
        print(
            f"{one.streams:>8}{one.measured_tokens_per_s:>16,.1f}{one.fraction:>14.0%}{one.bound:>16}"
            f"{one.tokens_per_s:>16,.1f}"
        )
    reached = next((one.streams for one in found if one.tokens_per_s >= options.seed_target), None)
    verdict = f"reached with {reached} streams" if reached else "not reached"
    print(f"{options.seed_target:g} tok/s in sum: {verdict}, by this estimate")


if __name__ == "__main__":
    main()
