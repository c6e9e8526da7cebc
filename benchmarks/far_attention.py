#!/usr/bin/env python3
"""Attention on a second device: what it costs, and what two halves that alternate bring back.

    far_attention.py gpu MODEL [--device NAME] [--attention vulkan:NAME] [--weights int4] [--streams 1 8 32]
              [--context 256] [--prompt 512] [--tokens 32] [--repeat 5] [--json FILE]
    far_attention.py npu [--heads 32] [--kv-heads 8] [--head-dim 128] [--chip npu1] [--repeat 7] [--json FILE]

gpu: MODEL is a directory, a GGUF file or `demo`. Four engines are open at once and measured in turns: attention on the
device that runs the model; on the other one with whole steps; on the other one with halves that alternate; the same
with an exchange that the host copies, where the others share memory if they can. Without
--attention the other one is a second logical device of the same GPU: then both share its cores, nothing can be gained,
and what is measured is the cost of the hand-over. Rates are medians with the lowest and the highest; the overlap is the
share of the attention's time in which the other device worked as well, and bubbles are the share of the steps' time in
which the model's device waited, both as the host saw it.

npu: what attention on an NPU costs the host: preparing steps, and copying what a layer hands over. Needs no NPU. A step
is prepared once for each kind of window, in a thread; queries, results and new tokens are copied for every layer, where
the GPU and the NPU share no memory. Blocks are in order (one transfer for many of them) or at random places (one
transfer each). Times are medians with the lowest and the highest, in milliseconds. What XRT does for a layer (syncs,
the dispatch) is not in them: `unicorn npu validate` measures that on an NPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from bench_device import check_fit
from command_line import add_part, out_file, run_part, run_script

from unicorn_async.cli.bench_run import measure_prompt
from unicorn_async.cli.options import attention_target, count
from unicorn_async.config import AttentionKind, AttentionTarget, EngineConfig, ExchangeKind, SplitMode, WeightScheme
from unicorn_async.engine.engine import Engine
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.hybrid.npu_plan import npu_options
from unicorn_async.npu.geometry import CHIPS, HeadLayout, chip_named
from unicorn_async.npu.manifest import Build
from unicorn_async.npu.pace import RunPace
from unicorn_async.npu.packets import read_results, write_queries, write_tokens
from unicorn_async.npu.precision import Products
from unicorn_async.npu.schedule import PACKET_BYTES, Team
from unicorn_async.npu.step import PreparedStep, prepare_step
from unicorn_async.npu.transaction import Dialect
from unicorn_async.npu.work import AttentionHeads, SequenceWork
from unicorn_async.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from unicorn_async.engine.types import AttentionStats, Token

SEED = 5
WARM_UP = 2  # runs: the engine records a step of a new shape once for each of its frames
WAYS = ("gpu", "whole", "halves", "copied")
NUM_BLOCKS = 1 << 12  # of an NPU's cache
LEAST_BLOCK = 64  # tokens


@dataclass(slots=True)
class Runs:
    """What one way gave in one kind of work; the last two are empty where nothing is elsewhere."""

    tokens_per_s: list[float] = field(default_factory=list)
    overlap: list[float] = field(default_factory=list)
    bubbles: list[float] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return medians and extremes."""
        return {
            name: [statistics.median(values), min(values), max(values)] if values else None
            for name in type(self).__dataclass_fields__
            for values in (getattr(self, name),)
        }


def ways(options: argparse.Namespace, device: str) -> dict[str, EngineConfig]:
    """Return the engines' options."""
    base = EngineConfig(
        device=device,
        max_num_seqs=max(options.streams),
        max_context=max(options.context, options.prompt) + options.tokens + 64,
        weights=WeightScheme(options.weights),
        skip_tokenizer=True,
    )
    elsewhere = replace(base, attention=options.attention or AttentionTarget.parse(f"vulkan:{device}"))
    return {
        "gpu": base,
        "whole": replace(elsewhere, attention_split=SplitMode.NEVER),
        "halves": replace(elsewhere, attention_split=SplitMode.ALWAYS),
        "copied": replace(elsewhere, attention_split=SplitMode.ALWAYS, attention_exchange=ExchangeKind.COPIED),
    }


