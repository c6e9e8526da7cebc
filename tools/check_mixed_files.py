#!/usr/bin/env python3
"""Compare GGUF files in three parts, of many types as dynamic mixes have them, with files of the same values in F32.

    check_mixed_files.py [CASE ...] [--all-experts] [--device DEVICE]

The cases are golden ones, by default mixtures, models with states of fixed size and Gemma 4, widened so that rows have
whole blocks; tests/checkpoint/gguf/mixed_family.py says which tensors have which types. A line has how many types there
are, and the median and the largest of all tokens' errors, each the largest of its logits' in deviations, for prompts of
7 and 64 tokens. Inputs of quantised matrices are rounded to int8, which is most of the error. Where a token takes
another expert for it, that is the largest, but not with `--all-experts`: each token takes all then. The tests' folder
must be beside this one. Exits with 1 where a file is refused, or the median is above a tenth.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.checkpoint.gguf.family_files import FAMILY_FILES
from tests.checkpoint.gguf.mixed_family import MIXED_FAMILIES, write_mixed
from tests.golden.checkpoints import golden
from unicorn_async.config import EngineConfig
from unicorn_async.engine.engine import Engine
from unicorn_async.engine.files import ModelFiles
from unicorn_async.errors import UnicornError
from unicorn_async.sampling_params import SamplingParams

LARGEST_MEDIAN = 0.1
PROMPTS = (1, 2)  # of the golden ones
NEW_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of all tokens in deviations of the logits."""

    median: float
    largest: float


async def logits(model: Path, name: str, device: str | None) -> list[np.ndarray]:
    """Return the logits of the prompts (tokens, vocabulary); the model answers each, too."""
    config = EngineConfig(
        device=device,
        max_context=512,
        max_num_seqs=4,
        max_num_batched_tokens=128,
        weight_cache=False,
        skip_tokenizer=True,
    )
    prompts = [golden(name).prompts[number] for number in PROMPTS]
    async with Engine.open(model, config=config) as engine:
        params = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
        for prompt in prompts:
            assert len([token async for token in engine.stream(prompt, params)]) == NEW_TOKENS
        return [await engine.logits(prompt) for prompt in prompts]


async def errors(name: str, folder: Path, device: str | None, *, takes_all: bool) -> Errors:
    """Write both files of a family and compare them."""
    found = await logits(write_mixed(folder / "mixed", name, takes_all=takes_all), name, device)
    expected = await logits(write_mixed(folder / "dense", name, dense=True, takes_all=takes_all), name, device)
    away = [np.abs(one - other).max(axis=1) / other.std() for one, other in zip(found, expected, strict=True)]
    each = np.concatenate(away)
    return Errors(float(np.median(each)), float(each.max()))


def check(name: str, device: str | None, *, takes_all: bool) -> bool:
    """Print a family's line; return whether its file loads and means what it should."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            found = asyncio.run(errors(name, Path(directory), device, takes_all=takes_all))
            checkpoint = ModelFiles.read(Path(directory) / "mixed" / "mixed-00001-of-00003.gguf").checkpoint
        except UnicornError as exc:
            print(f"| {name} | {type(exc).__name__}: {exc}", flush=True)
            return False
    num_types = len({tensor.dtype for tensor in checkpoint.tensors.values()})
    is_right = found.median <= LARGEST_MEDIAN
    print(
        f"| {name} | {num_types} | {found.median:.3f} | {found.largest:.3f} |{'' if is_right else ' WRONG'}", flush=True
    )
    return is_right


def main() -> None:
    """Parse the command line and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CASE", default=MIXED_FAMILIES)
    parser.add_argument("--device", help="index or part of the name; a software device is taken only when it is named")
    parser.add_argument("--all-experts", action="store_true", help="each token takes all experts of a layer")
    options = parser.parse_args()
    if unknown := set(options.names) - set(FAMILY_FILES):
        parser.error(f"{', '.join(sorted(unknown))}: known are {', '.join(FAMILY_FILES)}")
    print("| model | types | median error | largest |", flush=True)
    results = [check(name, options.device, takes_all=options.all_experts) for name in options.names]
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
