#!/usr/bin/env python3
"""Attention on a second device: what it costs, and what two halves that alternate bring back.

    interleave.py MODEL [--device NAME] [--attention vulkan:NAME] [--weights int4] [--streams 1 8 32] [--context 256]
                  [--tokens 32] [--repeat 5] [--json FILE]

MODEL is a directory, a GGUF file or `demo`. Four engines are open at once and measured in turns: attention on the
device that runs the model; on the other one with whole steps; on the other one with halves that alternate; the same
with an exchange that the host copies, where the others share memory if they can. Without
--attention the other one is a second logical device of the same GPU: then both share its cores, nothing can be gained,
and what is measured is the cost of the hand-over. Rates are medians with the lowest and the highest; the overlap is the
share of the attention's time in which the other device worked as well, and bubbles are the share of the steps' time in
which the model's device waited, both as the host saw it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fit import check_fit
from out_file import out_file

from unicorn_async.cli.bench_run import measure_prompt
from unicorn_async.cli.options import attention_target, count
from unicorn_async.config import (
    AttentionKind,
    AttentionTarget,
    EngineConfig,
    ExchangeKind,
    SamplingParams,
    SplitMode,
    WeightScheme,
)
from unicorn_async.engine.engine import Engine
from unicorn_async.errors import UnicornError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from unicorn_async.engine.types import Token
    from unicorn_async.hybrid.report import AttentionStats

SEED = 5
WARM_UP = 2  # runs: the engine records a step of a new shape once for each of its frames
WAYS = ("gpu", "whole", "halves", "copied")


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


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description="Attention on a second device, whole steps and alternating halves.")
    parser.add_argument("model")
    parser.add_argument("--device", help="index or part of the name (default: 0)")
    parser.add_argument(
        "--attention", type=attention_target, help="vulkan:NAME (default: a second logical device of the same GPU)"
    )
    parser.add_argument("--weights", choices=[scheme.value for scheme in WeightScheme], default="auto")
    parser.add_argument("--streams", type=count, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=count, default=512)
    parser.add_argument("--context", type=count, default=256, help="tokens of each prompt before decoding")
    parser.add_argument("--tokens", type=count, default=32)
    parser.add_argument("--repeat", type=count, default=5)
    parser.add_argument("--json", type=out_file, metavar="FILE")
    options = parser.parse_args()
    if options.attention and options.attention.kind is not AttentionKind.VULKAN:
        parser.error(f"--attention: expected vulkan:NAME, got {options.attention}")
    try:
        check_fit(parser, options.model, *ways(options, options.device or "0").values())
        found = asyncio.run(measure(options))
    except UnicornError as exc:
        print(f"interleave.py: {exc}", file=sys.stderr)
        raise SystemExit(1) from None
    kind = "SOFTWARE device" if found["software"] else "GPU"
    attention = found["attention"]
    print(
        f"{found['model']}, weights {found['weights']}: {found['device']}, {found['driver']}, {kind}, {os.cpu_count()}"
        f" cores; attention on {attention['device']}, {attention['exchange']} memory"
    )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
