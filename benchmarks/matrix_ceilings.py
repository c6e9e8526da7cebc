"""What a device's matrix units can come to by each extension, and which share of it the prompt's kernels reach.

Products of halves, by bare kernels: of VK_KHR_cooperative_matrix with factors from registers, and from shared memory;
of VK_NV_cooperative_matrix2 with factors read once, and read from memory as y (m, n) = a (m, k) · b (n, k)^T has to,
summed in single and in half precision, by the best of several tiles. In the same run the product's own kernels,
linear_many_coopmat (F16) and linear_quant_coopmat (Q4_0), as the engine plans them. A shape is m x n x k; m is the
prompt's tokens.

Each kernel's output is compared with a float64 reference at samples of rows and columns first; one that is off has no
rate. Work of `--warm-s` seconds goes ahead of what is timed. Then all kernels take turns, each for some milliseconds
between two timestamps with a barrier after each dispatch, `--rounds` times; figures are medians, with the lowest and
the highest. What a device lacks is said, with the reason. `--all` prints every tile's rate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from bench_device import device_facts, opened_device
from command_line import add_part, amount
from matrix2.extension import enabled
from matrix_ceiling_cases import Cases, lacking

from unicorn_async.cli.options import count
from unicorn_async.errors import DeviceError
from unicorn_async.gpu.command import TimestampPool

if TYPE_CHECKING:
    from matrix_ceiling_cases import Case

    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.queue import CommandBuffer

SHAPES = ("512x43008x5376", "512x5376x21504", "512x8192x5376", "512x5376x4096", "4096x4096x4096")
FLOPS_A_TURN = 2e12
MAX_REPEATS = 64
COMPILERS = 8


@dataclass(frozen=True, slots=True)
class Rate:
    """What one kernel came to, in TFLOP/s, and how far its output was off, as a share of the largest reference."""

    group: str
    kernel: str
    shape: str
    error: float
    median: float
    lowest: float
    highest: float

    def line(self) -> str:
        """Return it for people."""
        spread = f"{self.median:8.1f} ({self.lowest:.1f} to {self.highest:.1f})"
        return f"{self.group:<34}{self.shape:<17}{spread:<28}{self.kernel}, error {self.error:.0e}"


def dimensions(text: str) -> tuple[int, int, int]:
    """Parse m x n x k."""
    parts = text.split("x")
    if len(parts) != 3 or not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"expected a shape like 512x43008x5376, got {text!r}")
    m, n, k = map(int, parts)
    if k % 64:
        raise argparse.ArgumentTypeError(f"{text}: expected a multiple of 64 columns")
    return m, n, k


def usable(cases: list[Case]) -> list[Case]:
    """Compile all kernels; those that the driver does not compile are told and left out."""

    def fault(case: Case) -> str | None:
        try:
            case.kernels.get(
                case.request.name, constants=case.request.constants, subgroup_size=case.request.subgroup_size
            )
        except DeviceError as exc:
            return str(exc)
        return None

    with ThreadPoolExecutor(COMPILERS) as pool:
        faults = dict(zip(cases, pool.map(fault, cases), strict=True))
    for text in dict.fromkeys(f"not compiled: {case.kernel}: {text}" for case, text in faults.items() if text):
        print(text, flush=True)
    return [case for case in cases if faults[case] is None]


def checked(cases: list[Case]) -> dict[Case, float]:
    """Compare every kernel's output with its reference; returns the errors of those that are right."""
    errors = {case: case.error() for case in cases}
    for case, error in errors.items():
        if not error <= case.allowed:
            print(f"WRONG: {case.group}, {case.kernel}, {case.shape}: off by {error:.1e}", flush=True)
    return {case: error for case, error in errors.items() if error <= case.allowed}


def recorded(bench: Cases, case: Case, stamps: TimestampPool) -> CommandBuffer:
    """Record a kernel's turn."""
    recorder = bench.pool.recorder()
    case.prepare(recorder)
    recorder.barrier()
    recorder.timestamp(stamps, 0)
    for index in range(repeats_of(case)):
        case.record(recorder, index)
        recorder.barrier()
    recorder.timestamp(stamps, 1)
    return recorder.end()


