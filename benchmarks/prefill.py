#!/usr/bin/env python3
"""Prompt processing: tokens and operations per second, beside what the device's units can do.

    prefill.py MODEL [--weights f16 int4] [--prompt 512] [--batched-tokens 512] [--repeat 5] [--device NAME]
               [--kv-dtype f16] [--kernels] [--json FILE] [--dtype BF16] [--layers N] [--folder DIRECTORY] [--keep]

MODEL is a folder, a GGUF file, `demo`, or a shape of tools/make_checkpoint.py. Random prompts of one sequence, timed
from the request to the first token; a prompt longer than `--batched-tokens` takes several steps. TFLOP/s are of the
matrices: those of the layers for every token, the output head for one, attention not counted. The limits are those that
`unicorn bench --kernels` prints, measured in the same run: matrix units of the extension that the kernels use, fed from
registers, or single-precision lanes where there are none. Medians with the lowest and the highest.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import model_options
import model_runs as runs
from bench_device import DeviceLimits
from refusals import run_script

from unicorn_async.cli.bench_run import measure_prompt
from unicorn_async.cli.options import count

if TYPE_CHECKING:
    from unicorn_async.cli.bench_limits import Limits
    from unicorn_async.engine.engine import Engine

SEED = 27
SPARE = 16  # tokens


def line(run: runs.PromptRun, limits: Limits) -> str:
    """Return a run for people."""
    units = "matrix units" if limits.matrix_flops_per_s else "f32"
    ceiling = limits.matrix_flops_per_s or limits.fma_flops_per_s
    share = f"{run.flops_per_s / 1e12:,.3g} TFLOP/s = {run.flops_per_s / ceiling:.0%} of {units}"
    if limits.shared_flops_per_s:
        share += f", {run.flops_per_s / limits.shared_flops_per_s:.0%} of the same fed from shared memory"
    return f"prompt of {run.tokens:,}: {run.tokens_per_s} tok/s, {share}"


async def measure(options: argparse.Namespace, path: str, weights: str, known: DeviceLimits) -> dict[str, Any]:
    """Open the model in one format, and process prompts of every length."""
    config = replace(
        model_options.engine_config(options, weights, streams=1, context=max(options.prompt) + SPARE),
        max_num_batched_tokens=options.batched_tokens,
    )
    limits, config = known.of(path, config)
    work, rng = model_options.read_work(path, config), Random(SEED)
    found = []
    async with runs.opened(path, config) as engine:
        print(model_options.heading(engine, options, weights), flush=True)
        for tokens in options.prompt:
            run = await runs.prompt_run(engine, rng, work, tokens=tokens, repeat=options.repeat)
            print(line(run, limits), flush=True)
            found.append(run)
        report = model_options.facts(engine, options, weights, work, limits) | {"prompt": found}
    if options.kernels:

        async def process(engine: Engine) -> None:
            for tokens in options.prompt:
                await measure_prompt(engine, rng, batch=1, num_tokens=tokens)

        report["kernel_times"] = await runs.measured_kernels(path, config, options.prompt, process)
    return report


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Prompt processing, beside what the device's units can do.")
    model_options.add_model_options(parser)
    model_options.add_formats_option(parser)
    model_options.add_repeat_option(parser, default=5)
    model_options.add_kernels_option(parser)
    parser.add_argument("--prompt", type=count, nargs="+", default=[512], metavar="N", help="tokens (default 512)")
    parser.add_argument("--batched-tokens", type=count, default=512, metavar="N", help="of one step (default 512)")
    options = model_options.parsed(parser)
    limits, reports = DeviceLimits(), []
    with model_options.model_path(options) as path:
        for weights in options.weights:
            reports.append(asyncio.run(measure(options, path, weights, limits)))
            model_options.write_reports(options, reports)


if __name__ == "__main__":
    run_script(main)
