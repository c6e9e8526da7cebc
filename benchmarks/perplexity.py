#!/usr/bin/env python3
"""Perplexity of models on a text, beside llama.cpp's: how sure a real model is of each token, in any format of weights.

    perplexity.py FILE [FILE ...] --text FILE [FILE ...] [--context 512] [--chunks 16] [--device DEVICE]
                  [--llama-perplexity "COMMAND {file} {text}"] [--json FILE]

The text's tokens are cut into chunks of `--context`, as llama-perplexity cuts them: each begins with the token that the
model has texts begin with in place of its first one, and the second half of each counts. The perplexity is e to the
mean of the tokens' negative logarithms of probability, with one standard error; a random model's is about the size of
its vocabulary. llama-perplexity, if a command is given that runs it, reads the same file and text with
`-c`, `--chunks`; the two read the text alike if they agree on how many tokens it has.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
import shlex
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from bench_device import DEVICE_HELP, check_fit, device_text
from command_line import LlamaCommand, out_file, run_script

from unicorn_async.cli.options import count
from unicorn_async.config import EngineConfig, SpeculationMode
from unicorn_async.engine.engine import Engine

TIMEOUT_S = 3600
ESTIMATE = re.compile(r"Final estimate: PPL = ([\d.]+) \+/- ([\d.]+)")
NUM_TOKENS = re.compile(r"calculating perplexity over (\d+) chunks")


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Of one file: the perplexity, one standard error of it, and over how many tokens."""

    perplexity: float
    error: float
    num_tokens: int


def costs(logits: np.ndarray, tokens: list[int]) -> np.ndarray:
    """Return the negative logarithms of the tokens' probabilities (nats); logits (tokens, vocabulary)."""
    largest = logits.max(axis=1)
    sums = np.log(np.exp(logits - largest[:, None]).sum(axis=1, dtype=np.float64)) + largest
    found: np.ndarray = sums - logits[np.arange(len(tokens)), tokens]
    return found


async def measure(file: str, options: argparse.Namespace) -> Perplexity:
    """Have the engine read the text."""
    context, half, found = options.context, options.context // 2, []
    async with Engine.open(file, config=options.config) as engine:
        print(f"{file}: {device_text(engine.device)}", flush=True)
        tokens = engine.tokenizer.encode(options.text_read)
        first = tokens[0]  # what the model's texts begin with, where they begin with anything
        for start in range(0, min(len(tokens) // context, options.chunks) * context, context):
            chunk = [first, *tokens[start + 1 : start + context]]
            logits = await engine.logits(chunk)
            found.append(costs(logits[half : context - 1], chunk[half + 1 :]))
    values = np.concatenate(found)
    mean = float(values.mean())
    return Perplexity(math.exp(mean), math.exp(mean) * float(values.std()) / math.sqrt(len(values)), len(values))


def peer(file: str, options: argparse.Namespace) -> Perplexity:
    """Have llama-perplexity read the same."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as text:
        text.write(options.text_read)
        text.flush()
        words = [word.replace("{text}", text.name).replace("{file}", file) for word in options.llama_perplexity.words]
        words += ["-c", str(options.context), "--chunks", str(options.chunks)]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    output = ended.stdout + ended.stderr
    estimate, chunks = ESTIMATE.search(output), NUM_TOKENS.search(output)
    if estimate is None or chunks is None:
        raise SystemExit(f"{shlex.join(words)}: {output[-500:]}")
    num_tokens = int(chunks[1]) * (options.context - options.context // 2 - 1)
    return Perplexity(float(estimate[1]), float(estimate[2]), num_tokens)


def run(options: argparse.Namespace) -> None:
    """Measure all files, and print."""
    reports = []
    for file in options.file:
        own = asyncio.run(measure(file, options))
        line = f"{Path(file).name}: {own.perplexity:.4f} +- {own.error:.4f} over {own.num_tokens} tokens"
        report: dict[str, object] = {"file": Path(file).name, "own": asdict(own)}
        if options.llama_perplexity is not None:
            other = peer(file, options)
            line += f"; llama.cpp {other.perplexity:.4f} +- {other.error:.4f} over {other.num_tokens} tokens"
            line += f": {own.perplexity / other.perplexity:.5f} times"
            report["llama.cpp"] = asdict(other)
        print(line, flush=True)
        reports.append(report)
    if options.json is not None:
        options.json.write_text(json.dumps({"context": options.context, "reports": reports}, indent=1))


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="+")
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--context", type=count, default=512, help="tokens of a chunk")
    parser.add_argument("--chunks", type=count, default=16, help="at most")
    parser.add_argument("--device", help=DEVICE_HELP)
    parser.add_argument("--llama-perplexity", type=LlamaCommand.parse, metavar="COMMAND")
    parser.add_argument("--json", type=out_file)
    options = parser.parse_args()
    options.text_read = "\n".join(path.read_text(encoding="utf-8") for path in options.text)
    options.config = EngineConfig(
        device=options.device, speculation=SpeculationMode.OFF, max_context=options.context + 16
    )
    for file in options.file:
        check_fit(parser, file, options.config)
    run(options)


if __name__ == "__main__":
    run_script(main)
