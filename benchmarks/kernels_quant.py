#!/usr/bin/env python3
"""Times the linear kernels with quantised weights on a device: bytes of weights and operations per second.

    kernels_quant.py [--device NAME] [--shape 21504x5376 ...] [--tokens 1 8 32 512] [--format Q4_0] [--gated]
                     [--sweep] [--only NAME] [--json FILE]

Each figure is the time of a dispatch with the barrier after it: the median over rounds of dispatches that read
different copies of the weights, so that no cache holds them, timed by the device's own timestamps; preparing the
activations is timed once and printed apart. Without --sweep the kernel is the one that the engine would take; with it,
every candidate of the tables below is timed, the fastest first.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from amounts import shape
from bench_device import DEVICE_HELP, device_facts, opened_device
from out_file import out_file

from unicorn_async.cli.options import count
from unicorn_async.config import Activation
from unicorn_async.errors import UnicornError
from unicorn_async.gpu.command import CommandPool, TimestampPool
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.gated import ACTIVATION_NUMBER
from unicorn_async.ops.linear_held_plan import MAX_HELD, HeldTuning, can_hold, held_plan
from unicorn_async.ops.linear_input import InputBlocks, InputForm, LinearScratch
from unicorn_async.ops.linear_plan import (
    FRAGMENTS_FEATURE,
    NARROW_FEATURE,
    LinearPlan,
    TileTuning,
    can_split,
    coopmat_plan,
    coopmat_shared_bytes,
    many_plan,
    matrix_subgroup_size,
)
from unicorn_async.ops.linear_quant import dispatch_quant_plan, prepare_input
from unicorn_async.ops.linear_quant_plan import (
    QuantVecTuning,
    fragment_plan,
    fuses_gate,
    leaves_blocks,
    plan_linear_quant,
    quant_form,
    quant_vec_plan,
)
from unicorn_async.ops.matrix_fragments import find_matrix_fragments
from unicorn_async.ops.quant_tiles import NARROW_TOKENS, FragmentTuning
from unicorn_async.tensor import DType, QuantFormat, QuantTensor, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.memory import Buffer
    from unicorn_async.ops.linear_input import HalfRows

SHAPES = ((21504, 5376), (5376, 21504), (8192, 5376), (5376, 4096), (4096, 14336))
VEC_SUBGROUPS = (1, 2, 4, 8)
VEC_ROWS = (1, 2, 4, 8)
VEC_UNROLLS = (1, 2, 3, 4, 6)
VEC_ROUNDS = (1, 2, 4)  # passes of each subgroup
MANY_TILES = ((64, 64, 16, 16), (128, 64, 16, 16), (32, 64, 8, 16))
COOPMAT_TILES = {  # by the tokens of a tile: rows, subgroups along tokens and rows, columns, buffers
    16: tuple(
        (n, 1, parts, k, buffers)
        for n, parts in ((32, 2), (64, 4), (64, 2), (128, 4))
        for k, buffers in ((64, 2), (128, 1), (128, 2), (256, 1))
    ),
    32: tuple(
        (n, 1, parts, k, buffers)
        for n, parts in ((32, 2), (64, 4), (64, 2), (128, 4))
        for k, buffers in ((64, 2), (128, 1), (128, 2), (256, 1))
    ),
    64: tuple(
        (n, *parts, k, buffers)
        for n, parts in ((64, (2, 2)), (64, (1, 2)), (64, (1, 4)), (128, (1, 4)), (128, (2, 4)), (256, (1, 4)))
        for k, buffers in ((32, 2), (64, 1), (64, 2), (128, 1))
    ),
    128: tuple(
        (n, *parts, k, buffers)
        for n, parts in ((64, (2, 2)), (128, (2, 2)), (128, (2, 4)), (256, (2, 4)))
        for k, buffers in ((32, 1), (32, 2), (64, 1))
    ),
    256: tuple((128, *parts, k, 1) for parts in ((4, 2), (4, 4)) for k in (32, 64)),
}
FRAGMENT_SUBGROUPS = ((1, 2), (1, 4), (2, 2), (2, 4), (4, 1), (4, 2))  # along rows and along K
SPLITS = (1, 2, 3, 4, 6, 8)
MIN_WORKGROUPS = 160
MAX_WORKGROUPS = 2400  # that splits may make
ROUNDS = 5  # of repeats
MAX_ACCUMULATORS = 128  # f32 of a lane


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
    info: DeviceInfo, tokens: int, n: int, k: int, quant_format: QuantFormat, *, gate: Activation | None, sweep: bool
) -> Iterator[LinearPlan]:
    """The plans to time; with a gate, those that apply it, and leave blocks where the engine has them do so."""
    gate = gate if fuses_gate(info, tokens, k) else None
    blocked = gate is not None and leaves_blocks(info, tokens, k)
    yield plan_linear_quant(
        info, num_tokens=tokens, n=n, k=k, quant_format=quant_format, activation=gate, blocked=blocked
    )
    if not sweep:
        return
    if can_hold(info, tokens, k):
        yield from held_candidates(info, tokens, n, k, quant_format, gate, blocked=blocked)
    if tokens <= 16:
        yield from vec_candidates(info, tokens, n, k, quant_format, gate, blocked=blocked)
    if tokens >= 32:
        for tile_t, tile_n, parts_t, parts_n in MANY_TILES:
            entry = f"linear_quant_many_{quant_format.layout.name}"
            tuning = TileTuning(0, tile_t, tile_n, parts_t, parts_n)
            yield many_plan(tuning, tokens, n, entry, form=InputForm.BLOCKS)
    if tokens > 2 and matrix_subgroup_size(info) is not None and gate is None:
        yield from matrix_candidates(info, tokens, n, k, quant_format)
        if FRAGMENTS_FEATURE in info.features and k % 128 == 0:
            yield from fragment_candidates(info, tokens, n, k, quant_format)


def vec_candidates(
    info: DeviceInfo,
    tokens: int,
    n: int,
    k: int,
    quant_format: QuantFormat,
    gate: Activation | None,
    *,
    blocked: bool,
) -> Iterator[LinearPlan]:
    """All of the tables' cuts for which a lane has registers."""
    bucket = next(size for size in (1, 2, 4, 8, 16) if tokens <= size)
    options = () if gate is None else (("GATED", True), ("ACT", ACTIVATION_NUMBER[gate]))
    for subgroups, rows, unroll, rounds in itertools.product(VEC_SUBGROUPS, VEC_ROWS, VEC_UNROLLS, VEC_ROUNDS):
        fits = rows * bucket <= 32 and rows * unroll <= 16 and (unroll - 1) * info.subgroup_size * 32 < k
        if fits and (gate is None or rows > 1) and not (bucket > 1 and unroll > 3):
            tuning = QuantVecTuning(bucket, subgroups, rows, subgroups * rounds, unroll)
            yield quant_vec_plan(info, tuning, tokens, n, quant_format, options, blocked=blocked)


