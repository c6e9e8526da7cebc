#!/usr/bin/env python3
"""What each format of weights costs the bundled demo model, on held-out conversations of its own world.

    quality.py [--formats bf16 int4 gguf-Q4_K ...] [--questions 256] [--greedy 600] [--device NAME] [--json FILE]

For each format: the relative error of its weights (root of the mean square, against float64, of all matrices together
and of the worst one), the perplexity of the right answers' tokens and of the whole text (whose user's turns the model
was never trained to predict), how far all tokens' distributions are from those of the BF16 weights as they were trained
(Kullback-Leibler, and how often the likeliest token is the same), and, for the first `--greedy` questions, how many
greedy answers are the same to the last token as F16's, and how many are answers that this world accepts.

The formats: bf16, f16 and f32 are directories; int8, int4 and nf4 are made from BF16 while it is loaded; kv-f32 and
kv-int8 are BF16 beside a KV cache of this type, which is F16 in all others; gguf-TYPE are files whose matrices are of
one type, but for embeddings of Q6_K beside those of 4 and 5 bits, as llama.cpp has it. Q4_K, Q5_K, Q6_K and IQ4_NL are
encoded by tests/loader/gguf/encoders.py, by plain least squares, the others by the PyPI package gguf, which this needs.
The tests' folder must be beside this one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from amounts import whole

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.engine.held_out import greedy, likelihood, num_equal, num_right, questions
from tests.loader.gguf.demo_file import (
    DEMO_MODEL,
    EMBEDDINGS,
    demo_weights,
    table_kind,
    write_demo_directory,
    write_demo_gguf,
)
from tests.loader.gguf.encoders import decoded, encoded
from tests.ops.arrays import Arrays
from tests.ops.quant_arrays import quantized, read_back
from unicorn_async.cli.options import count
from unicorn_async.config import EngineConfig, KVDType, WeightScheme
from unicorn_async.engine.engine import Engine
from unicorn_async.errors import UnicornError
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.device_info import select_device
from unicorn_async.gpu.instance import Instance
from unicorn_async.resources import resource_dir
from unicorn_async.tensor import QuantFormat
from unicorn_async.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from tests.engine.held_out import Likelihood, Question

GGUF = "gguf-"
BLOCKS = ("Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0", "IQ4_NL")
SCHEMES = {"int8": WeightScheme.INT8, "int4": WeightScheme.INT4, "nf4": WeightScheme.NF4}
CACHES = {"kv-f32": KVDType.F32, "kv-int8": KVDType.INT8}
TABLES = {"int4": "int8", "nf4": "int8"}
REFERENCE, COMPARED = "bf16", "f16"  # of the distributions, of the greedy answers
FORMATS = (REFERENCE, COMPARED, "f32", *CACHES, *SCHEMES, f"{GGUF}F32", f"{GGUF}F16", *(GGUF + kind for kind in BLOCKS))
CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class WeightError:
    """Root of the mean squared error over that of the weights; `largest` is an error in its matrix's deviations."""

    relative: float
    worst_matrix: float
    largest: float


@dataclass(frozen=True, slots=True)
class Quality:
    """What a format does; `divergence` is in nats a token, `agreement` a share of the tokens."""

    name: str
    weights: WeightError
    perplexity: float
    text_perplexity: float
    divergence: float
    agreement: float
    same: int
    right: int
    seconds: float


def location(name: str, folder: Path) -> Path:
    """Write the model in a format, unless it is the bundled one, and return where it is."""
    if name.startswith(GGUF):
        return write_demo_gguf(folder / f"{name}.gguf", name.removeprefix(GGUF))
    return write_demo_directory(folder / name, name.upper()) if name in ("f16", "f32") else DEMO_MODEL


def stored(name: str, values: NDArray[np.float32], *, is_table: bool, arrays: Arrays) -> NDArray[np.float32]:
    """Return what a matrix is worth in a format: blocks as their file's reader says, others as the device made them."""
    if name in SCHEMES:
        kind = TABLES.get(name, name) if is_table else name
        return read_back(arrays, quantized(arrays, values, QuantFormat(kind)))
    if name == REFERENCE or name in CACHES:
        return values
    kind = name.removeprefix(GGUF)
    if kind in BLOCKS:
        return decoded(encoded(table_kind(kind) if is_table else kind, values))
    return values.astype(np.float16).astype(np.float32)


