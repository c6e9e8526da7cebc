#!/usr/bin/env python3
"""What a device's kernels reach, beside what it can do at all: matrix products, attention, and any dispatch.

    kernels.py linear [--shape 21504x5376 ...] [--tokens 1 8 32 512] [--format BF16 int4 Q4_K ...] [--gated]
               [--candidates] [--only NAME] [--best 6] [--rounds 5] [--plans-of 780M]
    kernels.py attention [--shape 32:16:128 ...] [--context 1024 8192 32768] [--streams 1 ...] [--kv-dtype f16 int8 ...]
               [--rotates no passing apart] [--sweep] [--splits N ...] [--tile N ...] [--best 6]
    kernels.py floor [--megabytes 0 1 4 12.4 24.8 65 130] [--repeats 64]
    kernels.py ceilings [--shape 512x43008x5376 ...] [--warm-s 2] [--rounds 5] [--all]

    each with [--device NAME] [--json FILE]

All times are the device's own. linear: the time of a product's dispatch with the barrier after it, by the kernel that
the rules choose; with --candidates also by each of those that `unicorn tune` compares it with, the fastest first. Work
goes ahead of what is timed, so that clocks are high, and dispatches read different copies of the weights, so that no
cache holds them. Formats whose weights lie alike on the device, such as int4 and Q4_0, are one. With --plans-of the
rules are also asked what they would choose for that chip (see rdna3.py), and this device runs it (">"): what makes a
plan right or wrong for another chip is not seen so, but that its kernel runs, and what it takes here.

floor: what a dispatch costs before it does any work: kernels that only read, by how much they read, the median of
rounds of dispatches that read memory one after the other. The smallest read is a block of 16 bytes. "Above" is what a
read takes beyond its bytes at the rate by which the largest size goes beyond the one before it: starting, filling and
draining the device. A product with so many bytes of weights can take no less.

attention is described in kernels_attention.py, ceilings in matrix_ceilings.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import kernels_attention
import matrix_ceilings
from bench_device import DEVICE_HELP, device_facts, opened_device
from command_line import add_part, amount, matrix_shape, out_file, run_part, run_script
from rdna3 import CHIPS

from unicorn_async.cli.options import count
from unicorn_async.errors import ConfigError
from unicorn_async.gpu.command import CommandPool, TimestampPool
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.linear_plans.candidates import candidates
from unicorn_async.ops.linear_plans.product import Product
from unicorn_async.ops.linear_plans.rules import can_gate, pays_to_block, plan_linear
from unicorn_async.ops.matrix_fragments import find_matrix_fragments
from unicorn_async.ops.rates import read_rate
from unicorn_async.ops.subgroups import FRAGMENTS_FEATURE, NARROW_FEATURE, NARROW_MATRIX_FEATURE
from unicorn_async.tensor import DType, QuantFormat
from unicorn_async.tune.product_bench import ProductBench, product_kernel
from unicorn_async.tune.random_memory import random_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plans.plan import LinearPlan

FORMATS = {kind.value: kind for kind in (DType.F16, DType.BF16, DType.F32, *QuantFormat)}
SHAPES = ((21504, 5376), (5376, 21504), (8192, 5376), (5376, 4096), (4096, 14336))
ROUNDS = 7  # of a floor
BLOCK = 16  # bytes
FURTHER = 1.25  # times the size before: the rate is by what the largest takes beyond that
RDNA_SHARED_BYTES = 64 << 10  # of a workgroup
POOL_BYTES, SOFTWARE_POOL_BYTES = 3 << 30, 64 << 20


@dataclass(frozen=True, slots=True)
class Figure:
    """One kernel of one product."""

    tokens: int
    n: int
    k: int
    weights: str
    entry: str
    constants: str
    us: float
    gb_per_s: float
    gflop_per_s: float

    @classmethod
    def of(cls, product: Product, plan: LinearPlan, ns: float) -> Figure:
        """Sum up what a plan's dispatch took."""
        constants = " ".join(
            f"{name.lower()}={value}" for name, value in product_kernel(product, plan).constants.items()
        )
        sizes = product.tokens, product.n, product.k
        flops = 2.0 * product.tokens * product.n * product.k
        return cls(*sizes, product.weights, plan.entry, constants, ns / 1e3, product.weight_bytes / ns, flops / ns)

    def line(self, mark: str) -> str:
        """Return it for people."""
        return (
            f"{mark} T={self.tokens:<4} N={self.n:<6} K={self.k:<6} {self.weights:5} {self.us:10.1f} µs"
            f" {self.gb_per_s:8.1f} GB/s {self.gflop_per_s / 1e3:8.2f} TFLOP/s  {self.entry} {self.constants}"
        )


