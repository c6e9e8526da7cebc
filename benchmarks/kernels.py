#!/usr/bin/env python3
"""Times the linear kernels on a device: bytes of weights and floating-point operations per second.

    kernels.py [--device NAME] [--shape 21504x5376 ...] [--tokens 1 8 32 512] [--format BF16 Q4_0 ...] [--gated]
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

from amounts import shape
from bench_device import DEVICE_HELP, device_facts, opened_device
from out_file import out_file

from unicorn_async.cli.options import count
from unicorn_async.config import Activation
from unicorn_async.errors import UnicornError
from unicorn_async.gpu.command import CommandPool, TimestampPool
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.linear import NO_EPILOGUE, Epilogue, dispatch_plan, kernel_request, prepare_input
from unicorn_async.ops.linear_plans.held import MAX_HELD, HeldTuning, can_hold, held_plan
from unicorn_async.ops.linear_plans.product import Product
from unicorn_async.ops.linear_plans.quant_tiles import NARROW_TOKENS, FragmentTuning, fragment_plan
from unicorn_async.ops.linear_plans.rules import can_gate, pays_to_block, plan_linear
from unicorn_async.ops.linear_plans.tiles import TileTuning, can_split, coopmat_plan, coopmat_shared_bytes, many_plan
from unicorn_async.ops.linear_plans.vec import QuantVecTuning, VecTuning, quant_vec_plan, vec_plan
from unicorn_async.ops.linear_scratch import LinearScratch
from unicorn_async.ops.matrix_fragments import find_matrix_fragments
from unicorn_async.ops.rows import BlockRows, RowForm
from unicorn_async.ops.subgroups import FRAGMENTS_FEATURE, NARROW_FEATURE, matrix_subgroup_size
from unicorn_async.tensor import DType, QuantFormat, QuantTensor, Tensor
from unicorn_async.tune.random_memory import random_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.memory import Buffer
    from unicorn_async.ops.linear_plans.plan import LinearPlan
    from unicorn_async.tensor import ElementType

SHAPES = ((21504, 5376), (5376, 21504), (8192, 5376), (5376, 4096), (4096, 14336))
FORMATS: dict[str, ElementType] = {kind.value: kind for kind in (*DType, *QuantFormat)}
VEC_SUBGROUPS = (1, 2, 4, 8)
VEC_ROWS = (1, 2, 4, 8)
VEC_UNROLLS = (1, 2, 3, 4, 6)
VEC_ROUNDS = (1, 2, 4)  # passes of each subgroup
MANY_TILES = ((64, 64, 16, 16), (128, 64, 16, 16), (128, 128, 16, 16), (64, 128, 8, 16), (32, 64, 8, 16))
FEW_TOKENS = tuple(
    (n, 1, parts, k, buffers)
    for n, parts in ((32, 2), (64, 4), (64, 2), (128, 4))
    for k, buffers in ((64, 1), (64, 2), (128, 1), (128, 2), (256, 1))
)
COOPMAT_TILES = {  # by the tokens of a tile: rows, subgroups along tokens and rows, columns, buffers
    16: FEW_TOKENS,
    32: FEW_TOKENS,
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
    256: tuple((n, *parts, k, 1) for n, parts in ((64, (4, 1)), (128, (4, 2)), (128, (4, 4))) for k in (32, 64)),
}
FRAGMENT_SUBGROUPS = ((1, 2), (1, 4), (2, 2), (2, 4), (4, 1), (4, 2))  # along rows and along K
SPLITS = (1, 2, 3, 4, 5, 6, 7, 8)
MIN_WORKGROUPS = 160
MAX_WORKGROUPS = 2400  # that splits may make
ROUNDS = 5  # of repeats
MAX_ACCUMULATORS = 128  # f32 of a lane
GATE = Epilogue(gate=Activation.GELU_TANH)


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


def candidates(info: DeviceInfo, product: Product, *, sweep: bool) -> Iterator[LinearPlan]:
    """The plans to time."""
    yield plan_linear(info, product)
    if not sweep:
        return
    if not product.is_quantised:
        yield from vec_candidates(info, product)
    else:
        if can_hold(info, product):
            yield from held_candidates(info, product)
        yield from quant_vec_candidates(info, product)
    if product.tokens >= 32 and not product.gated:
        for tile in MANY_TILES:
            yield many_plan(TileTuning(0, *tile), product)
    has_units = matrix_subgroup_size(info) is not None and product.weights != "f32"
    if product.tokens > 1 + product.is_quantised and has_units and not product.gated:
        yield from matrix_candidates(info, product)
        if product.is_quantised and FRAGMENTS_FEATURE in info.features and product.k % 128 == 0:
            yield from fragment_candidates(info, product)


def vec_candidates(info: DeviceInfo, product: Product) -> Iterator[LinearPlan]:
    """All of the tables' cuts of linear_vec for which a lane has registers."""
    if product.tokens > 32:
        return
    bucket = next(size for size in (1, 2, 4, 8, 16, 32) if product.tokens <= size)
    for subgroups, rows in itertools.product(VEC_SUBGROUPS, VEC_ROWS):
        if rows * bucket <= 128 and rows > product.gated:
            yield vec_plan(info, VecTuning(bucket, subgroups, rows), product)


