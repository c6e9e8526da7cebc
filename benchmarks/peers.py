#!/usr/bin/env python3
"""Prompt and decoding speed beside llama.cpp's, on the same GGUF file and device, in turns.

    peers.py FILE --llama DIRECTORY [--device NAME] [--prompt 512] [--tokens 64] [--streams 1 8 32 64] [--context 256]
             [--repeat 3] [--json FILE]

FILE is what both compute on (tools/make_gguf.py makes one); DIRECTORY has llama-bench and llama-batched-bench.
Each round runs both engines, in turn forwards and backwards, in processes of their own. One stream decodes after an
empty context, as llama-bench does it; several decode after prompts of `--context` tokens each, and the rate is their
sum. llama.cpp computes with flash attention and all layers on the device; GGML_VK_VISIBLE_DEVICES chooses it. Medians
of the rounds, with the lowest and the highest; ratios are medians of the rounds' own ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench_device import DEVICE_HELP, check_fit, device_text
from command_line import out_file, run_script

from unicorn_async.cli.bench_run import measure_decode, measure_prompt
from unicorn_async.cli.options import count
from unicorn_async.config import EngineConfig, SpeculationMode
from unicorn_async.engine.engine import Engine

WARM_UP = 3  # runs: the engine records a step of a new shape once for each of its frames
SPARE = 16  # tokens
TIMEOUT_S = 900
BATCHED_ROW = re.compile(r"^\|\s*\d+ \|\s*\d+ \|\s*(\d+) \|.*\|\s*([\d.]+) \|\s*[\d.]+ \|\s*[\d.]+ \|$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second of one round; `decode` by the number of streams."""

    prompt: float
    decode: dict[int, float]
    device: str
    note: str = ""


def engine_config(options: argparse.Namespace) -> EngineConfig:
    """Return a configuration with room for all that is measured."""
    return EngineConfig(
        device=options.device,
        max_num_seqs=max(options.streams),
        speculation=SpeculationMode.OFF,  # random prompts say nothing of what it gains
        max_mixed_step_s=None,  # all streams should decode soon, as with llama.cpp
        max_context=max(options.prompt, options.context) + options.tokens + SPARE,
    )


async def measure_ours(options: argparse.Namespace) -> Rates:
    """Measure this engine, in this process."""
    several, config = [streams for streams in options.streams if streams > 1], engine_config(options)
    rng = random.Random(0)
    async with Engine.open(options.file, config=config) as engine:
        await engine.cache_grown()
        for _ in range(WARM_UP):
            await measure_prompt(engine, rng, batch=1, num_tokens=options.prompt)
        prompt = await measure_prompt(engine, rng, batch=1, num_tokens=options.prompt)
        decode = {}
        for streams in options.streams:
            num_prompt = options.context if streams in several else 1
            for _ in range(2):  # the first of them records
                run = await measure_decode(engine, rng, batch=streams, num_tokens=options.tokens, num_prompt=num_prompt)
            decode[streams] = run.tokens_per_s
        device = device_text(engine.device)
        return Rates(prompt.tokens_per_s, decode, device, f"kernels: {', '.join(engine.kernels)}")


def run_ours(options: argparse.Namespace) -> Rates:
    """Run this script for one measurement of this engine."""
    command = [sys.executable, __file__, str(options.file), "--alone", f"--prompt={options.prompt}"]
    command += [f"--tokens={options.tokens}", f"--context={options.context}", "--streams", *map(str, options.streams)]
    command += [f"--device={options.device}"] * bool(options.device)
    found: dict[str, Any] = json.loads(run(command))
    return Rates(**{**found, "decode": {int(key): rate for key, rate in found["decode"].items()}})


