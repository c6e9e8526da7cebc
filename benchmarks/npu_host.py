#!/usr/bin/env python3
"""What attention on an NPU costs the host: preparing steps, and copying what a layer hands over. Needs no NPU.

    npu_host.py [--heads 32] [--kv-heads 8] [--head-dim 128] [--chip npu1] [--repeat 7] [--json FILE]

A step is prepared once for each kind of window, in a thread; queries, results and new tokens are copied for every
layer, where the GPU and the NPU share no memory. Blocks are in order (one transfer for many of them) or at random
places (one transfer each). Times are medians with the lowest and the highest, in milliseconds. What XRT does for a
layer (syncs, the dispatch) is not in them: `unicorn npu validate` measures that on an NPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from out_file import out_file

from unicorn_async.cli.options import count
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.hybrid.npu_plan import npu_options
from unicorn_async.npu.geometry import CHIPS, HeadLayout, chip_named
from unicorn_async.npu.manifest import Build
from unicorn_async.npu.packets import read_results, write_queries, write_tokens
from unicorn_async.npu.schedule import PACKET_BYTES, Lane
from unicorn_async.npu.step import PreparedStep, prepare_step
from unicorn_async.npu.transaction import Dialect
from unicorn_async.npu.work import AttentionHeads, SequenceWork

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_BLOCKS = 1 << 14


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


def measure(case: Case, build: Build, heads: AttentionHeads, repeat: int) -> dict[str, Any]:
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
    limits = {"items_per_run": options.items_per_run, "instruction_bytes": options.instruction_bytes}

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


def main() -> None:
    """Measure all cases and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=count, default=32)
    parser.add_argument("--kv-heads", type=count, default=8)
    parser.add_argument("--head-dim", type=count, default=128)
    parser.add_argument("--chip", choices=[chip.name for chip in CHIPS], default=CHIPS[0].name)
    parser.add_argument("--repeat", type=count, default=7)
    parser.add_argument("--json", type=out_file)
    options = parser.parse_args()
    chip = chip_named(options.chip)
    assert chip is not None
    try:
        layout = HeadLayout(chip, options.head_dim)
        heads = AttentionHeads(layout, options.heads, options.kv_heads, layout.chunk_keys)
    except UnsupportedModelError as exc:
        parser.error(str(exc))
    lanes = tuple(Lane(column, channel, channel) for column in range(chip.columns) for channel in (0, 1))
    dialect = Dialect((0, 0), (0, 0, 0, 0, 0, 0), ())  # words of the toolchain's, which cost the same whatever they are
    build = Build(chip, options.head_dim, Path(), "", "", {}, dialect, lanes)
    shape = f"{options.heads} heads, {options.kv_heads} for keys and values, head_dim {options.head_dim}"
    print(f"{platform.machine()}, {os.cpu_count()} cores; {chip.name}, {shape}, blocks of {heads.block_size} tokens")
    print(f"{'':46}{'runs':>6}{'prepare':>24}{'queries':>20}{'new tokens':>20}{'results':>20}")
    found = [measure(case, build, heads, options.repeat) for case in CASES]
    for row in found:
        times = (row[name] for name in ("prepare_ms", "queries_ms", "new_tokens_ms", "results_ms"))
        cells = "".join(
            f"{f'{middle:.2f} ({low:.2f}–{high:.2f})':>{width}}"
            for width, (middle, low, high) in zip((24, 20, 20, 20), times, strict=True)
        )
        print(f"{row['case']:46}{row['runs_per_layer']:>6}{cells}")
    if options.json is not None:
        options.json.write_text(json.dumps({"heads": str(heads), "cases": found}, indent=2))


if __name__ == "__main__":
    main()