def quant_vec_candidates(info: DeviceInfo, product: Product) -> Iterator[LinearPlan]:
    """All of the tables' cuts of linear_quant_vec for which a lane has registers."""
    if product.tokens > 16:
        return
    bucket = next(size for size in (1, 2, 4, 8, 16) if product.tokens <= size)
    for subgroups, rows, unroll, rounds in itertools.product(VEC_SUBGROUPS, VEC_ROWS, VEC_UNROLLS, VEC_ROUNDS):
        fits = rows * bucket <= 32 and rows * unroll <= 16 and (unroll - 1) * info.subgroup_size * 32 < product.k
        if fits and rows > product.gated and not (bucket > 1 and unroll > 3):
            yield quant_vec_plan(info, QuantVecTuning(bucket, subgroups, rows, subgroups * rounds, unroll), product)


def held_candidates(info: DeviceInfo, product: Product) -> Iterator[LinearPlan]:
    """Cuts of linear_quant_held for which a lane has registers."""
    tokens = product.tokens
    for split, subgroups, rows, passes in itertools.product((1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 4), (1, 2, 3, 4, 8)):
        held = -(-product.k // (32 * info.subgroup_size * split))
        fits = split <= subgroups and tokens * held <= MAX_HELD and rows * held <= 16
        if fits and rows > product.gated:
            for ahead in (False, True):
                yield held_plan(info, HeldTuning(tokens, subgroups, split, rows, passes, ahead), product)


def matrix_candidates(info: DeviceInfo, product: Product) -> Iterator[LinearPlan]:
    """All of the tables' tiles, buffers and splits that fit the device and suit the number of tokens."""
    lanes = matrix_subgroup_size(info) or 1
    for tile_t, tiles in COOPMAT_TILES.items():
        if tile_t >= 2 * max(product.tokens, 16) or tile_t * 8 < product.tokens:
            continue
        for tile_n, parts_t, parts_n, tile_k, buffers in tiles:
            tile = TileTuning(0, tile_t, tile_n, parts_t, parts_n, tile_k, buffers)
            if coopmat_shared_bytes(tile) > info.max_shared_memory or tile_n * (tile_k + 8) < 512 * parts_t * parts_n:
                continue
            if tile_t * tile_n // (parts_t * parts_n * lanes) > MAX_ACCUMULATORS:
                continue
            for splits in SPLITS:
                more = replace(tile, splits=splits)
                workgroups = -(-product.tokens // tile_t) * -(-product.n // tile_n) * splits
                has_columns = workgroups <= MAX_WORKGROUPS and product.k // splits >= 2 * tile_k
                if splits == 1 or (has_columns and can_split(more, product)):
                    yield coopmat_plan(info, more, product)


def fragment_candidates(info: DeviceInfo, product: Product) -> Iterator[LinearPlan]:
    """Cuts of linear_quant_fragments for which a lane has registers, and that fill the device without ado."""
    tokens, n, k = product.tokens, product.n, product.k
    narrow = tokens <= NARROW_TOKENS and NARROW_FEATURE in info.features
    sizes = [(1, 8)] * narrow + [(parts_t, 16) for parts_t in (1, 2, 4, 8)]
    for (parts_t, size), parts_n, subgroups, splits in itertools.product(sizes, (1, 2, 4), FRAGMENT_SUBGROUPS, SPLITS):
        tuning = FragmentTuning(0, parts_t, parts_n, *subgroups, splits, size)
        fits = 8 * parts_t * parts_n <= MAX_ACCUMULATORS
        suits = tuning.tile_t < 2 * max(tokens, 16) and tuning.tile_t >= min(tokens, 64)
        workgroups = -(-tokens // tuning.tile_t) * -(-n // tuning.tile_n) * splits
        shares = splits == 1 or (workgroups <= MAX_WORKGROUPS // 2 and can_split(tuning, product))
        fills = splits == SPLITS[-1] or workgroups >= MIN_WORKGROUPS
        if fits and suits and shares and fills and k // (128 * subgroups[1] * splits) >= 2:
            yield fragment_plan(info, tuning, product)


class Bench:
    """Device memory with copies of random weights, and one command buffer per kernel."""

    def __init__(self, device: Device, pool_bytes: int, repeats: int) -> None:
        self.device = device
        self.repeats = repeats
        self._pool = CommandPool(device, device.compute)
        self._times = TimestampPool(device, 2 * ROUNDS)
        self._weights = random_memory(self._pool, pool_bytes, name="weights")  # halves serve as codes, too
        self._fixed: dict[str, Buffer] = {}

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

    def prepare(self, recorder: CommandRecorder, product: Product, form: RowForm) -> None:
        """Record bringing any numbers at all into the form that a kernel reads."""
        floats = self._floats(product)
        out = self._scratch(product).rows(floats, form)
        if not isinstance(out, Tensor):
            prepare_input(recorder, self.device.kernels, self.device.info, x=floats, out=out)

    def time_input(self, product: Product, form: RowForm) -> float:
        """Median microseconds of preparing the activations."""
        return self._median_ns(lambda rec, _: self.prepare(rec, product, form), lambda _: None) / 1e3

    def time(self, plan: LinearPlan, product: Product, kind: ElementType) -> Figure:
        """Median time of the plan's dispatch; preparing the activations is not in it."""
        tokens, n, k = product.tokens, product.n, product.k
        y = self._zeros("y", tokens * n * 4)
        outputs = tokens, product.num_outputs
        out = BlockRows.at(y, *outputs) if product.blocked else Tensor(y, outputs, DType.F32)
        nbytes = product.weight_bytes
        copies = max(1, self._weights.nbytes // nbytes)
        scratch = self._scratch(product)
        rows = scratch.rows(self._floats(product), plan.form)

        def record(recorder: CommandRecorder, i: int) -> None:
            place = self._weights.address + i % copies * nbytes
            dispatch_plan(
                recorder,
                self.device.kernels,
                plan,
                x=rows,
                weight=Tensor(place, (n, k), kind) if isinstance(kind, DType) else QuantTensor(place, (n, k), kind),
                out=out,
                num_tokens=tokens,
                scratch=scratch,
                epilogue=epilogue(product),
            )

        ns = self._median_ns(record, lambda rec: self.prepare(rec, product, plan.form))
        named = " ".join(f"{name.lower()}={value}" for name, value in (*plan.constants, *product.options))
        return Figure(tokens, n, k, kind.value, plan.entry, named, ns / 1e3, nbytes / ns, 2.0 * tokens * n * k / ns)

    def _floats(self, product: Product) -> Tensor:
        return Tensor(self._weights.address, (product.tokens, product.k), DType.F32)  # any numbers will do

    def _scratch(self, product: Product) -> LinearScratch:
        size = product.tokens, product.k
        return LinearScratch.at(self._zeros("scratch", LinearScratch.size(*size)), *size)


def epilogue(product: Product) -> Epilogue:
    return GATE if product.gated else NO_EPILOGUE


def product_to_time(info: DeviceInfo, kind: ElementType, tokens: int, n: int, k: int, *, gated: bool) -> Product:
    """The product; with a gate, where the engine applies it, and with blocks as output where it leaves such."""
    product = Product.of(kind, tokens, n, k)
    if not gated or not can_gate(info, product):
        return product
    return product._replace(gated=True, blocked=pays_to_block(info, product))


def measure(device: Device, options: argparse.Namespace) -> Iterator[Figure]:
    kinds = [FORMATS[name] for name in options.format]
    products = [
        (kind, product_to_time(device.info, kind, tokens, n, k, gated=options.gated))
        for kind in kinds
        for n, k in options.shape
        for tokens in options.tokens
    ]
    largest = max(product.weight_bytes for _, product in products)
    activations = max(product.tokens * product.k * 4 for _, product in products)
    bench = Bench(device, max(2 * largest, activations, options.pool_mib << 20), options.repeats)
    for kind, product in products:
        found = candidates(device.info, product, sweep=options.sweep)
        plans = {plan.pipeline: plan for plan in found if options.only in plan.entry}
        if not plans:
            continue
        device.kernels.prepare(
            kernel_request(plan, epilogue(product), blocked=product.blocked) for plan in plans.values()
        )
        figures = [bench.time(plan, product, kind) for plan in plans.values()]
        rule = plan_linear(device.info, product)
        chosen, form = figures[0] if rule.pipeline in plans else None, rule.form
        size = f"T={product.tokens:<4} "
        if form is not RowForm.FLOATS:
            print(f"  {size}K={product.k:<6} {bench.time_input(product, form):10.1f} µs input", flush=True)
        for figure in sorted(figures, key=lambda f: f.us)[: options.best]:
            mark = "*" if figure is chosen else " "
            print(
                f"{mark} {size}N={product.n:<6} K={product.k:<6} {figure.us:10.1f} µs {figure.gb_per_s:8.1f} GB/s "
                f"{figure.gflop_per_s / 1e3:8.2f} TFLOP/s  {figure.entry} {figure.constants}",
                flush=True,
            )
            yield figure


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time the linear kernels.")
    parser.add_argument("--device", help=DEVICE_HELP)
    parser.add_argument("--shape", type=shape, nargs="+", default=SHAPES, help="rows x columns of the weights")
    parser.add_argument("--tokens", nargs="+", type=count, default=[1, 2, 4, 8, 16, 32, 64, 512])
    parser.add_argument("--format", nargs="+", choices=tuple(FORMATS), default=["BF16", "int4"], metavar="FORMAT")
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
        print(f"kernels: {exc}", file=sys.stderr)
        return 1
    if not figures:
        print(f"kernels: --only {options.only}: no kernel with this name, nothing was timed", file=sys.stderr)
        return 2
    if options.json:
        report = device_facts(device.info) | {"figures": [asdict(figure) for figure in figures]}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