def held_candidates(
    info: DeviceInfo,
    tokens: int,
    n: int,
    k: int,
    quant_format: QuantFormat,
    gate: Activation | None,
    *,
    blocked: bool,
) -> Iterator[LinearPlan]:
    """Cuts of linear_quant_held for which a lane has registers."""
    options = () if gate is None else (("GATED", True), ("ACT", ACTIVATION_NUMBER[gate]))
    for split, subgroups, rows, passes in itertools.product((1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 4), (1, 2, 3, 4, 8)):
        held = -(-k // (32 * info.subgroup_size * split))
        fits = split <= subgroups and tokens * held <= MAX_HELD and rows * held <= 16
        if fits and (gate is None or rows > 1):
            for ahead in (False, True):
                tuning = HeldTuning(tokens, subgroups, split, rows, passes, ahead)
                yield held_plan(info, tuning, tokens, n, k, quant_format, options, blocked=blocked)


def matrix_candidates(info: DeviceInfo, tokens: int, n: int, k: int, quant_format: QuantFormat) -> Iterator[LinearPlan]:
    """All of the tables' tiles, buffers and splits that fit the device and suit the number of tokens."""
    entry = f"linear_quant_coopmat_{quant_format.layout.name}"
    for tile_t, tiles in COOPMAT_TILES.items():
        if tile_t >= 2 * max(tokens, 16) or tile_t * 8 < tokens:
            continue
        for tile_n, parts_t, parts_n, tile_k, buffers in tiles:
            tuning = TileTuning(0, tile_t, tile_n, parts_t, parts_n, tile_k, buffers)
            if coopmat_shared_bytes(tuning) > info.max_shared_memory or tile_n * (tile_k + 8) < 512 * parts_t * parts_n:
                continue
            if tile_t * tile_n // (parts_t * parts_n * (matrix_subgroup_size(info) or 1)) > MAX_ACCUMULATORS:
                continue
            for splits in SPLITS:
                workgroups = -(-tokens // tile_t) * -(-n // tile_n) * splits
                more = replace(tuning, splits=splits)
                if splits == 1 or (
                    workgroups <= MAX_WORKGROUPS and k // splits >= 2 * tile_k and can_split(more, tokens, n)
                ):
                    yield coopmat_plan(info, more, tokens, n, entry)


def fragment_candidates(
    info: DeviceInfo, tokens: int, n: int, k: int, quant_format: QuantFormat
) -> Iterator[LinearPlan]:
    """Cuts of linear_quant_fragments for which a lane has registers, and that fill the device without ado."""
    narrow = tokens <= NARROW_TOKENS and NARROW_FEATURE in info.features
    sizes = [(1, 8)] * narrow + [(parts_t, 16) for parts_t in (1, 2, 4, 8)]
    for (parts_t, size), parts_n, subgroups, splits in itertools.product(sizes, (1, 2, 4), FRAGMENT_SUBGROUPS, SPLITS):
        tuning = FragmentTuning(0, parts_t, parts_n, *subgroups, splits, size)
        fits = 8 * parts_t * parts_n <= MAX_ACCUMULATORS
        suits = tuning.tile_t < 2 * max(tokens, 16) and tuning.tile_t >= min(tokens, 64)
        workgroups = -(-tokens // tuning.tile_t) * -(-n // tuning.tile_n) * splits
        shares = splits == 1 or (workgroups <= MAX_WORKGROUPS // 2 and can_split(tuning, tokens, n))
        fills = splits == SPLITS[-1] or workgroups >= MIN_WORKGROUPS
        if fits and suits and shares and fills and k // (128 * subgroups[1] * splits) >= 2:
            yield fragment_plan(info, tuning, tokens, n, quant_format)


class Bench:
    """Device memory with copies of random weights, and one command buffer per kernel."""

    def __init__(self, device: Device, pool_bytes: int, repeats: int) -> None:
        self.device = device
        self.repeats = repeats
        self._pool = CommandPool(device, device.compute)
        self._times = TimestampPool(device, 2 * ROUNDS)
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
        """Of a dispatch with the barrier after it, as a step pays for it: many of them between two timestamps."""
        recorder = self._pool.recorder()
        first(recorder)
        recorder.barrier()
        for run in range(ROUNDS):
            recorder.timestamp(self._times, 2 * run)
            for i in range(self.repeats):
                record(recorder, run * self.repeats + i)
                recorder.barrier()
            recorder.timestamp(self._times, 2 * run + 1)
        commands = recorder.end()
        for _ in range(2):  # the first run compiles what the driver left to the first use
            self.device.compute.timeline.wait(self.device.compute.submit([commands]))
        stamps = self._times.read(0, 2 * ROUNDS)
        self._pool.free(commands)
        return statistics.median(
            (end - start) / self.repeats for start, end in zip(stamps[::2], stamps[1::2], strict=True)
        )

    def prepare(self, recorder: CommandRecorder, tokens: int, k: int, form: InputForm) -> None:
        """Record bringing any numbers at all into the form that a kernel reads."""
        x = Tensor(self._weights.address, (tokens, k), DType.F32)
        out = self._rows(tokens, k, form)
        prepare_input(recorder, self.device.kernels, self.device.info, x=x, out=out)

    def time_input(self, tokens: int, k: int, form: InputForm) -> float:
        """Median microseconds of preparing the activations."""
        return self._median_ns(lambda rec, _: self.prepare(rec, tokens, k, form), lambda _: None) / 1e3

    def time(self, plan: LinearPlan, tokens: int, n: int, k: int, quant_format: QuantFormat) -> Figure:
        """Median time of the plan's dispatch; preparing the activations is not in it."""
        y = self._zeros("y", tokens * n * 4)
        constants = dict(plan.constants)
        blocked, is_gated = constants.get("BLOCKED", False), constants.get("GATED", False)
        out = InputBlocks.at(y, tokens, n // 2) if blocked else y
        nbytes = QuantTensor.size((n, k), quant_format)
        copies = max(1, self._weights.nbytes // nbytes)

        def record(recorder: CommandRecorder, i: int) -> None:
            dispatch_quant_plan(
                recorder,
                self.device.kernels,
                plan,
                x=self._rows(tokens, k, plan.form),
                weight=QuantTensor(self._weights.address + i % copies * nbytes, (n, k), quant_format),
                out=out,
                num_tokens=tokens,
                scratch=self._scratch(tokens, k),
                stride=n // 2 if is_gated else n,
            )

        ns = self._median_ns(record, lambda rec: self.prepare(rec, tokens, k, plan.form))
        named = " ".join(f"{name.lower()}={value}" for name, value in plan.constants)
        flops = 2.0 * tokens * n * k
        return Figure(tokens, n, k, quant_format.value, plan.entry, named, ns / 1e3, nbytes / ns, flops / ns)

    def _rows(self, tokens: int, k: int, form: InputForm) -> HalfRows | InputBlocks:
        scratch = self._scratch(tokens, k)
        return scratch.blocks(tokens, k) if form is InputForm.BLOCKS else scratch.half_rows(tokens, k, form)

    def _scratch(self, tokens: int, k: int) -> LinearScratch:
        return LinearScratch.at(self._zeros("scratch", LinearScratch.size(tokens, k)), tokens, k)


def measure(device: Device, options: argparse.Namespace) -> Iterator[Figure]:
    shapes: list[tuple[int, int]] = options.shape
    formats = [QuantFormat(name) for name in options.format]
    gate = Activation.GELU_TANH if options.gated else None
    largest = max(QuantTensor.size((n, k), kind) for n, k in shapes for kind in formats)
    activations = max(max(options.tokens) * k * 4 for _, k in shapes)
    bench = Bench(device, max(2 * largest, activations, options.pool_mib << 20), options.repeats)
    for kind in formats:
        for n, k in shapes:
            for tokens in options.tokens:
                found = candidates(device.info, tokens, n, k, kind, gate=gate, sweep=options.sweep)
                plans = {p.pipeline: p for p in found if options.only in p.entry}
                device.kernels.prepare(
                    KernelRequest(p.entry, dict(p.constants), p.subgroup_size) for p in plans.values()
                )
                if not plans:
                    continue
                figures = [bench.time(plan, tokens, n, k, kind) for plan in plans.values()]
                chosen = figures[0]
                form = quant_form(device.info, tokens, k)
                print(f"  T={tokens:<4} K={k:<6} {bench.time_input(tokens, k, form):10.1f} µs input", flush=True)
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
    parser.add_argument("--device", help=DEVICE_HELP)
    parser.add_argument("--shape", type=shape, nargs="+", default=SHAPES, help="rows x columns of the weights")
    parser.add_argument("--tokens", nargs="+", type=count, default=[1, 2, 4, 8, 16, 32, 64, 512])
    formats = [kind.value for kind in QuantFormat]
    parser.add_argument("--format", nargs="+", choices=formats, default=["int4"], metavar="FORMAT")
    parser.add_argument("--repeats", type=count, default=20, help="dispatches per figure")
    parser.add_argument("--pool-mib", type=count, default=1024, help="memory for copies of the weights")
    parser.add_argument("--gated", action="store_true", help="rows are gates and what they are for, where it is fused")
    parser.add_argument("--sweep", action="store_true", help="time every candidate")
    parser.add_argument("--only", default="", help="part of the names of kernels to time")
    parser.add_argument("--best", type=count, default=6, help="how many of a sweep to print")
    parser.add_argument("--json", type=out_file, help="write the figures there")
    options = parser.parse_args(arguments)
    try:
        with opened_device(options.device) as device:
            print("* = what the engine takes", flush=True)
            find_matrix_fragments(device)
            figures = list(measure(device, options))
    except UnicornError as exc:
        print(f"kernels_quant: {exc}", file=sys.stderr)
        return 1
    if not figures:
        print(f"kernels_quant: --only {options.only}: no kernel with this name, nothing was timed", file=sys.stderr)
        return 2
    if options.json:
        report = device_facts(device.info) | {"figures": [asdict(figure) for figure in figures]}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
