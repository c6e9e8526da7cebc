#!/usr/bin/env python3
"""One model from disk to tokens, beside what the machine allows: load, prompt processing, decoding.

    model.py MODEL [--weights int4] [--batch 1 8 32 64] [--prompt 512] [--tokens 64] [--repeat 3] [--load-rounds 1]
             [--device NAME] [--json FILE] [--dtype BF16] [--layers N] [--folder DIRECTORY] [--keep]

MODEL is a folder, a GGUF file, or a shape of tools/make_checkpoint.py. Loads are measured by load.py, cold and warm,
against bare parallel reads of the same files. Streams decode behind prompts of 8 tokens; decode.py and batched.py
measure with a context, prefill.py prompts of other lengths. Medians, with the lowest and the highest of the repeats.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import model_options
import model_runs as runs
from amounts import whole
from bench_device import DeviceLimits
from prefill import line as prompt_line
from refusals import run_script

from unicorn_async.cli.bench_run import DECODE_PROMPT
from unicorn_async.cli.options import count
from unicorn_async.resources import demo_model_dir

LOAD = Path(__file__).parent / "load.py"
LOADS = "bare-buffered,bare-memory,engine"
SEED = 27


def measure_loads(path: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run load.py in a process of its own; returns what it wrote."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        model = str(demo_model_dir()) if path == "demo" else path
        command = [sys.executable, str(LOAD), model, "--methods", LOADS, "--json", report.name]
        command += ["--repeat", str(options.load_rounds), *([f"--device={options.device}"] if options.device else [])]
        if status := subprocess.run(command, check=False).returncode:
            raise SystemExit(status)  # it has said why
        found: dict[str, Any] = json.loads(Path(report.name).read_text())
    return found


async def measure(options: argparse.Namespace, path: str, weights: str, known: DeviceLimits) -> dict[str, Any]:
    """Open the model in one format; prompts of one sequence, and decoding at every batch size."""
    most = max(options.batch)
    room = runs.decode_room(DECODE_PROMPT, most, options.tokens, options.repeat)
    config = model_options.engine_config(options, weights, streams=most, context=max(room, options.prompt + 1))
    limits, config = known.of(path, config)
    work, rng = model_options.read_work(path, config), Random(SEED)
    async with runs.opened(path, config) as engine:
        print(model_options.heading(engine, options, weights), flush=True)
        prompt = await runs.prompt_run(engine, rng, work, tokens=options.prompt, repeat=options.repeat)
        print(prompt_line(prompt, limits), flush=True)
        decode = []
        for batch in options.batch:
            run = await runs.decode_run(
                engine, rng, work, streams=batch, context=DECODE_PROMPT, tokens=options.tokens, repeat=options.repeat
            )
            print(run.line(limits), flush=True)
            decode.append(run)
        return model_options.facts(engine, options, weights, work, limits) | {"prompt": [prompt], "decode": decode}


def main() -> None:
    """Make the model, measure, print."""
    parser = argparse.ArgumentParser(description="One model from disk to tokens, beside what the machine allows.")
    model_options.add_model_options(parser)
    model_options.add_formats_option(parser)
    model_options.add_repeat_option(parser)
    parser.add_argument("--batch", type=count, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--prompt", type=count, default=512)
    parser.add_argument("--tokens", type=count, default=64)
    parser.add_argument("--load-rounds", type=whole, default=1, help="0 = no loads")
    options = model_options.parsed(parser)
    with model_options.model_path(options) as path:
        loads = measure_loads(path, options) if options.load_rounds else {}
        limits, reports = DeviceLimits(), []
        for weights in options.weights:
            reports.append(asyncio.run(measure(options, path, weights, limits)) | {"loads": loads})
            model_options.write_reports(options, reports)


if __name__ == "__main__":
    run_script(main)