def weight_errors(names: Sequence[str], device_name: str | None) -> dict[str, WeightError]:
    """Return every format's error over the demo model's matrices."""
    matrices = {name: weight for name, weight in demo_weights() if weight.ndim == 2}
    result = {}
    with Instance.create() as instance:
        info = select_device(instance.devices(), device_name, allow_software=True)
        with Device.open(instance, info, cache_dir=None, shader_dir=resource_dir("shaders")) as device:
            for name in names:
                squares, largest = [], 0.0
                for tensor, values in matrices.items():
                    arrays = Arrays(device)
                    exact = values.astype(np.float64)
                    difference = stored(name, values, is_table=tensor == EMBEDDINGS, arrays=arrays) - exact
                    arrays.close()
                    squares.append((float((difference**2).sum()), float((exact**2).sum())))
                    largest = max(largest, float(np.abs(difference).max() / exact.std()))
                errors, norms = zip(*squares, strict=True)
                worst = max(error / norm for error, norm in squares) ** 0.5
                result[name] = WeightError((sum(errors) / sum(norms)) ** 0.5, worst, largest)
    return result


@dataclass(frozen=True, slots=True)
class Run:
    """What one format gave for all questions."""

    likelihood: Likelihood
    answers: list[tuple[int, ...]]
    seconds: float


async def run_format(name: str, model: Path, asked: Sequence[Question], options: argparse.Namespace) -> Run:
    """Load the model in a format and ask everything."""
    config = EngineConfig(
        device=options.device,
        allow_software=True,
        weights=SCHEMES.get(name, WeightScheme.AUTO),
        kv_dtype=CACHES.get(name, KVDType.F16),
        max_context=CONTEXT,
        max_waiting=max(options.questions, options.greedy, 1),
    )
    async with Engine.open(model, config=config) as engine:
        await engine.loaded()
        started = time.monotonic()
        scored = await likelihood(engine, asked[: options.questions])
        answers = await greedy(engine, asked[: options.greedy])
        if options.described is None:
            info = engine.device
            kind = "SOFTWARE device" if info.is_software else "GPU"
            options.described = f"{info.name}, {info.driver_name} {info.driver_info}, {kind}"
    return Run(scored, answers, time.monotonic() - started)


def line(found: Quality, num_greedy: int) -> str:
    """Return a row of the table."""
    greedy_text = f"{found.same:5} {found.right:6}" if num_greedy else "    -      -"
    weights = found.weights
    return (
        f"{found.name:12} {weights.relative:9.3%} {weights.worst_matrix:9.3%} {weights.largest:8.4f} "
        f"{found.perplexity:10.6f} {found.text_perplexity:9.3f} {found.divergence:10.2e} "
        f"{found.agreement:8.2%} {greedy_text} {found.seconds:6.0f}"
    )


def measure(options: argparse.Namespace) -> list[Quality]:
    """Run every format, the two that others are compared with first, and print the rows as they come."""
    names = list(dict.fromkeys([REFERENCE, COMPARED, *options.formats]))
    errors = weight_errors(names, options.device)
    tokenizer = Tokenizer.load(DEMO_MODEL)
    asked = questions(tokenizer, max(options.questions, options.greedy))
    runs: dict[str, Run] = {}
    table = []
    print(f"{options.questions} questions for the likelihoods, {options.greedy} for the greedy answers")
    print(
        f"{'format':12} {'weights':>9} {'worst':>9} {'largest':>8} {'perplexity':>10} {'of text':>9} "
        f"{'KL':>10} {'top-1':>8} {'same':>5} {'right':>6} {'s':>6}"
    )
    with tempfile.TemporaryDirectory(prefix="unicorn-quality-") as folder:
        for name in names:
            run = asyncio.run(run_format(name, location(name, Path(folder)), asked, options))
            runs.setdefault(name, run)
            done = {row.name for row in table}
            for ready in [each for each in runs if COMPARED in runs and each not in done]:
                right = num_right(runs[ready].answers, asked[: options.greedy], tokenizer)
                table.append(_quality(ready, runs, errors[ready], right))
                print(line(table[-1], options.greedy), flush=True)
            if name not in (REFERENCE, COMPARED):
                del runs[name]
    print(options.described)
    return table


def _quality(name: str, runs: Mapping[str, Run], weights: WeightError, right: int) -> Quality:
    run, reference = runs[name], runs[REFERENCE].likelihood
    return Quality(
        name,
        weights,
        run.likelihood.perplexity,
        run.likelihood.text_perplexity,
        run.likelihood.divergence_from(reference),
        run.likelihood.agreement_with(reference),
        num_equal(run.answers, runs[COMPARED].answers),
        right,
        run.seconds,
    )


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description="What each format of weights costs the demo model.")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS, metavar="FORMAT")
    parser.add_argument("--questions", type=count, default=256, help="for the likelihoods")
    parser.add_argument("--greedy", type=whole, default=600, help="questions that are answered; 0 = none")
    parser.add_argument("--device")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(namespace=argparse.Namespace(described=None))
    try:
        table = measure(options)
    except UnicornError as exc:
        raise SystemExit(f"quality.py: {exc}") from None
    if options.json:
        found = {"device": options.described, "formats": [asdict(row) for row in table]}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