def products(info: DeviceInfo, options: argparse.Namespace) -> Iterator[Product]:
    """All that is asked for; a gate is fused, and the output left in blocks, where the engine does so."""
    for name, (n, k), tokens in itertools.product(options.format, options.shape, options.tokens):
        product = Product.of(FORMATS[name], tokens, n, k)
        if options.gated and product.is_quantised and can_gate(info, product):
            product = product._replace(gated=True, blocked=pays_to_block(info, product))
        yield product


def plan_of(info: DeviceInfo, product: Product, chip: str) -> LinearPlan | None:
    """Return what the rules choose for another chip, if the device can run it."""
    described = replace(
        CHIPS[chip].describe(info),
        subgroup_size=64,
        min_subgroup_size=32,
        max_subgroup_size=64,
        max_shared_memory=min(RDNA_SHARED_BYTES, info.max_shared_memory),
        features=info.features - {FRAGMENTS_FEATURE, NARROW_FEATURE, NARROW_MATRIX_FEATURE},
    )
    plan = plan_linear(described, product)
    return plan if plan.subgroup_size == info.subgroup_size else None


def measure_products(device: Device, options: argparse.Namespace) -> Iterator[Figure]:
    """Time the rules' kernel of each product, or all candidates in turns with it."""
    found = list(products(device.info, options))
    with ProductBench(device, found) as bench:
        for product in found:
            every = candidates(device.info, product) if options.candidates else (plan_linear(device.info, product),)
            other = plan_of(device.info, product, options.plans_of) if options.plans_of else None
            every = every if other is None or other in every else (*every, other)
            rule, plans = every[0], [plan for plan in every if options.only in plan.entry]
            if not plans:
                continue
            device.kernels.prepare(product_kernel(product, plan) for plan in (rule, *plans))
            bench.keep_busy(product, rule, bench.first_ns(product, rule))
            first = {plan: bench.first_ns(product, plan) for plan in plans}
            times = {
                plan: statistics.median(bench.times_ns(product, ((plan, ns),))[0] for _ in range(options.rounds))
                for plan, ns in first.items()
            }
            best = sorted(times, key=lambda plan: times[plan])[: options.best]
            shown = best if rule in best or rule not in times else [*best, rule]
            for plan in [*shown, other] if other in times and other not in shown else shown:
                figure = Figure.of(product, plan, times[plan])
                print(figure.line(("*" if plan is rule else " ") + (">" if plan == other else " ")), flush=True)
                yield figure


def run_linear(options: argparse.Namespace, _: argparse.ArgumentParser) -> None:
    """Measure products."""
    with opened_device(options.device) as device:
        print("* = what the rules choose", flush=True)
        find_matrix_fragments(device)
        figures = list(measure_products(device, options))
    if not figures:
        raise ConfigError(f"--only {options.only}: no kernel with this name, nothing was timed")
    write(options, device.info, "figures", figures)


@dataclass(frozen=True, slots=True)
class Floor:
    """The time of a dispatch that reads so much."""

    num_bytes: int
    us: float

    @classmethod
    def of(cls, num_bytes: int, spans_ns: Sequence[float], repeats: int) -> Floor:
        """Sum up rounds of `repeats` dispatches."""
        return cls(num_bytes, statistics.median(spans_ns) / repeats / 1e3)


