#!/usr/bin/env python3
"""Decoding of many streams at once: tokens per second in sum, by their number.

    batched.py MODEL [--weights int4] [--streams 1 8 32 64] [--context 256] [--tokens 32] [--repeat 3] [--device NAME]
               [--kv-dtype f16] [--kernels] [--json FILE] [--dtype BF16] [--layers N] [--folder DIRECTORY] [--keep]

MODEL is a folder, a GGUF file, `demo`, or a shape of tools/make_checkpoint.py. Each stream decodes behind a random
prompt of `--context` tokens of its own; counted are windows of `--tokens` steps in which all of them decode. The last
stream's context is the one that is printed: those before it are longer by as many tokens as its prompt's steps took.
GB/s are of what a step must read, weights and all streams' keys and values, beside the device's fastest copy in the
same run. roofline.py and plot.py read the file of --json. Medians with the lowest and the highest.
"""

from __future__ import annotations

import argparse
import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

import model_options
import model_runs as runs
from bench_device import DeviceLimits
from refusals import run_script

from unicorn_async.cli.options import count

if TYPE_CHECKING:
    from unicorn_async.engine.engine import Engine

SEED = 27
KERNEL_TOKENS = 8


async def measure(options: argparse.Namespace, path: str, weights: str, known: DeviceLimits) -> dict[str, Any]:
    """Open the model in one format, and decode with every number of streams."""
    most = max(options.streams)
    room = runs.decode_room(options.context, most, options.tokens, options.repeat)
    config = model_options.engine_config(options, weights, streams=most, context=room)
    limits, config = known.of(path, config)
    work, rng = model_options.read_work(path, config), Random(SEED)
    found = []
    async with runs.opened(path, config) as engine:
        print(model_options.heading(engine, options, weights), flush=True)
        for streams in options.streams:
            run = await runs.decode_run(
                engine,
                rng,
                work,
                streams=streams,
                context=options.context,
                tokens=options.tokens,
                repeat=options.repeat,
            )
            print(run.line(limits), flush=True)
            found.append(run)
        report = model_options.facts(engine, options, weights, work, limits) | {"decode": found}
    if options.kernels:

        async def decode_all(engine: Engine) -> None:
            for streams in options.streams:
                await runs.decode_windows(
                    engine, rng, streams=streams, context=options.context, tokens=KERNEL_TOKENS, repeat=1
                )

        report["kernel_times"] = await runs.measured_kernels(path, config, options.streams, decode_all)
    return report


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Decoding of many streams at once.")
    model_options.add_model_options(parser)
    model_options.add_formats_option(parser)
    model_options.add_repeat_option(parser)
    model_options.add_kernels_option(parser)
    parser.add_argument("--streams", type=count, nargs="+", default=[1, 8, 32, 64], metavar="N")
    parser.add_argument("--context", type=count, default=256, metavar="N", help="tokens of each prompt (default 256)")
    parser.add_argument("--tokens", type=count, default=32, metavar="N", help="steps of a window (default 32)")
    options = model_options.parsed(parser)
    limits, reports = DeviceLimits(), []
    with model_options.model_path(options) as path:
        for weights in options.weights:
            reports.append(asyncio.run(measure(options, path, weights, limits)))
            model_options.write_reports(options, reports)


if __name__ == "__main__":
    run_script(main)
