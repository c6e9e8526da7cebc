#!/usr/bin/env python3
"""Times the linear kernels with quantised weights on a device: bytes of weights and operations per second.

    kernels_quant.py [--device NAME] [--shape 21504x5376 ...] [--tokens 1 8 32 512] [--format Q4_0] [--sweep]
                     [--json FILE]

Each figure is the median over dispatches that read different copies of the weights, so that no cache holds them, timed
by the device's own timestamps; preparing the activations is timed once and printed apart. Without --sweep the kernel is
the one that the engine would take; with it, every candidate of the tables below is timed, the fastest first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.errors import UnicornError
from unicorn_async.gpu.command import CommandPool, TimestampPool
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.device_info import DeviceInfo, select_device
from unicorn_async.gpu.instance import Instance
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.linear import LinearScratch, row_to_half
from unicorn_async.ops.linear_plan import matrix_subgroup_size
from unicorn_async.ops.linear_quant import dispatch_quant_plan, quantize_activations
from unicorn_async.ops.linear_quant_plan import (
    QuantPlan,
    QuantTileTuning,
    QuantVecTuning,
    can_split,
    plan_linear_quant,
    quant_coopmat_plan,
    quant_coopmat_shared_bytes,
    quant_many_plan,
    quant_vec_plan,
)
from unicorn_async.resources import resource_dir
from unicorn_async.tensor import QuantFormat, QuantTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.memory import Buffer

SHAPES = ("21504x5376", "5376x21504", "8192x5376", "5376x4096", "4096x14336")
VEC_SUBGROUPS = (1, 2, 4, 8)
VEC_ROWS = (1, 2, 4)
MANY_TILES = ((64, 64, 16, 16), (128, 64, 16, 16), (32, 64, 8, 16))
COOPMAT_TILES = (  # tile_t, tile_n, subgroups along t and n, tile_k, buffers
    *(
        (16, n, 1, parts, *k)
        for n, parts in ((32, 2), (64, 4), (128, 4))
        for k in ((64, 1), (64, 2), (128, 1), (128, 2))
    ),
    *(
        (32, n, t, parts, *k)
        for n, t, parts in ((64, 1, 4), (64, 2, 2), (128, 1, 4))
        for k in ((64, 1), (64, 2), (128, 1))
    ),
    *(
        (64, n, t, parts, *k)
        for n, t, parts in ((64, 2, 2), (128, 2, 2), (128, 1, 4))
        for k in ((32, 2), (64, 1), (64, 2))
    ),
    *(
        (128, n, t, parts, *k)
        for n, t, parts in ((64, 2, 2), (128, 2, 2), (128, 2, 4))
        for k in ((32, 1), (32, 2), (64, 1))
    ),
    (256, 128, 4, 2, 32, 1),
)
SPLITS = (1, 2, 4, 8)
MAX_WORKGROUPS = 2048  # that splits may make


@dataclass(frozen=True, slots=True)
class Figure:
    """One kernel at one shape."""

    tokens: int
    n: int
    k: int
    format: str
    entry: str
    constants: str
    us: float
    gb_per_s: float
    gflop_per_s: float


def candidates(
    info: DeviceInfo, tokens: int, n: int, k: int, quant_format: QuantFormat, *, sweep: bool
) -> Iterator[QuantPlan]:
    """The plans to time."""
    yield plan_linear_quant(info, num_tokens=tokens, n=n, k=k, quant_format=quant_format)
    if not sweep:
        return
    for bucket in (1, 2, 4, 8, 16):
        if tokens <= 32 and (bucket == min(tokens, 16) or bucket == 8 < tokens):
            for subgroups in VEC_SUBGROUPS:
                for rows in VEC_ROWS:
                    tuning = QuantVecTuning(bucket, subgroups, rows)
                    yield quant_vec_plan(info, tuning, tokens, n, quant_format)
    if tokens >= 32:
        for tile_t, tile_n, parts_t, parts_n in MANY_TILES:
            yield quant_many_plan(QuantTileTuning(0, tile_t, tile_n, parts_t, parts_n), tokens, n, quant_format)
    if tokens > 2 and matrix_subgroup_size(info) is not None:
        yield from matrix_candidates(info, tokens, n, k, quant_format)


def matrix_candidates(info: DeviceInfo, tokens: int, n: int, k: int, quant_format: QuantFormat) -> Iterator[QuantPlan]:
    """All of the tables' tiles, buffers and splits that fit the device and suit the number of tokens."""
    for tile_t, tile_n, parts_t, parts_n, tile_k, buffers in COOPMAT_TILES:
        if tile_t >= 2 * max(tokens, 16) or tile_t * 16 < tokens:
            continue
        tiles = -(-tokens // tile_t) * -(-n // tile_n)
        for splits in SPLITS:
            tuning = QuantTileTuning(0, tile_t, tile_n, parts_t, parts_n, tile_k, buffers, splits)
            fits = quant_coopmat_shared_bytes(tuning) <= info.max_shared_memory and can_split(tuning, tokens, n)
            if fits and (splits == 1 or tiles * splits <= MAX_WORKGROUPS) and k // splits >= 2 * tile_k:
                yield quant_coopmat_plan(info, tuning, tokens, n, quant_format)


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
        """Small random halves, which serve as codes and as scales."""
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

    def _median_ns(
        self, record: Callable[[CommandRecorder, int], None], first: Callable[[CommandRecorder], None]
    ) -> float:
        recorder = self._pool.recorder()
        first(recorder)
        for i in range(self.repeats):
            recorder.barrier()
            recorder.timestamp(self._times, 2 * i)
            record(recorder, i)
            recorder.timestamp(self._times, 2 * i + 1)
        commands = recorder.end()
        for _ in range(2):  # the first run compiles what the driver left to the first use
            self.device.compute.timeline.wait(self.device.compute.submit([commands]))
        stamps = self._times.read(0, 2 * self.repeats)
        self._pool.free(commands)
        return statistics.median(end - start for start, end in zip(stamps[::2], stamps[1::2], strict=True))

    def prepare(self, recorder: CommandRecorder, tokens: int, k: int, *, half: bool) -> LinearScratch:
        """Record bringing any numbers at all into the form that a kernel reads."""
        scratch = LinearScratch.at(self._zeros("scratch", LinearScratch.size(tokens, k)), tokens, k)
        kernels, x = self.device.kernels, self._weights.address
        if half:
            row_to_half(recorder, kernels, self.device.info, x=x, scratch=scratch, num_tokens=tokens, k=k)
        else:
            quantize_activations(recorder, kernels, x=x, scratch=scratch, num_tokens=tokens, k=k)
        return scratch

    def time_input(self, tokens: int, k: int, *, half: bool) -> float:
        """Median microseconds of preparing the activations."""
        return self._median_ns(lambda rec, _: self.prepare(rec, tokens, k, half=half) and None, lambda _: None) / 1e3

    def time(self, plan: QuantPlan, tokens: int, n: int, k: int, quant_format: QuantFormat) -> Figure:
        """Median time of the plan's dispatch; preparing the activations is not in it."""
        y = self._zeros("y", tokens * n * 4)
        scratch = LinearScratch.at(self._zeros("scratch", LinearScratch.size(tokens, k)), tokens, k)
        nbytes = QuantTensor.size((n, k), quant_format)
        copies = max(1, self._weights.nbytes // nbytes)

        def record(recorder: CommandRecorder, i: int) -> None:
            weight = QuantTensor(self._weights.address + i % copies * nbytes, (n, k), quant_format)
            kernels = self.device.kernels
            dispatch_quant_plan(
                recorder, kernels, plan, weight=weight, out_address=y, num_tokens=tokens, scratch=scratch
            )

        ns = self._median_ns(record, lambda rec: self.prepare(rec, tokens, k, half=plan.reads_half) and None)
        constants = " ".join(f"{name.lower()}={value}" for name, value in plan.constants)
        flops = 2.0 * tokens * n * k
        return Figure(tokens, n, k, quant_format.value, plan.entry, constants, ns / 1e3, nbytes / ns, flops / ns)


def measure(device: Device, options: argparse.Namespace) -> Iterator[Figure]:
    shapes = [tuple(map(int, text.split("x"))) for text in options.shape]
    formats = [QuantFormat(name) for name in options.format]
    largest = max(QuantTensor.size((n, k), kind) for n, k in shapes for kind in formats)
    activations = max(max(options.tokens) * k * 4 for _, k in shapes)
    bench = Bench(device, max(2 * largest, activations, options.pool_mib << 20), options.repeats)
    for kind in formats:
        for n, k in shapes:
            for tokens in options.tokens:
                plans = {p.pipeline: p for p in candidates(device.info, tokens, n, k, kind, sweep=options.sweep)}
                figures = [bench.time(plan, tokens, n, k, kind) for plan in plans.values()]
                chosen = figures[0]
                half = next(iter(plans.values())).reads_half
                print(f"  T={tokens:<4} K={k:<6} {bench.time_input(tokens, k, half=half):10.1f} µs input", flush=True)
                for figure in sorted(figures, key=lambda f: f.us)[: options.best]:
                    mark = "*" if figure is chosen else " "
                    print(
                        f"{mark} T={tokens:<4} N={n:<6} K={k:<6} {figure.us:10.1f} µs {figure.gb_per_s:8.1f} GB/s "
                        f"{figure.gflop_per_s / 1e3:8.2f} TFLOP/s  {figure.entry} {figure.constants}",
                        flush=True,
                    )
                    yield figure


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time the linear kernels with quantised weights.")
    parser.add_argument("--device", help="index or part of the name; default: the fastest GPU")
    parser.add_argument("--shape", nargs="+", default=SHAPES, help="rows x columns of the weights")
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64, 512])
    parser.add_argument("--format", nargs="+", default=["int4"], help=" ".join(f.value for f in QuantFormat))
    parser.add_argument("--repeats", type=int, default=20, help="dispatches per figure")
    parser.add_argument("--pool-mib", type=int, default=1024, help="memory for copies of the weights")
    parser.add_argument("--sweep", action="store_true", help="time every candidate")
    parser.add_argument("--best", type=int, default=6, help="how many of a sweep to print")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args(arguments)
    try:
        with Instance.create() as instance:
            info = select_device(instance.devices(), options.device, allow_software=True)
            print(f"{info.name}, {info.driver_name} {info.driver_info}; * = what the engine takes", flush=True)
            with Device.open(instance, info, cache_dir=None, shader_dir=resource_dir("shaders")) as device:
                figures = list(measure(device, options))
    except UnicornError as exc:
        print(f"kernels_quant: {exc}", file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(
            json.dumps({"device": info.name, "figures": [asdict(figure) for figure in figures]}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
