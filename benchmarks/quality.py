#!/usr/bin/env python3
"""What each format of weights costs the bundled demo model, on held-out conversations of its own world.

    quality.py [--formats bf16 int4 gguf-Q4_K ...] [--questions 256] [--greedy 600] [--device NAME] [--json FILE]
               [--ggml LIBRARY]

For each format: the relative error of its weights (root of the mean square, against float64, of all matrices together
and of the worst one), the perplexity of the right answers' tokens and of the whole text (whose user's turns the model
was never trained to predict), how far all tokens' distributions are from those of the BF16 weights as they were trained
(Kullback-Leibler, and how often the likeliest token is the same), and, for the first `--greedy` questions, how many
greedy answers are the same to the last token as F16's, and how many are answers that this world accepts.

The formats: bf16, f16 and f32 are directories; int8, int4 and nf4 are made from BF16 while it is loaded; kv-f32 and
kv-int8 are BF16 beside a KV cache of this type, which is F16 in all others; gguf-TYPE are files whose matrices are of
one type, but for embeddings of Q6_K beside those of 4 and 5 bits, as llama.cpp has it. Q4_K, Q5_K, Q6_K, IQ4_NL and
IQ4_XS are encoded by tests/checkpoint/gguf/encoders.py, by plain least squares, the others by the PyPI package gguf,
which this needs; with --ggml, the libggml-base.so of a llama.cpp, all of them by ggml's own quantiser, which takes
all columns for alike. The types of one to three bits need that. The tests' folder must be beside this one. Each row
is printed, and the file of --json written, as soon as a format is done: but for the first, which waits for F16's
answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from command_line import out_file, whole

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ggml_blocks import GgmlBlocks

from tests.checkpoint.gguf.demo_file import (
    DEMO_MODEL,
    EMBEDDINGS,
    demo_weights,
    encoded_demo,
    write_demo_directory,
    write_demo_gguf,
)
from tests.checkpoint.gguf.encoders import decoded, encoded
from tests.engine.held_out import greedy, likelihood, num_equal, num_right, questions
from tests.ops.arrays import Arrays
from tests.ops.quant_arrays import quantized, read_back
from unicorn_async.cli.options import count
from unicorn_async.config import EngineConfig, KVDType, WeightScheme
from unicorn_async.engine.engine import Engine
from unicorn_async.errors import UnicornError
from unicorn_async.gpu.choice import select_device
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.instance import Instance
from unicorn_async.resources import resource_dir
from unicorn_async.tensor import QuantFormat
from unicorn_async.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from tests.engine.held_out import Likelihood, Question

GGUF = "gguf-"
SMALL_BLOCKS = ("Q3_K", "IQ3_S", "IQ3_XXS", "Q2_K", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S")
BLOCKS = ("Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS")
SCHEMES = {"int8": WeightScheme.INT8, "int4": WeightScheme.INT4, "nf4": WeightScheme.NF4}
CACHES = {"kv-f32": KVDType.F32, "kv-int8": KVDType.INT8}
TABLES = {"int4": "int8", "nf4": "int8"}
REFERENCE, COMPARED = "bf16", "f16"  # of the distributions, of the greedy answers
SMALL = tuple(GGUF + kind for kind in SMALL_BLOCKS)
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


class Matrices:
    """The demo model's matrices, and what is worth what in each format."""

    def __init__(self, ggml: Path | None) -> None:
        self._encode = encoded if ggml is None else GgmlBlocks(ggml).encoded
        self._values = {name: weight for name, weight in demo_weights() if weight.ndim == 2}
        self._squares = {name: _square(weight.astype(np.float64)) for name, weight in self._values.items()}

    def written(self, name: str, folder: Path) -> tuple[Path, WeightError]:
        """Write the model in a format that is no scheme, unless it is the bundled one; where it is, and its error."""
        kind = name.removeprefix(GGUF)
        if name.startswith(GGUF):
            tensors = encoded_demo(kind, encoded if kind in ("F32", "F16") else self._encode)
            path = write_demo_gguf(folder / f"{name}.gguf", kind, tensors)
            if kind in BLOCKS + SMALL_BLOCKS:
                return path, self._error(lambda tensor, _: decoded(tensors[tensor]))
        elif name in ("f16", "f32"):
            path = write_demo_directory(folder / name, name.upper())
        else:
            return DEMO_MODEL, WeightError(0.0, 0.0, 0.0)
        return path, self._error(lambda _, values: values.astype(np.float16).astype(np.float32))

    def quantized(self, names: Sequence[str], device_name: str | None) -> dict[str, WeightError]:
        """Return the errors of schemes, as the device makes the weights."""
        if not names:
            return {}
        with Instance.create() as instance:
            info = select_device(instance.devices(), device_name, allow_software=True)
            with Device.open(instance, info, cache_dir=None, shader_dir=resource_dir("shaders")) as device:
                return {name: self._error(partial(_quantized, device, name)) for name in names}

    def _error(self, stored: Callable[[str, NDArray[np.float32]], NDArray[np.float32]]) -> WeightError:
        """Return a format's error, of which `stored` says what it makes of a matrix."""
        squares, largest = [], 0.0
        for name, values in self._values.items():
            exact = values.astype(np.float64)
            difference = stored(name, values) - exact
            squares.append((_square(difference), self._squares[name]))
            largest = max(largest, float(np.abs(difference).max() / exact.std()))
        errors, norms = zip(*squares, strict=True)
        worst = max(error / norm for error, norm in squares) ** 0.5
        return WeightError((sum(errors) / sum(norms)) ** 0.5, worst, largest)