async def decode(engine: Engine, count: int, options: argparse.Namespace, rng: random.Random) -> Runs:
    """Decode with so many streams; counted is what lies between two tokens that all of them have."""
    size = engine.model_spec.vocab_size
    sampling = SamplingParams(max_tokens=options.tokens + 64, ignore_eos=True)
    streams = [engine.stream([rng.randrange(size) for _ in range(options.context)], sampling) for _ in range(count)]

    async def read(stream: AsyncGenerator[Token, None], num_tokens: int) -> None:
        for _ in range(num_tokens):
            await anext(stream)

    try:
        await asyncio.gather(*(read(stream, 2) for stream in streams))
        before, started_s = engine.stats().attention, time.perf_counter()
        await asyncio.gather(*(read(stream, options.tokens) for stream in streams))
        return _runs(before, engine.stats().attention, count * options.tokens, time.perf_counter() - started_s)
    finally:
        for stream in streams:
            await stream.aclose()


async def prompt(engine: Engine, options: argparse.Namespace, rng: random.Random) -> Runs:
    """Process one prompt."""
    before = engine.stats().attention
    measured = await measure_prompt(engine, rng, batch=1, num_tokens=options.prompt)
    return _runs(before, engine.stats().attention, measured.tokens, measured.token_s)


def _runs(before: AttentionStats | None, after: AttentionStats | None, tokens: int, seconds: float) -> Runs:
    found = Runs([tokens / seconds])
    if before is not None and after is not None:
        far_s, step_s = after.far_s - before.far_s, after.step_s - before.step_s
        found.overlap.append((after.both_s - before.both_s) / far_s)
        found.bubbles.append(1.0 - (after.near_s - before.near_s) / step_s)
    return found


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Open the engines and measure them in turns."""
    works = [("prompt", 1), *(("decode", count) for count in options.streams)]
    rng = random.Random(SEED)
    async with AsyncExitStack() as stack:
        engines = {
            way: await stack.enter_async_context(Engine.open(options.model, config=config))
            for way, config in ways(options, options.device or "0").items()
        }
        for engine in engines.values():
            await engine.loaded()
        rows = []
        for work, count in works:
            runs = {way: Runs() for way in WAYS}
            for number in range(WARM_UP + options.repeat):
                for way, engine in engines.items():
                    prompted = work == "prompt"
                    found = await (prompt(engine, options, rng) if prompted else decode(engine, count, options, rng))
                    if number >= WARM_UP:
                        for name in type(found).__dataclass_fields__:
                            getattr(runs[way], name).extend(getattr(found, name))
            rows.append({"work": work, "streams": count} | {way: runs[way].to_json() for way in WAYS})
            print(row_text(rows[-1]), flush=True)
        near, halves = engines["gpu"].device, engines["halves"]
        return {
            "model": halves.model_name,
            "weights": options.weights,
            "device": near.name,
            "driver": f"{near.driver_name} {near.driver_info}",
            "software": near.is_software,
            "attention": halves.attention.to_json(),
            "kernels": list(halves.kernels),
            "prompt": options.prompt,
            "context": options.context,
            "rows": rows,
        }


def row_text(row: dict[str, Any]) -> str:
    """Return a line for people."""
    parts = []
    for way in WAYS:
        rate, low, high = row[way]["tokens_per_s"]
        overlap, bubbles = row[way]["overlap"], row[way]["bubbles"]
        shares = f", overlap {overlap[0]:.0%}, bubbles {bubbles[0]:.0%}" if overlap else ""
        parts.append(f"{way} {rate:,.1f} ({low:,.1f} to {high:,.1f}){shares}")
    ratio = row["halves"]["tokens_per_s"][0] / row["whole"]["tokens_per_s"][0]
    return f"{row['work']} × {row['streams']}, tok/s: {'; '.join(parts)}; halves / whole {ratio:.2f}"


@dataclass(frozen=True, slots=True)
class Case:
    """A step of equal sequences, each with the last `queries` of its `context` tokens."""

    name: str
    sequences: int
    queries: int
    context: int
    in_order: bool = True


CASES = (
    Case("1 decodes at 4096", 1, 1, 4096),
    Case("1 decodes at 4096, blocks anywhere", 1, 1, 4096, in_order=False),
    Case("8 decode at 1024", 8, 1, 1024),
    Case("32 decode at 1024", 32, 1, 1024),
    Case("512 tokens of a prompt", 1, 512, 512),
    Case("the last 512 tokens of 4096", 1, 512, 4096),
    Case("the last 512 tokens of 4096, blocks anywhere", 1, 512, 4096, in_order=False),
)


def milliseconds(work: Callable[[], object], repeat: int) -> list[float]:
    """Return the median, the lowest and the highest of some runs, after one to warm up."""
    work()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - start))
    return [round(value, 3) for value in (statistics.median(times), min(times), max(times))]


def measure_host(case: Case, build: Build, heads: AttentionHeads, repeat: int) -> dict[str, Any]:
    """Prepare a step and copy a layer of it."""
    rng, size = np.random.default_rng(0), heads.block_size
    per_sequence = -(-case.context // size)
    order = np.arange(NUM_BLOCKS) if case.in_order else rng.permutation(NUM_BLOCKS)
    tables = order[: case.sequences * per_sequence].reshape(case.sequences, per_sequence)
    works = [
        SequenceWork(row * case.queries, case.queries, case.context, tuple(table.tolist()))
        for row, table in enumerate(tables)
    ]
    tokens = case.sequences * case.queries
    options = npu_options(heads, case.context)
    limits = {
        "items_per_run": options.items_per_run,
        "instruction_bytes": options.instruction_bytes,
        "tasks_per_run": options.tasks_per_run,
        "run_s": RunPace(None).run_s,
    }

    def prepare() -> PreparedStep:
        shared = {"num_tokens": tokens, "num_blocks": NUM_BLOCKS, "window": 0, "soft_cap": 0.0}
        return prepare_step(build, heads, works, **shared, **limits)

    step, dim = prepare(), heads.layout.head_dim
    q, out = np.zeros((tokens, heads.num_heads, dim), np.uint16), np.zeros((tokens, heads.num_heads, dim), np.float32)
    packets = np.zeros(options.items_per_run * PACKET_BYTES, np.uint8)
    results = np.zeros(options.items_per_run * heads.layout.result_bytes, np.uint8)
    cache = np.zeros(heads.cache_bytes(NUM_BLOCKS // 8) // 2, np.uint16)
    new = np.zeros((tokens, heads.num_kv_heads, dim), np.uint16)
    positions = np.arange(case.context - case.queries, case.context)
    slots = (tables[:, positions // size] % (NUM_BLOCKS // 8) * size + positions % size).ravel()

    def copy_queries() -> None:
        for part in step.parts:
            write_queries(packets, heads, part, q)

    def copy_results() -> None:
        for part in step.parts:
            read_results(results, heads, part, out)

    return {
        "case": case.name,
        "runs_per_layer": len(step.parts),
        "instruction_bytes": sum(part.stream.nbytes for part in step.parts),
        "prepare_ms": milliseconds(prepare, repeat),
        "queries_ms": milliseconds(copy_queries, repeat),
        "new_tokens_ms": milliseconds(lambda: write_tokens(cache, heads, new, new, slots), repeat),
        "results_ms": milliseconds(copy_results, repeat),
    }


def run_gpu(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Measure, print, write."""
    if options.attention and options.attention.kind is not AttentionKind.VULKAN:
        parser.error(f"--attention: expected vulkan:NAME, got {options.attention}")
    check_fit(parser, options.model, *ways(options, options.device or "0").values())
    found = asyncio.run(measure(options))
    kind = "SOFTWARE device" if found["software"] else "GPU"
    attention = found["attention"]
    print(
        f"{found['model']}, weights {found['weights']}: {found['device']}, {found['driver']}, {kind}, {os.cpu_count()}"
        f" cores; attention on {attention['device']}, {attention['exchange']} memory"
    )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def run_npu(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Measure all cases and print them."""
    chip = chip_named(options.chip)
    assert chip is not None
    try:
        layout = HeadLayout(chip, options.head_dim)
        heads = AttentionHeads(layout, options.heads, options.kv_heads, max(LEAST_BLOCK, layout.chunk_keys))
    except UnsupportedModelError as exc:
        parser.error(str(exc))
    teams = tuple(Team(column, channel, channel) for column in range(chip.columns) for channel in (0, 1))
    dialect = Dialect((0, 0), (0, 0, 0, 0, 0, 0), ())  # words of the toolchain's, which cost the same whatever they are
    build = Build(chip, options.head_dim, Products.BF16, Path(), "", "", {}, dialect, teams)
    shape = f"{options.heads} heads, {options.kv_heads} for keys and values, head_dim {options.head_dim}"
    print(f"{platform.machine()}, {os.cpu_count()} cores; {chip.name}, {shape}, blocks of {heads.block_size} tokens")
    print(f"{'':46}{'runs':>6}{'prepare':>24}{'queries':>20}{'new tokens':>20}{'results':>20}")
    found = [measure_host(case, build, heads, options.repeat) for case in CASES]
    for row in found:
        times = (row[name] for name in ("prepare_ms", "queries_ms", "new_tokens_ms", "results_ms"))
        cells = "".join(
            f"{f'{middle:.2f} ({low:.2f}–{high:.2f})':>{width}}"
            for width, (middle, low, high) in zip((24, 20, 20, 20), times, strict=True)
        )
        print(f"{row['case']:46}{row['runs_per_layer']:>6}{cells}")
    if options.json is not None:
        options.json.write_text(json.dumps({"heads": str(heads), "cases": found}, indent=2))


def main() -> None:
    """Run the part that is asked for."""
    parser = argparse.ArgumentParser(description="Attention on a second device.")
    parts = parser.add_subparsers(required=True, metavar="gpu or npu")

    gpu = add_part(parts, "gpu", run_gpu, "Attention on a second Vulkan device, whole steps and alternating halves.")
    gpu.add_argument("model")
    gpu.add_argument("--device", help="index or part of the name (default: 0)")
    text = "vulkan:NAME (default: a second logical device of the same GPU)"
    gpu.add_argument("--attention", type=attention_target, help=text)
    gpu.add_argument("--weights", choices=[scheme.value for scheme in WeightScheme], default="auto")
    gpu.add_argument("--streams", type=count, nargs="+", default=[1, 8, 32])
    gpu.add_argument("--prompt", type=count, default=512)
    gpu.add_argument("--context", type=count, default=256, help="tokens of each prompt before decoding")
    gpu.add_argument("--tokens", type=count, default=32)
    gpu.add_argument("--repeat", type=count, default=5)

    npu = add_part(parts, "npu", run_npu, "What attention on an NPU costs the host; needs no NPU.")
    npu.add_argument("--heads", type=count, default=32)
    npu.add_argument("--kv-heads", type=count, default=8)
    npu.add_argument("--head-dim", type=count, default=128)
    npu.add_argument("--chip", choices=[chip.name for chip in CHIPS], default=CHIPS[0].name)
    npu.add_argument("--repeat", type=count, default=7)
    for part in (gpu, npu):
        part.add_argument("--json", type=out_file, metavar="FILE")
    run_part(parser)


if __name__ == "__main__":
    run_script(main)
