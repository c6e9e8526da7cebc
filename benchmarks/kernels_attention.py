"""Times decode attention on a device: bytes of keys and values read, against the device's copy rate.

A shape is query heads, kv heads and the size of a head; by default those of Gemma 3 27B and Llama 3 8B. Each figure is
a layer's attention as a step pays for it, with the splits' join and the barrier after it: the median over rounds of
layers whose caches are different parts of one pool with its blocks in random order, timed by the device's own
timestamps. Without --sweep the constants are those that the engine would take; with it, all candidates of the tables
below are timed, the fastest first. --splits and --tile add their values to either.

--rotates says where the norm and rotation of the new queries and keys, and the store of the new keys and values, are
timed: not at all, in attention's own kernel in passing, or in a dispatch apart before it, with the barrier between.
"""

from __future__ import annotations

import itertools
import json
import statistics
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from bench_device import chosen_info, device_facts, opened_device
from command_line import add_part, head_shape

from unicorn_async.cli.bench_limits import Limits, measure_limits
from unicorn_async.cli.options import count
from unicorn_async.config import KVDType
from unicorn_async.gpu.command import CommandPool, TimestampPool
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.attention import GpuAttention
from unicorn_async.ops.attention_op import AttentionBatch, DecodeScratch
from unicorn_async.ops.attention_plan import AttentionPlan, DecodeCut
from unicorn_async.ops.kv_cache import AttentionShape, KVCache, head_nbytes
from unicorn_async.ops.rotary import HeadNorms, HeadRotation, frequencies, kernels_for, rope_cache, rotation_constants
from unicorn_async.ops.subgroups import known_subgroup_size
from unicorn_async.rotary import RotaryConfig
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.kernel import KernelRequest
    from unicorn_async.gpu.memory import Buffer

SHAPES = ((32, 16, 128), (32, 8, 128))
BLOCK_SIZE = 16
WORKGROUPS = (64, 128, 256)
UNROLLS = (2, 4, 8)
SPLITS = (16, 24, 48, 96)
HEADS = (2, 4, 8)
LANES = (8, 16, 32)
ROTATES = ("no", "passing", "apart")
ROUNDS = 5  # of repeats
EPS = 1e-6  # of the norms
MAX_REGISTERS = 160  # f32 of a lane that are worth a try: queries, sums, and what is under way


@dataclass(frozen=True, slots=True)
class Figure:
    """One shape at one context."""

    shape: str
    context: int
    streams: int
    rotates: str
    constants: str
    us: float
    gb_per_s: float
    of_copy: float