def run_llama(options: argparse.Namespace) -> Rates:
    """Run llama.cpp's own benchmarks."""
    flags = ["-m", str(options.file), "-ngl", "99", "-fa", "on"]
    bench = [str(options.llama / "llama-bench"), *flags, "-p", str(options.prompt), "-n", str(options.tokens)]
    lines = [json.loads(line) for line in run([*bench, "-r", "1", "-o", "jsonl"]).splitlines() if line.startswith("{")]
    rates = {bool(line["n_gen"]): float(line["avg_ts"]) for line in lines}
    if len(rates) < 2:
        raise SystemExit(f"llama-bench: expected rates of prompts and of decoding, got {len(lines)} lines of results")
    if not all(line["gpu_info"] for line in lines):
        raise SystemExit("llama-bench found no GPU: GGML_VK_VISIBLE_DEVICES=0 has it take a software device")
    decode = {1: rates[True]} if 1 in options.streams else {}
    several = [streams for streams in options.streams if streams > 1]
    if several:
        size = max(several) * (options.context + options.tokens + SPARE)
        batched = [str(options.llama / "llama-batched-bench"), *flags, "-c", str(size), "-b", "2048", "-ub", "512"]
        batched += ["-npp", str(options.context), "-ntg", str(options.tokens)]
        counts = ",".join(map(str, several))
        output = run([*batched, "-npl", f"{counts},{counts}"])  # the first pass compiles shaders
        decode |= {int(streams): float(rate) for streams, rate in BATCHED_ROW.findall(output)}
        if missing := [streams for streams in several if streams not in decode]:
            raise SystemExit(f"llama-batched-bench printed no rate of {missing} streams, but:\n{output[-2000:]}")
    return Rates(rates[False], decode, lines[0]["gpu_info"], f"build {lines[0]['build_commit']}")


def run(command: list[str]) -> str:
    """Run a command; returns what it wrote, and ends with its errors if it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as exc:
        raise SystemExit(str(exc)) from None
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def spread(values: list[float]) -> str:
    """Median, lowest and highest."""
    digits = 0 if max(values) >= 100 else 1
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def table(options: argparse.Namespace, ours: list[Rates], theirs: list[Rates]) -> list[str]:
    """Return the report for people."""
    rows = [(f"prompt of {options.prompt}", [one.prompt for one in ours], [one.prompt for one in theirs])]
    for streams in options.streams:
        name = f"decode, {streams} stream" + (f"s, context {options.context}" if streams > 1 else "")
        rows.append((name, [one.decode[streams] for one in ours], [one.decode[streams] for one in theirs]))
    lines = [f"{'tok/s':32}{'ours':>30}{'llama.cpp':>30}{'ratio':>26}"]
    for name, mine, other in rows:
        ratios = [a / b for a, b in zip(mine, other, strict=True)]
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        lines.append(f"{name:32}{spread(mine):>30}{spread(other):>30}{ratio:>26}")
    return lines


def write(options: argparse.Namespace, ours: list[Rates], theirs: list[Rates]) -> None:
    """Write the rounds that there are so far, if a file is asked for."""
    if options.json:
        found = {"ours": [asdict(one) for one in ours], "llama.cpp": [asdict(one) for one in theirs]}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Speed beside llama.cpp's, on the same file and device.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--llama", type=Path, metavar="DIRECTORY", help="where llama-bench is")
    parser.add_argument("--device", help=DEVICE_HELP)
    parser.add_argument("--prompt", type=count, default=512, metavar="N")
    parser.add_argument("--tokens", type=count, default=64, metavar="N")
    parser.add_argument("--streams", type=count, nargs="+", default=[1, 8, 32, 64], metavar="N")
    parser.add_argument("--context", type=count, default=256, metavar="N")
    parser.add_argument("--repeat", type=count, default=3, metavar="N", help="rounds")
    parser.add_argument("--json", type=out_file, metavar="FILE")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(asdict(asyncio.run(measure_ours(options)))))
        return
    if options.llama is None:
        parser.error("--llama is needed")
    for program in ("llama-bench", *(["llama-batched-bench"] if max(options.streams) > 1 else [])):
        if not (options.llama / program).is_file():
            parser.error(f"--llama: {options.llama} has no {program}")
    if not options.file.is_file():
        parser.error(f"{options.file}: no such file")
    check_fit(parser, options.file, engine_config(options))
    ours: list[Rates] = []
    theirs: list[Rates] = []
    for number in range(options.repeat):
        turns = [lambda: ours.append(run_ours(options)), lambda: theirs.append(run_llama(options))]
        for turn in turns[:: -1 if number % 2 else 1]:
            turn()
        write(options, ours, theirs)
    print(f"{options.file.name}, {options.file.stat().st_size / 1e9:.2f} GB: {ours[0].device}; {ours[0].note}")
    print(f"llama.cpp {theirs[0].note}, on {theirs[0].device}")
    print("\n".join(table(options, ours, theirs)))


if __name__ == "__main__":
    run_script(main)