def time_in_turns(device: Device, bench: Cases, cases: dict[Case, float], options: argparse.Namespace) -> list[Rate]:
    """Keep the device busy with the first kernel for a while, then time all, one after the other, in every round."""
    stamps, seconds = TimestampPool(device, 2), {case: list[float]() for case in cases}
    turns = {case: recorded(bench, case, stamps) for case in cases}
    end = time.monotonic() + options.warm_s
    while time.monotonic() < end:
        device.compute.timeline.wait(device.compute.submit([next(iter(turns.values()))]))
    for _ in range(options.rounds):
        for case, commands in turns.items():
            device.compute.timeline.wait(device.compute.submit([commands]))
            start, stop = stamps.read(0, 2)
            seconds[case].append((stop - start) / repeats_of(case) / 1e9)
    stamps.close()
    return [
        Rate(case.group, case.kernel, case.shape, error, *(case.flops / found(seconds[case]) / 1e12 for found in ORDER))
        for case, error in cases.items()
    ]


ORDER = (statistics.median, max, min)  # of seconds: the median, lowest and highest rate


def repeats_of(case: Case) -> int:
    """Dispatches between two timestamps."""
    return max(1, min(MAX_REPEATS, int(FLOPS_A_TURN / case.flops)))


def summary(rates: list[Rate]) -> list[str]:
    """Return the best tile of each group and shape, then the share of each ceiling that our kernels reach."""
    best: dict[tuple[str, str], Rate] = {}
    for rate in rates:
        key = rate.group, rate.shape
        best[key] = max(best.get(key, rate), rate, key=lambda r: r.median)
    lines = [f"{'TFLOP/s, the best of each':<34}{'m x n x k':<17}{'median (lowest to highest)':<28}kernel"]
    lines += [rate.line() for rate in best.values()]
    for own in best.values():
        if not own.group.startswith("ours"):
            continue
        ceilings = [r for r in best.values() if not r.group.startswith("ours") and r.shape in ("", own.shape)]
        shares = ", ".join(f"{own.median / ceiling.median:.0%} of {ceiling.group}" for ceiling in ceilings)
        lines.append(f"{own.group} {own.shape}: {own.median:.1f}: {shares or 'no ceiling was measured'}")
    return lines


def measure(device: Device, options: argparse.Namespace) -> list[Rate]:
    """Run everything."""
    bench = Cases(device, options.shape)
    try:
        cases = usable(list(bench.all()))
        right = checked(cases)
        print(f"{len(right)} of {len(cases)} kernels and shapes are right", flush=True)
        return time_in_turns(device, bench, right, options) if right else []
    finally:
        bench.close()


def run(options: argparse.Namespace, _: argparse.ArgumentParser) -> None:
    """Measure, print, write.

    Raises:
        DeviceError: the device has nothing that could be measured.
    """
    with opened_device(options.device, enabled) as device:
        print("\n".join(lacking(device)), flush=True)
        rates = measure(device, options)
    if not rates:
        raise DeviceError(f"{device.info.name}: nothing to measure")
    print("\n".join([*(rate.line() for rate in rates if options.all), *summary(rates)]))
    if options.json:
        report = device_facts(device.info) | {"rates": [asdict(rate) for rate in rates]}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


def add(parts: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the part of kernels.py."""
    part = add_part(parts, "ceilings", run, "What matrix units can come to, and what of it the kernels reach.")
    part.add_argument("--shape", type=dimensions, nargs="+", default=[dimensions(text) for text in SHAPES])
    part.add_argument("--warm-s", type=amount, default=2.0, metavar="N", help="seconds of work ahead")
    part.add_argument("--rounds", type=count, default=5, metavar="N")
    part.add_argument("--all", action="store_true", help="print every tile's rate")
    return part