def measure_floors(device: Device, sizes: list[int], repeats: int) -> list[Floor]:
    """Time a read of each size, in bytes."""
    pool, stamps = CommandPool(device, device.compute), TimestampPool(device, ROUNDS + 2)
    most = SOFTWARE_POOL_BYTES if device.info.is_software else POOL_BYTES
    source = random_memory(pool, max(most, *sizes), name="weights")
    sink = device.memory.allocate(BLOCK, MemoryKind.DEVICE, name="sink")
    floors = []
    for size in sizes:
        copies, place = max(1, source.nbytes // size), 0
        recorder = pool.recorder()
        for index in range(ROUNDS + 2):  # the first round wakes the device up
            recorder.timestamp(stamps, index)
            for _ in range(repeats):
                address = source.address + place % copies * size
                read_rate(recorder, device.kernels, source=address, sink=sink.address, num_bytes=size)
                recorder.barrier()
                place += 1
        device.compute.timeline.wait(device.compute.submit([recorder.end()]))
        times = stamps.read(1, ROUNDS + 1)
        spans = [stop - start for start, stop in itertools.pairwise(times)]
        floors.append(Floor.of(size, spans, repeats))
    for thing in (sink, source, stamps, pool):
        thing.close()
    return floors


def floor_lines(floors: Sequence[Floor]) -> list[str]:
    """Return a line for each size; what is above the bytes' own time, where the two largest sizes tell their rate."""
    before, last = floors[-2:]
    bytes_per_us = (last.num_bytes - before.num_bytes) / (last.us - before.us) if last.us > before.us else 0.0
    found = []
    for floor in floors:
        line = f"{floor.num_bytes / 1e6:9.2f} MB  {floor.us:9.2f} µs  {floor.num_bytes / floor.us / 1e3:8.1f} GB/s"
        above = f"  {floor.us - floor.num_bytes / bytes_per_us:7.2f} µs above" if bytes_per_us else ""
        found.append(line + above)
    if not bytes_per_us:
        found.append("the largest size took no longer than the one before it: nothing can be said about a rate")
    return found


def run_floor(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Measure reads."""
    if len(options.megabytes) < 2:
        parser.error("--megabytes: expected two sizes or more")
    sizes = [max(BLOCK, int(number * 1e6) // BLOCK * BLOCK) for number in options.megabytes]
    if any(first >= second for first, second in itertools.pairwise(sizes)):
        parser.error(f"--megabytes: expected each size to be larger than the one before it, got {sizes} bytes")
    if sizes[-1] < FURTHER * sizes[-2]:
        parser.error(
            f"--megabytes: expected the last size to be {FURTHER} times the one before or more, got {sizes} bytes"
        )
    with opened_device(options.device) as device:
        floors = measure_floors(device, sizes, options.repeats)
    print("\n".join(floor_lines(floors)))
    write(options, device.info, "floors", floors)


def write(options: argparse.Namespace, info: DeviceInfo, name: str, figures: Sequence[Figure | Floor]) -> None:
    """Write the figures, if a file is asked for."""
    if options.json:
        report = device_facts(info) | {name: [asdict(one) for one in figures]}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


def main() -> None:
    """Run the part that is asked for."""
    parser = argparse.ArgumentParser(description="What a device's kernels reach.")
    parts = parser.add_subparsers(required=True, metavar="linear, attention, floor or ceilings")

    linear = add_part(parts, "linear", run_linear, "Matrix products, by the kernels that the engine takes.")
    linear.add_argument("--shape", type=matrix_shape, nargs="+", default=SHAPES, help="rows x columns of the weights")
    linear.add_argument("--tokens", nargs="+", type=count, default=[1, 2, 4, 8, 16, 32, 64, 512])
    linear.add_argument("--format", nargs="+", choices=FORMATS, default=["int4"], metavar="FORMAT", help="of weights")
    linear.add_argument("--gated", action="store_true", help="rows are gates and what they are for, where it is fused")
    linear.add_argument("--candidates", action="store_true", help="time all kernels that `unicorn tune` compares")
    linear.add_argument("--only", default="", help="part of the names of kernels to time")
    linear.add_argument("--best", type=count, default=6, help="how many of the candidates to print")
    linear.add_argument("--plans-of", choices=CHIPS, help="time what the rules would choose for this chip, too")
    linear.add_argument("--rounds", type=count, default=5, help="whose median counts")

    floor = add_part(parts, "floor", run_floor, "What a dispatch costs that only reads.")
    floor.add_argument("--megabytes", type=amount, nargs="+", default=[0, 1, 4, 12.4, 24.8, 65, 130])
    floor.add_argument("--repeats", type=count, default=64, help="dispatches between two timestamps")

    for part in (linear, floor, kernels_attention.add(parts), matrix_ceilings.add(parts)):
        part.add_argument("--device", metavar="NAME", help=DEVICE_HELP)
        part.add_argument("--json", type=out_file, metavar="FILE")
    run_part(parser)


if __name__ == "__main__":
    run_script(main)
