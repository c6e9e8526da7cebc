#!/usr/bin/env python3
"""How long streams that decode wait for a token while a long prompt comes, with limits for such steps and without.

    smooth_decode.py MODEL [--limits 0 0.1] [--streams 4] [--prompt 2048] [--repeat 3] [--device NAME] [--weights int4]
                     [--kv-dtype f16] [--json FILE] [--dtype BF16] [--layers N] [--folder DIRECTORY] [--keep]

Streams decode; then a prompt comes, and is answered with one token. Counted are the gaps between a stream's tokens from
the prompt's arrival to its token, and how long that took. Limits are seconds (`EngineConfig.max_mixed_step_s`), 0 is
none. Each round opens the model once for each limit, in turn forwards and backwards; in each opening the prompt comes
several times, of which the first ones, which record commands, do not count. Medians over the rounds of the longest gap,
with the lowest and the highest; the last column is the prompt's time while nobody decodes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import statistics
import time
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

import model_options
import model_runs as runs
from amounts import amount
from refusals import run_script

from unicorn_async.cli.bench_run import measure_prompt
from unicorn_async.cli.options import count
from unicorn_async.config import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unicorn_async.engine.engine import Engine

SEED = 27
WARM_UP = 2  # prompts
DECODE_PROMPT = 8
SPARE = 64


@dataclass(frozen=True, slots=True)
class Arrival:
    """What the streams and the prompt took; seconds."""

    longest_gap_s: float
    median_gap_s: float
    usual_gap_s: float  # before the prompt came
    prompt_s: float
    bounded_steps: int


async def arrival(engine: Engine, rng: Random, *, streams: int, prompt: int) -> Arrival:
    """Let streams decode, and a prompt come."""
    size = engine.model_spec.vocab_size
    room = engine.max_context - DECODE_PROMPT
    times: list[list[float]] = [[] for _ in range(streams)]
    all_run = asyncio.Event()

    async def decode(index: int) -> None:
        ids = [rng.randrange(size) for _ in range(DECODE_PROMPT)]
        stream = engine.stream(ids, SamplingParams(max_tokens=room, ignore_eos=True))
        async with contextlib.aclosing(stream):
            async for _ in stream:
                times[index].append(time.perf_counter())
                if all(len(moments) >= DECODE_PROMPT for moments in times):
                    all_run.set()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(decode(index)) for index in range(streams)]
        await all_run.wait()
        before = engine.stats().bounded_steps
        run = await measure_prompt(engine, rng, batch=1, num_tokens=prompt)
        stop = time.perf_counter()
        for task in tasks:
            task.cancel()
    during, usual = gaps(times, stop - run.token_s)
    bounded = engine.stats().bounded_steps - before
    return Arrival(max(during), statistics.median(during), statistics.median(usual), run.token_s, bounded)


def gaps(times: Iterable[Sequence[float]], start: float) -> tuple[list[float], list[float]]:
    """Return the gaps between each stream's tokens: those that end after `start`, and those that end before."""
    found = [(b, b - a) for moments in times for a, b in itertools.pairwise(moments)]
    return [gap for end, gap in found if start < end], [gap for end, gap in found if end <= start]


async def measure(options: argparse.Namespace, path: str, limit_s: float, *, is_first: bool) -> dict[str, Any]:
    """Open the model with a limit; let prompts come while streams decode, and while none does."""
    weights = options.weights
    room = max(options.prompt + SPARE, DECODE_PROMPT + options.prompt)
    config = model_options.engine_config(options, weights, streams=options.streams + 1, context=room)
    config = replace(config, max_mixed_step_s=limit_s or None)
    rng = Random(SEED)
    async with runs.opened(path, config) as engine:
        if is_first:
            print(model_options.heading(engine, options, weights), flush=True)
        found = [
            await arrival(engine, rng, streams=options.streams, prompt=options.prompt)
            for _ in range(WARM_UP + options.repeat)
        ]
        alone = [await measure_prompt(engine, rng, batch=1, num_tokens=options.prompt) for _ in range(WARM_UP + 1)]
        facts = model_options.facts(engine, options, weights, model_options.read_work(path, config))
    return facts | {"limit_s": limit_s, "arrivals": found[WARM_UP:], "alone_s": alone[-1].token_s}


def lines(limit_s: float, rounds: list[dict[str, Any]]) -> str:
    """Return one limit's row."""
    arrivals: list[Arrival] = [one for found in rounds for one in found["arrivals"]]
    longest = runs.Spread.of([1e3 * one.longest_gap_s for one in arrivals])
    prompt = runs.Spread.of([one.prompt_s for one in arrivals])
    median = statistics.median(1e3 * one.median_gap_s for one in arrivals)
    usual = statistics.median(1e3 * one.usual_gap_s for one in arrivals)
    alone = statistics.median(found["alone_s"] for found in rounds)
    name = f"{limit_s:g} s" if limit_s else "no limit"
    return (
        f"{name:>9}: longest gap {longest} ms, median gap {median:,.1f} ms (before the prompt {usual:,.1f});"
        f" prompt {prompt.median:.2f} s ({prompt.lowest:.2f} to {prompt.highest:.2f}), alone {alone:.2f} s"
    )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="How long streams wait for a token while a long prompt comes.")
    model_options.add_model_options(parser)
    model_options.add_format_option(parser)
    model_options.add_repeat_option(parser)
    parser.add_argument("--limits", type=amount, nargs="+", default=[0.0, 0.1], metavar="SECONDS", help="0 = none")
    parser.add_argument("--streams", type=count, default=4, metavar="N", help="that decode (default 4)")
    parser.add_argument("--prompt", type=count, default=2048, metavar="N", help="tokens (default 2048)")
    parser.add_argument("--rounds", type=count, default=2, metavar="N")
    options = model_options.parsed(parser)
    found: list[dict[str, Any]] = []
    with model_options.model_path(options) as path:
        for number in range(options.rounds):
            for limit_s in options.limits[:: -1 if number % 2 else 1]:
                found.append(asyncio.run(measure(options, path, limit_s, is_first=not found)))
                model_options.write_reports(options, found)
    for limit_s in options.limits:
        print(lines(limit_s, [report for report in found if report["limit_s"] == limit_s]))


if __name__ == "__main__":
    run_script(main)
