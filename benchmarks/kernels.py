#!/usr/bin/env python3
"""Times the linear kernels on a device: bytes of weights and floating-point operations per second.

    kernels.py [--device NAME] [--shape 21504x5376 ...] [--tokens 1 8 32 512] [--dtype BF16] [--sweep] [--json FILE]

Each figure is the median over dispatches that read different copies of the weights, so that no cache holds them, timed
by the device's own timestamps. Without --sweep the kernel is the one that the engine would take; with it, every
candidate of the tables below is timed, the fastest first.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
from amounts import shape
from bench_device import DEVICE_HELP, device_facts, opened_device
from out_file import out_file

from unicorn_async.cli.options import count
from unicorn_async.errors import UnicornError
from unicorn_async.gpu.command import CommandPool, TimestampPool
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.linear import dispatch_plan, row_to_half
from unicorn_async.ops.linear_input import InputForm, LinearScratch
from unicorn_async.ops.linear_plan import (
    FORMATS,
    LinearPlan,
    TileTuning,
    VecTuning,
    can_split,
    coopmat_plan,
    coopmat_shared_bytes,
    many_plan,
    matrix_subgroup_size,
    plan_linear,
    vec_plan,
)
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.memory import Buffer

SHAPES = ((21504, 5376), (5376, 21504), (8192, 5376), (14336, 4096), (4096, 14336), (4096, 4096))
MANY_TILES = ((64, 64, 16, 16), (128, 64, 16, 16), (128, 128, 16, 16), (64, 128, 8, 16), (32, 64, 8, 16))
# tile_t: (tile_n, parts_t, parts_n, tile_k, buffers)
COOPMAT_TILES = {
    16: ((32, 1, 2, 64, 1), (32, 1, 2, 128, 1), (32, 1, 1, 64, 1), (64, 1, 4, 64, 1), (64, 1, 4, 128, 1)),
    32: ((32, 1, 2, 64, 1), (32, 1, 2, 128, 1), (64, 1, 4, 64, 1), (64, 1, 4, 128, 1), (64, 1, 2, 64, 1)),
    64: ((64, 2, 2, 64, 1), (64, 1, 4, 64, 1), (64, 2, 2, 128, 1), (128, 2, 4, 64, 1)),
    128: ((128, 2, 2, 64, 1), (64, 2, 2, 64, 1), (128, 2, 2, 32, 1)),
    256: ((64, 4, 1, 64, 1),),
}
SPLITS = (1, 2, 3, 4, 5, 6, 7, 8)


@dataclass(frozen=True, slots=True)
class Figure:
    """One kernel at one shape."""

    tokens: int
    n: int
    k: int
    dtype: str
    entry: str
    constants: str
    us: float
    gb_per_s: float
    gflop_per_s: float


def candidates(info: DeviceInfo, tokens: int, n: int, k: int, dtype: DType, *, sweep: bool) -> Iterator[LinearPlan]:
    """The plans to time."""
    yield plan_linear(info, num_tokens=tokens, n=n, k=k, dtype=dtype)
    if not sweep:
        return
    if tokens <= 32:
        bucket = next(size for size in (1, 2, 4, 8, 16, 32) if tokens <= size)
        for subgroups, rows in itertools.product((1, 2, 4, 8), (1, 2, 4, 8)):
            if rows * bucket <= 128:
                yield vec_plan(info, VecTuning(bucket, subgroups, rows), tokens, n, dtype)
    else:
        for tile_t, tile_n, parts_t, parts_n in MANY_TILES:
            tuning = TileTuning(0, tile_t, tile_n, parts_t, parts_n)
            yield many_plan(tuning, tokens, n, f"linear_many_{FORMATS[dtype]}")
    if tokens > 1 and matrix_subgroup_size(info) is not None:
        for tuning in coopmat_tunings(tokens, n):
            if coopmat_shared_bytes(tuning) <= info.max_shared_memory:
                yield coopmat_plan(info, tuning, tokens, n, f"linear_many_coopmat_{FORMATS[dtype]}")


def coopmat_tunings(tokens: int, n: int) -> Iterator[TileTuning]:
    """Tiles that fit the number of tokens, with all splits for which there is room."""
    for tile_t, tiles in COOPMAT_TILES.items():
        if tile_t >= 2 * max(tokens, 16) or tile_t * 4 < tokens:
            continue
        for tile_n, parts_t, parts_n, tile_k, buffers in tiles:
            for splits in SPLITS:
                tuning = TileTuning(0, tile_t, tile_n, parts_t, parts_n, tile_k, buffers, splits)
                if can_split(tuning, tokens, n):
                    yield tuning


class Bench:
    """Device memory with copies of random weights, and one command buffer per kernel."""

    def __init__(self, device: Device, pool_bytes: int, repeats: int) -> None:
        self.device = device
        self.repeats = repeats
        self._pool = CommandPool(device, device.compute)
        self._times = TimestampPool(device, 2 * repeats)
        self._weights = self._random(pool_bytes)
        self._fixed: dict[str, Buffer] = {}

    def _random(self, nbytes: int) -> Buffer:
        """Small random numbers: a constant pattern would draw less power and run faster than weights do."""
        memory = self.device.memory
        block = memory.allocate(min(nbytes, 16 << 20), MemoryKind.STAGING, name="random")
        assert block.mapped is not None
        values = np.random.default_rng(0).standard_normal(block.nbytes // 2, np.float32) * 0.05
        np.frombuffer(block.mapped, np.float16)[:] = values.astype(np.float16)
        buffer = memory.allocate(nbytes, MemoryKind.DEVICE, name="weights")
        recorder = self._pool.recorder()
        for offset in range(0, nbytes, block.nbytes):
            recorder.copy(block, 0, buffer, offset, min(block.nbytes, nbytes - offset))
        self.device.compute.timeline.wait(self.device.compute.submit([recorder.end()]))
        block.close()
        return buffer

    def _zeros(self, name: str, nbytes: int) -> int:
        """Address of a buffer that only grows."""
        found = self._fixed.get(name)
        if found is None or found.nbytes < nbytes:
            if found is not None:
                found.close()
            found = self._fixed[name] = self.device.memory.allocate(nbytes, MemoryKind.DEVICE, name=name)
        return found.address

    def time(self, plan: LinearPlan, tokens: int, n: int, k: int, dtype: DType) -> Figure:
        """Median time of the plan's dispatch; preparing the activations is not in it."""
        x = Tensor(self._weights.address, (tokens, k), DType.F32)  # any numbers will do
        y = self._zeros("y", tokens * n * 4)
        scratch = LinearScratch.at(self._zeros("scratch", LinearScratch.size(tokens, k)), tokens, k)
        nbytes = n * k * dtype.itemsize
        copies = max(1, self._weights.nbytes // nbytes)
        recorder, kernels = self._pool.recorder(), self.device.kernels
        rows = scratch.half_rows(tokens, k) if plan.form is InputForm.HALVES else x
        if not isinstance(rows, Tensor):
            row_to_half(recorder, kernels, self.device.info, x=x, out=rows)
        for i in range(self.repeats):
            weight = Tensor(self._weights.address + i % copies * nbytes, (n, k), dtype)
            recorder.barrier()
            recorder.timestamp(self._times, 2 * i)
            dispatch_plan(
                recorder, kernels, plan, x=rows, weight=weight, out_address=y, num_tokens=tokens, scratch=scratch
            )
            recorder.timestamp(self._times, 2 * i + 1)
        commands = recorder.end()
        for _ in range(2):  # the first run compiles what the driver left to the first use
            self.device.compute.timeline.wait(self.device.compute.submit([commands]))
        stamps = self._times.read(0, 2 * self.repeats)
        self._pool.free(commands)
        ns = statistics.median(end - start for start, end in zip(stamps[::2], stamps[1::2], strict=True))
        constants = " ".join(f"{name.lower()}={value}" for name, value in plan.constants)
        flops = 2.0 * tokens * n * k
        return Figure(tokens, n, k, dtype.value, plan.entry, constants, ns / 1e3, nbytes / ns, flops / ns)


def measure(device: Device, options: argparse.Namespace) -> Iterator[Figure]:
    shapes: list[tuple[int, int]] = options.shape
    dtype = DType(options.dtype)
    largest = max(n * k * dtype.itemsize for n, k in shapes)
    activations = max(max(options.tokens) * k * 4 for _, k in shapes)
    bench = Bench(device, max(2 * largest, activations, options.pool_mib << 20), options.repeats)
    for n, k in shapes:
        for tokens in options.tokens:
            plans = {p.pipeline: p for p in candidates(device.info, tokens, n, k, dtype, sweep=options.sweep)}
            device.kernels.prepare(KernelRequest(p.entry, dict(p.constants), p.subgroup_size) for p in plans.values())
            figures = [bench.time(plan, tokens, n, k, dtype) for plan in plans.values()]
            chosen = figures[0]
            for figure in sorted(figures, key=lambda f: f.us)[: options.best]:
                mark = "*" if figure is chosen else " "
                print(
                    f"{mark} T={tokens:<4} N={n:<6} K={k:<6} {figure.us:10.1f} µs {figure.gb_per_s:8.1f} GB/s "
                    f"{figure.gflop_per_s / 1e3:8.2f} TFLOP/s  {figure.entry} {figure.constants}",
                    flush=True,
                )
            yield from figures


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time the linear kernels.")
    parser.add_argument("--device", help=DEVICE_HELP)
    parser.add_argument("--shape", type=shape, nargs="+", default=SHAPES, help="rows x columns of the weights")
    parser.add_argument("--tokens", nargs="+", type=count, default=[1, 2, 4, 8, 16, 32, 64, 512])
    parser.add_argument("--dtype", choices=("F16", "BF16"), default="BF16")
    parser.add_argument("--repeats", type=count, default=20, help="dispatches per figure")
    parser.add_argument("--pool-mib", type=count, default=1024, help="memory for copies of the weights")
    parser.add_argument("--sweep", action="store_true", help="time every candidate")
    parser.add_argument("--best", type=count, default=6, help="how many of a sweep to print")
    parser.add_argument("--json", type=out_file, help="write the figures there")
    options = parser.parse_args(arguments)
    try:
        with opened_device(options.device) as device:
            print("* = what the engine takes", flush=True)
            figures = list(measure(device, options))
    except UnicornError as exc:
        print(f"kernels: {exc}", file=sys.stderr)
        return 1
    if options.json:
        report = device_facts(device.info) | {"figures": [asdict(figure) for figure in figures]}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