def _square(values: NDArray[np.float64]) -> float:
    return float((values**2).sum())


def _quantized(device: Device, name: str, tensor: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    kind = TABLES.get(name, name) if tensor == EMBEDDINGS else name
    arrays = Arrays(device)
    try:
        return read_back(arrays, quantized(arrays, values, QuantFormat(kind))).copy()  # of memory that is closed
    finally:
        arrays.close()


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


def measure(options: argparse.Namespace) -> None:
    """Run every format, the two that others are compared with first; print and write the rows as they come."""
    names = list(dict.fromkeys([REFERENCE, COMPARED, *options.formats]))
    matrices = Matrices(options.ggml)
    errors = matrices.quantized([name for name in names if name in SCHEMES], options.device)
    tokenizer = Tokenizer.load(DEMO_MODEL)
    asked = questions(tokenizer, max(options.questions, options.greedy))
    runs: dict[str, Run] = {}
    table: list[Quality] = []
    print(f"{options.questions} questions for the likelihoods, {options.greedy} for the greedy answers")
    print(
        f"{'format':12} {'weights':>9} {'worst':>9} {'largest':>8} {'perplexity':>10} {'of text':>9} "
        f"{'KL':>10} {'top-1':>8} {'same':>5} {'right':>6} {'s':>6}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="unicorn-quality-") as folder:
        for name in names:
            model = DEMO_MODEL
            if name not in errors:
                model, errors[name] = matrices.written(name, Path(folder))
            runs[name] = asyncio.run(run_format(name, model, asked, options))
            if COMPARED not in runs:
                continue
            for ready in [each for each in runs if each not in {row.name for row in table}]:
                right = num_right(runs[ready].answers, asked[: options.greedy], tokenizer)
                table.append(_quality(ready, runs, errors[ready], right))
                print(line(table[-1], options.greedy), flush=True)
            write(options, table)
            if name not in (REFERENCE, COMPARED):
                del runs[name]
    print(options.described)


def write(options: argparse.Namespace, table: Sequence[Quality]) -> None:
    """Write what there is so far, if a file is asked for."""
    if options.json:
        found = {"device": options.described, "formats": [asdict(row) for row in table]}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


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
    parser.add_argument("--formats", nargs="+", choices=FORMATS + SMALL, default=FORMATS, metavar="FORMAT")
    parser.add_argument("--questions", type=count, default=256, help="for the likelihoods")
    parser.add_argument("--greedy", type=whole, default=600, help="questions that are answered; 0 = none")
    parser.add_argument("--device")
    parser.add_argument("--json", type=out_file, metavar="FILE")
    parser.add_argument("--ggml", type=Path, metavar="LIBRARY", help="libggml-base.so, to encode blocks")
    options = parser.parse_args(namespace=argparse.Namespace(described=None))
    if options.ggml is None and not set(SMALL).isdisjoint(options.formats):
        parser.error(f"{', '.join(SMALL)} need --ggml")
    try:
        measure(options)
    except (UnicornError, OSError) as exc:
        raise SystemExit(f"quality.py: {exc}") from None


if __name__ == "__main__":
    main()
