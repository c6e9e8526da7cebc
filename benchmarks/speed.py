#!/usr/bin/env python3
"""How fast a model answers: tokens a second of decoding and of prompts, and what a long prompt does to answers.

    speed.py decode MODEL [--streams 1 8 32 64] [--context 256 32768] [--tokens 64] [--weights f16 int8 int4]
    speed.py prompt MODEL [--prompt 512 2048] [--batched-tokens 512] [--weights f16 int4]
    speed.py smooth MODEL [--limits 0 0.1] [--streams 4] [--prompt 2048] [--rounds 2] [--weights int4]

    each with [--repeat N] [--device NAME] [--kv-dtype f16] [--json FILE] [--dtype BF16] [--layers N]
    [--folder DIRECTORY] [--keep], the first two with [--kernels]

MODEL is a folder, a GGUF file, `demo`, or a shape of tools/make_checkpoint.py, whose weights are random: no speed
depends on them. Medians with the lowest and the highest.

decode: so many streams at once, each behind a random prompt of `--context` tokens of its own. Counted are windows of
`--tokens` steps in which all of them decode, after some that don't count. The last stream's context is the one that is
printed: those before it are longer by as many tokens as its prompt's steps took. GB/s are of what a step must read,
weights and all streams' keys and values, in each layer as far as its window goes, and of states of fixed size, which it
reads and writes. Of a mixture's experts those count that its tokens choose, if they choose as if they drew: of E, of
which each of t tokens takes k, a share of 1 - (1 - k/E)^t. The copy, in bytes read and written, is the faster of the
device's copy command and a kernel, measured in the same run. report.py reads the file of --json.

prompt: random prompts of one sequence, timed from the request to the first token; a prompt longer than
`--batched-tokens` takes several steps. TFLOP/s are of the matrices: those of the layers that a token passes, its own
experts among them, the output head for one token, attention and states not counted. The limits are those that `unicorn
bench --kernels` prints, measured in the same run: matrix units of the extension that the kernels use, fed from
registers, or single-precision lanes where there are none.

smooth: streams decode; then a prompt comes, and is answered with one token. Counted are the gaps between a stream's
tokens from the prompt's arrival to its token, and how long that took. Limits are seconds (`EngineConfig`'s
max_mixed_step_s), 0 is none. Each round opens the model once for each limit, in turn forwards and backwards; in each
opening the prompt comes several times, of which the first ones, which record commands, do not count. The figures are of
the longest gaps of all rounds; the last column is the prompt's time while nobody decodes.
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

import bench_model
import model_runs as runs
from bench_device import DeviceLimits
from command_line import add_part, amount, run_part, run_script

from unicorn_async.cli.bench_run import measure_prompt
from unicorn_async.cli.options import count
from unicorn_async.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from unicorn_async.cli.bench_limits import Limits
    from unicorn_async.engine.engine import Engine

SEED = 27
KERNEL_TOKENS = 16  # steps that are timed kernel by kernel
SPARE = 16  # tokens
SMOOTH_WARM_UP = 2  # prompts
SMOOTH_PROMPT = 8  # tokens of the streams' own prompts
SMOOTH_SPARE = 64


async def measure_decoding(options: argparse.Namespace, path: str, weights: str, known: DeviceLimits) -> dict[str, Any]:
    """Open the model in one format, and decode with every number of streams at every context."""
    most, longest = max(options.streams), max(options.context)
    cases = list(itertools.product(options.streams, options.context))
    room = max(runs.decode_room(context, streams, options.tokens, options.repeat) for streams, context in cases)
    config = bench_model.engine_config(options, weights, streams=most, context=room)
    limits, config = known.of(path, config)
    work, rng = bench_model.read_work(path, config), Random(SEED)
    found = []
    async with runs.opened(path, config) as engine:
        print(bench_model.heading(engine, options, weights), flush=True)
        for streams, context in cases:
            run = await runs.decode_run(
                engine, rng, work, streams=streams, context=context, tokens=options.tokens, repeat=options.repeat
            )
            print(run.line(limits), flush=True)
            found.append(run)
        report = bench_model.facts(engine, options, weights, work, limits) | {"decode": found}
    if options.kernels:

        async def decode_all(engine: Engine) -> None:
            for streams in options.streams:
                await runs.decode_windows(engine, rng, streams=streams, context=longest, tokens=KERNEL_TOKENS, repeat=1)

        report["kernel_times"] = await runs.measured_kernels(path, config, options.streams, decode_all)
    return report


def prompt_line(run: runs.PromptRun, limits: Limits) -> str:
    """Return a run for people."""
    units = "matrix units" if limits.matrix_flops_per_s else "f32"
    ceiling = limits.matrix_flops_per_s or limits.fma_flops_per_s
    share = f"{run.flops_per_s / 1e12:,.3g} TFLOP/s = {run.flops_per_s / ceiling:.0%} of {units}"
    if limits.shared_flops_per_s:
        share += f", {run.flops_per_s / limits.shared_flops_per_s:.0%} of the same fed from shared memory"
    return f"prompt of {run.tokens:,}: {run.tokens_per_s} tok/s, {share}"


async def measure_prompts(options: argparse.Namespace, path: str, weights: str, known: DeviceLimits) -> dict[str, Any]:
    """Open the model in one format, and process prompts of every length."""
    config = replace(
        bench_model.engine_config(options, weights, streams=1, context=max(options.prompt) + SPARE),
        max_num_batched_tokens=options.batched_tokens,
    )
    limits, config = known.of(path, config)
    work, rng = bench_model.read_work(path, config), Random(SEED)
    found = []
    async with runs.opened(path, config) as engine:
        print(bench_model.heading(engine, options, weights), flush=True)
        for tokens in options.prompt:
            run = await runs.prompt_run(engine, rng, work, tokens=tokens, repeat=options.repeat)
            print(prompt_line(run, limits), flush=True)
            found.append(run)
        report = bench_model.facts(engine, options, weights, work, limits) | {"prompt": found}
    if options.kernels:

        async def process(engine: Engine) -> None:
            for tokens in options.prompt:
                await measure_prompt(engine, rng, batch=1, num_tokens=tokens)

        report["kernel_times"] = await runs.measured_kernels(path, config, options.prompt, process)
    return report


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
    room = engine.max_context - SMOOTH_PROMPT
    times: list[list[float]] = [[] for _ in range(streams)]
    all_run = asyncio.Event()

    async def decode(index: int) -> None:
        ids = [rng.randrange(size) for _ in range(SMOOTH_PROMPT)]
        stream = engine.stream(ids, SamplingParams(max_tokens=room, ignore_eos=True))
        async with contextlib.aclosing(stream):
            async for _ in stream:
                times[index].append(time.perf_counter())
                if all(len(moments) >= SMOOTH_PROMPT for moments in times):
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


async def measure_arrivals(options: argparse.Namespace, path: str, limit_s: float, *, is_first: bool) -> dict[str, Any]:
    """Open the model with a limit; let prompts come while streams decode, and while none does."""
    weights = options.weights
    room = max(options.prompt + SMOOTH_SPARE, SMOOTH_PROMPT + options.prompt)
    config = bench_model.engine_config(options, weights, streams=options.streams + 1, context=room)
    config = replace(config, max_mixed_step_s=limit_s or None)
    rng = Random(SEED)
    async with runs.opened(path, config) as engine:
        if is_first:
            print(bench_model.heading(engine, options, weights), flush=True)
        number = SMOOTH_WARM_UP + options.repeat
        found = [await arrival(engine, rng, streams=options.streams, prompt=options.prompt) for _ in range(number)]
        for _ in range(SMOOTH_WARM_UP + 1):
            alone = await measure_prompt(engine, rng, batch=1, num_tokens=options.prompt)
        facts = bench_model.facts(engine, options, weights, bench_model.read_work(path, config))
    return facts | {"limit_s": limit_s, "arrivals": found[SMOOTH_WARM_UP:], "alone_s": alone.token_s}


def smooth_line(limit_s: float, rounds: list[dict[str, Any]]) -> str:
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


def run_formats(measure: Callable[..., Awaitable[dict[str, Any]]]) -> Callable[..., None]:
    """Return a part of this script: one report for each format."""

    def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
        async def report(path: str, weights: str) -> dict[str, Any]:
            return await measure(options, path, weights, limits)

        bench_model.check_model(options, parser)
        limits, reports = DeviceLimits(), []
        with bench_model.model_path(options) as path:
            for weights in options.weights:
                reports.append(asyncio.run(report(path, weights)))
                bench_model.write_reports(options, reports)

    return run


def run_smooth(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Measure rounds of all limits."""
    bench_model.check_model(options, parser)
    found: list[dict[str, Any]] = []
    with bench_model.model_path(options) as path:
        for number in range(options.rounds):
            for limit_s in options.limits[:: -1 if number % 2 else 1]:
                found.append(asyncio.run(measure_arrivals(options, path, limit_s, is_first=not found)))
                bench_model.write_reports(options, found)
    for limit_s in options.limits:
        print(smooth_line(limit_s, [report for report in found if report["limit_s"] == limit_s]))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="How fast a model answers.")
    parts = parser.add_subparsers(required=True, metavar="decode, prompt or smooth")

    decode = add_part(parts, "decode", run_formats(measure_decoding), "Decoding, beside the device's fastest copy.")
    decode.add_argument("--streams", type=count, nargs="+", default=[1], metavar="N", help="at once (default 1)")
    decode.add_argument("--context", type=count, nargs="+", default=[256], metavar="N", help="tokens (default 256)")
    decode.add_argument("--tokens", type=count, default=64, metavar="N", help="steps of a window (default 64)")

    prompt = add_part(parts, "prompt", run_formats(measure_prompts), "Prompts, beside what the device's units can do.")
    prompt.add_argument("--prompt", type=count, nargs="+", default=[512], metavar="N", help="tokens (default 512)")
    prompt.add_argument("--batched-tokens", type=count, default=512, metavar="N", help="of one step (default 512)")

    smooth = add_part(parts, "smooth", run_smooth, "How long streams wait for a token while a long prompt comes.")
    smooth.add_argument("--limits", type=amount, nargs="+", default=[0.0, 0.1], metavar="SECONDS", help="0 = none")
    smooth.add_argument("--streams", type=count, default=4, metavar="N", help="that decode (default 4)")
    smooth.add_argument("--prompt", type=count, default=2048, metavar="N", help="tokens (default 2048)")
    smooth.add_argument("--rounds", type=count, default=2, metavar="N")

    for part, repeat in ((decode, 3), (prompt, 5), (smooth, 3)):
        bench_model.add_model_options(part)
        bench_model.add_repeat_option(part, repeat)
    for part in (decode, prompt):
        bench_model.add_formats_option(part)
        bench_model.add_kernels_option(part)
    bench_model.add_format_option(smooth)
    run_part(parser)


if __name__ == "__main__":
    run_script(main)
