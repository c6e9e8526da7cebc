#!/usr/bin/env python3
"""Decoding of one stream at any context, beside the rate at which the device copies.

    decode.py MODEL [--weights f16 int8 int4] [--context 256 32768] [--tokens 64] [--repeat 3] [--device NAME]
              [--kv-dtype f16] [--kernels] [--json FILE] [--dtype BF16] [--layers N] [--folder DIRECTORY] [--keep]

MODEL is a folder, a GGUF file, `demo`, or a shape of tools/make_checkpoint.py, whose weights are random: no speed
depends on them. For each format and context one answer is generated behind a random prompt: windows of `--tokens`
tokens each, after some that don't count. GB/s are of what a step must read: weights, and the keys and values that the
token sees, in each layer as far as its window goes. The copy, in bytes read and written, is the faster of the
device's copy command and a kernel, measured in the same run. Medians with the lowest and the highest.
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
KERNEL_TOKENS = 16


async def measure(options: argparse.Namespace, path: str, weights: str, known: DeviceLimits) -> dict[str, Any]:
    """Open the model in one format, and decode at every context."""
    room = max(runs.decode_room(context, 1, options.tokens, options.repeat) for context in options.context)
    config = model_options.engine_config(options, weights, streams=1, context=room)
    limits, config = known.of(path, config)
    work, rng = model_options.read_work(path, config), Random(SEED)
    found = []
    async with runs.opened(path, config) as engine:
        print(model_options.heading(engine, options, weights), flush=True)
        for context in options.context:
            run = await runs.decode_run(
                engine, rng, work, streams=1, context=context, tokens=options.tokens, repeat=options.repeat
            )
            print(run.line(limits), flush=True)
            found.append(run)
        report = model_options.facts(engine, options, weights, work, limits) | {"decode": found}
    if options.kernels:

        async def decode_longest(engine: Engine) -> None:
            context = max(options.context)
            await runs.decode_windows(engine, rng, streams=1, context=context, tokens=KERNEL_TOKENS, repeat=1)

        report["kernel_times"] = await runs.measured_kernels(path, config, [1], decode_longest)
    return report


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Decoding of one stream, beside the fastest copy on the device.")
    model_options.add_model_options(parser)
    model_options.add_formats_option(parser)
    model_options.add_repeat_option(parser)
    model_options.add_kernels_option(parser)
    parser.add_argument("--context", type=count, nargs="+", default=[256], metavar="N", help="tokens (default 256)")
    parser.add_argument("--tokens", type=count, default=64, metavar="N", help="of a window (default 64)")
    options = model_options.parsed(parser)
    limits, reports = DeviceLimits(), []
    with model_options.model_path(options) as path:
        for weights in options.weights:
            reports.append(asyncio.run(measure(options, path, weights, limits)))
            model_options.write_reports(options, reports)


if __name__ == "__main__":
    run_script(main)