def candidates(
    info: DeviceInfo, shape: AttentionShape, streams: int, options: argparse.Namespace
) -> Iterator[AttentionPlan]:
    """The plans to time, the engine's own first."""
    plan = AttentionPlan.of(info, shape)
    own = plan.cut(streams)
    yield plan
    splits = options.splits or (SPLITS if options.sweep else [plan.max_splits])
    cuts = (
        itertools.product(WORKGROUPS, UNROLLS, HEADS, LANES)
        if options.sweep
        else [(own.workgroup, own.unroll, plan.decode_heads, own.lanes)]
    )
    for (workgroup, unroll, heads, lanes), most, tile in itertools.product(cuts, splits, options.tile or [own.tile]):
        chunks, loads = shape.head_dim // 8, shape.head_dim // plan.lane_elements
        fits = shape.group % heads == 0 and loads % lanes == 0 and lanes <= info.min_subgroup_size <= workgroup
        registers = 8 * chunks // max(lanes, 1) * (2 * heads + unroll)
        if fits and registers <= MAX_REGISTERS:
            cut = DecodeCut(workgroup, -(-workgroup // known_subgroup_size(info)), lanes, tile, unroll)
            yield replace(plan, cuts=((1, cut),), decode_heads=heads, max_splits=most)


class Bench:
    """A pool of keys and values, and what one step's attention reads beside it."""

    def __init__(self, device: Device, pool_bytes: int, repeats: int) -> None:
        self._device, self._repeats = device, repeats
        self._pool = CommandPool(device, device.compute)
        self._times = TimestampPool(device, 2 * ROUNDS)
        self._cache = self._random(pool_bytes)

    def time(self, plan: AttentionPlan, context: int, streams: int, rotates: str, limits: Limits) -> Figure:
        """Median time of a layer's attention, and of its rotation if it `rotates`."""
        shape = plan.shape
        per_stream = -(-context // shape.block_size)
        nbytes = 2 * streams * context * shape.num_kv_heads * head_nbytes(shape.head_dim, shape.kv_dtype)  # K and V
        layer = per_stream * streams * shape.block_nbytes
        copies = max(1, self._cache.nbytes // (2 * layer))
        grid, cut = plan.decode_grid([context] * streams, 0, streams), plan.cut(streams)
        table = np.random.default_rng(0).permutation(per_stream * streams).astype(np.uint32)
        columns = shape.num_heads * shape.head_dim
        heads = columns + 2 * shape.num_kv_heads * shape.head_dim if rotates != "no" else columns
        last = table.reshape(streams, per_stream)[:, -1] * shape.block_size + (context - 1) % shape.block_size
        buffers = [
            self._put(np.arange(streams, dtype=np.uint32).repeat(2)),
            self._put(np.full(streams, context, np.uint32)),
            self._put(table),
            self._put(np.array([grid, (0, 0, 0)], np.uint32)),
            self._put(np.random.default_rng(1).standard_normal((streams, heads)).astype(np.float32) / 4),
            self._put(np.zeros((streams, columns), np.float32)),
            self._device.memory.allocate(plan.partials_nbytes(streams), MemoryKind.DEVICE, name="partials"),
            self._device.memory.allocate(plan.split_counters_nbytes(streams), MemoryKind.DEVICE, name="split counters"),
            self._put(np.zeros((streams, columns), np.float32)),
            self._put(np.full(streams, context - 1, np.uint32)),
            self._put(last),
            self._put(np.ones(shape.head_dim, np.float32)),
            self._put(np.frombuffer(frequencies(RotaryConfig(base=10000.0), shape.head_dim), np.uint32)),
        ]
        items, contexts, blocks, sizes, new, out, partials, counters, q, positions, slots, weight, freqs = buffers
        norm = Tensor(weight.address, (shape.head_dim,), DType.F32)
        rotation = HeadRotation(freqs.address, shape.head_dim**-0.5, HeadNorms(norm, norm, EPS))
        new_heads = Tensor(new.address, (streams, heads), DType.F32)
        rotated = Tensor(q.address, (streams, columns), DType.F32)
        batch = AttentionBatch(
            query_start=0,
            query_len=0,
            context_len=contexts.address,
            block_table=blocks.address,
            max_blocks=per_stream,
            decode_items=items.address,
            prefill_tiles=0,
            scratch=DecodeScratch(partials.address, counters.address),
            grids=sizes,
            decode_grid_offset=0,
            prefill_grid_offset=12,
            has_prefill=False,
        )
        attention = _attention(self._device, plan)
        recorder = self._pool.recorder()
        recorder.fill(counters, 0, counters.nbytes, 0)
        recorder.barrier()
        for run in range(ROUNDS):
            recorder.timestamp(self._times, 2 * run)
            for i in range(self._repeats):
                k = self._cache.address + (run * self._repeats + i) % copies * 2 * layer
                cache = KVCache(k, k + layer)
                if rotates == "apart":
                    rope_cache(
                        recorder,
                        self._device.kernels,
                        self._device.info,
                        shape=shape,
                        qkv=new_heads,
                        q=rotated,
                        cache=cache,
                        rotation=rotation,
                        positions=positions.address,
                        slot_mapping=slots.address,
                    )
                    recorder.barrier()
                attention.record(
                    recorder,
                    q=rotated if rotates == "apart" else new_heads,
                    cache=cache,
                    window=0,
                    batch=batch,
                    out=Tensor(out.address, (streams, columns), DType.F32),
                    rotation=rotation if rotates == "passing" else None,
                )
                recorder.barrier()
            recorder.timestamp(self._times, 2 * run + 1)
        commands = recorder.end()
        for _ in range(2):  # the first run compiles what the driver left to the first use
            self._device.compute.timeline.wait(self._device.compute.submit([commands]))
        stamps = self._times.read(0, 2 * ROUNDS)
        self._pool.free(commands)
        for buffer in buffers:
            buffer.close()
        pairs = zip(stamps[::2], stamps[1::2], strict=True)
        ns = statistics.median((end - start) / self._repeats for start, end in pairs)
        named = (
            f"workgroup={cut.workgroup} unroll={cut.unroll} heads={plan.decode_heads} lanes={cut.lanes} "
            f"tile={cut.tile} splits={grid[0]}"
        )
        label = f"{shape.num_heads}:{shape.num_kv_heads}:{shape.head_dim} {shape.kv_dtype.value}"
        rate = nbytes / ns
        return Figure(label, context, streams, rotates, named, ns / 1e3, rate, rate * 1e9 / limits.copy_bytes_per_s)

    def _random(self, nbytes: int) -> Buffer:
        """Small random halves; for a cache of int8 random codes and such scales."""
        memory = self._device.memory
        block = memory.allocate(min(nbytes, 16 << 20), MemoryKind.STAGING, name="random")
        assert block.mapped is not None
        values = np.random.default_rng(0).standard_normal(block.nbytes // 2, np.float32) * 0.5
        np.frombuffer(block.mapped, np.float16)[:] = values.astype(np.float16)
        buffer = memory.allocate(nbytes, MemoryKind.DEVICE, name="cache")
        recorder = self._pool.recorder()
        for offset in range(0, nbytes, block.nbytes):
            recorder.copy(block, 0, buffer, offset, min(block.nbytes, nbytes - offset))
        self._device.compute.timeline.wait(self._device.compute.submit([recorder.end()]))
        block.close()
        return buffer

    def _put(self, values: np.ndarray[Any, Any]) -> Buffer:
        buffer = self._device.memory.allocate(values.nbytes, MemoryKind.ARGUMENTS, name="step")
        assert buffer.mapped is not None
        np.frombuffer(buffer.mapped, values.dtype, values.size)[:] = values.reshape(-1)
        return buffer


def _attention(device: Device, plan: AttentionPlan) -> GpuAttention:
    attention = GpuAttention(device.info, device.kernels, plan.shape)
    attention.plan = plan
    return attention


def _kernels(device: Device, plan: AttentionPlan, streams: int, rotates: str) -> Iterator[KernelRequest]:
    """What decode takes of the attention's kernels, and what rotates."""
    constants = rotation_constants(q_scale=plan.shape.head_dim**-0.5, qk_norm=True, eps=EPS, plus_one=False)
    rotation = constants if rotates == "passing" else None
    yield _attention(device, plan).kernels_for(rotation=rotation, num_tokens=streams)[0]
    if rotates == "apart":
        yield from kernels_for(device.info, plan.shape, qk_norm=True, plus_one=False)


def measure(device: Device, limits: Limits, options: argparse.Namespace) -> Iterator[Figure]:
    kinds = [KVDType(kind) for kind in options.kv_dtype]
    shapes = [AttentionShape(*size, BLOCK_SIZE, kind) for size, kind in itertools.product(options.shape, kinds)]
    largest = max(2 * (-(-max(options.context) // BLOCK_SIZE)) * max(options.streams) * s.block_nbytes for s in shapes)
    bench = Bench(device, max(largest, options.pool_mib << 20), options.repeats)
    for context, shape, streams, rotates in itertools.product(
        options.context, shapes, options.streams, options.rotates
    ):
        plans = dict.fromkeys(candidates(device.info, shape, streams, options))
        device.kernels.prepare(request for plan in plans for request in _kernels(device, plan, streams, rotates))
        figures = [bench.time(plan, context, streams, rotates, limits) for plan in plans]
        chosen = figures[0]
        for figure in sorted(figures, key=lambda f: f.us)[: options.best]:
            mark = "*" if figure is chosen else " "
            print(
                f"{mark} {figure.shape} context {context:<6} streams {streams:<3} rotates {rotates:<7} "
                f"{figure.us:10.1f} µs {figure.gb_per_s:8.1f} GB/s {figure.of_copy:6.0%} of copy  {figure.constants}",
                flush=True,
            )
            yield figure


def run(options: argparse.Namespace, _: argparse.ArgumentParser) -> None:
    """Measure, print, write."""
    limits = measure_limits(str(chosen_info(options.device).index))
    with opened_device(options.device) as device:
        print("\n".join([*limits.lines(), "* = what the engine takes"]), flush=True)
        figures = list(measure(device, limits, options))
    if options.json:
        report = device_facts(device.info) | {"limits": asdict(limits), "figures": [asdict(one) for one in figures]}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


def add(parts: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the part of kernels.py."""
    part = add_part(parts, "attention", run, "Decode attention, beside the device's copy.")
    part.add_argument("--shape", type=head_shape, nargs="+", default=SHAPES, help="query heads:kv heads:size of a head")
    part.add_argument("--context", nargs="+", type=count, default=[1024, 8192, 32768])
    part.add_argument("--streams", nargs="+", type=count, default=[1])
    part.add_argument("--rotates", nargs="+", choices=ROTATES, default=["no"], help="where to time the rotation")
    part.add_argument("--repeats", type=count, default=20, help="layers between two timestamps")
    part.add_argument("--pool-mib", type=count, default=2048, help="memory for caches")
    part.add_argument("--sweep", action="store_true", help="time every candidate")
    part.add_argument("--splits", nargs="+", type=count, help="most splits to try")
    part.add_argument("--tile", nargs="+", type=count, help="keys of the shortest splits to try, multiples of 32")
    part.add_argument("--best", type=count, default=6, help="how many of a sweep to print")
    part.add_argument("--kv-dtype", nargs="+", choices=[kind.value for kind in KVDType], default=["f16"])
    return part
