#!/usr/bin/env python3
"""Compare an engine with reference logits of long prompts, alone, side by side, in chunks, and beside answers.

    check_families.py FOLDER [CASE ...] [--device DEVICE]         default: every reference that FOLDER has

FOLDER is what `tools/make_long_golden.py` wrote: golden models' logits after each token of prompts of 1, 7, 64, 300 and
1,200 tokens, and of one token 300 times. The weights are float16. A line has the largest errors in deviations of the
logits: of each prompt alone in one step, of all in one step, of all in steps of at most 96 tokens; and how far the
log-probabilities of answers to all prompts, decoded together, are from those of the same tokens in a prompt. The tests'
folder must be beside this one. Exits with 1 where an error is above a hundredth, or is no number.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.golden.checkpoints import read_golden
from tests.golden.long_prompts import CONTEXT, write_long
from unicorn_async.config import EngineConfig
from unicorn_async.engine.engine import Engine
from unicorn_async.errors import UnicornError
from unicorn_async.memory import plan as memory_plan
from unicorn_async.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.golden.checkpoints import Golden

TOLERANCE = 1e-2  # in deviations of the logits
CHUNK = 96
NEW_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Errors:
    """The largest errors of one model in deviations of its logits, those of answers' log-probabilities in nats."""

    alone: tuple[float, ...]  # of each prompt
    together: float
    num_steps: int  # that all prompts took together
    chunked: float
    answers: float

    @property
    def is_right(self) -> bool:
        """Whether none is too large."""
        return all(error <= TOLERANCE for error in (*self.alone, self.together, self.chunked, self.answers))

    def cells(self) -> list[str]:
        """Return the columns of a line."""
        numbers = [*self.alone, self.together, self.chunked, self.answers]
        return [f"{number:.4f}" for number in numbers]


async def errors(reference: Golden, model: Path, config: EngineConfig, chunk: int = CHUNK) -> Errors:
    """Return the errors of a model whose steps have room for all prompts, and of one whose steps have not."""
    num_tokens = sum(map(len, reference.prompts))
    whole = replace(config, max_num_batched_tokens=num_tokens)
    # A step has logits of 64 tokens at most; here it has those of all its tokens.
    with mock.patch.object(memory_plan, "EVALUATION_ROWS", num_tokens):
        alone, together, num_steps, answers = await whole_steps(reference, model, whole)
    async with Engine.open(model, config=replace(config, max_num_batched_tokens=chunk)) as engine:
        chunked = await all_at_once(engine, reference)
    return Errors(alone, together, num_steps, chunked, answers)


async def whole_steps(
    reference: Golden, model: Path, config: EngineConfig
) -> tuple[tuple[float, ...], float, int, float]:
    """Return the errors of prompts alone and together, how many steps the latter took, and the error of answers."""
    async with Engine.open(model, config=config) as engine:
        alone = [reference.error(n, await engine.logits(prompt)) for n, prompt in enumerate(reference.prompts)]
        before = engine.stats().steps
        together = await all_at_once(engine, reference)
        num_steps = engine.stats().steps - before
        return tuple(alone), together, num_steps, await answers_error(engine, reference.prompts)


async def all_at_once(engine: Engine, reference: Golden) -> float:
    """Evaluate all prompts side by side; return the largest error."""
    found = await asyncio.gather(*(engine.logits(prompt) for prompt in reference.prompts))
    return float(np.max([reference.error(number, logits) for number, logits in enumerate(found)]))


async def answers_error(engine: Engine, prompts: Sequence[Sequence[int]]) -> float:
    """Answer all prompts side by side; return how far log-probabilities are from those of the tokens in a prompt."""
    params = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True, top_logprobs=0)

    async def one(prompt: Sequence[int]) -> float:
        tokens = [token async for token in engine.stream(prompt, params)]
        rows = (await engine.logits([*prompt, *(token.id for token in tokens)]))[len(prompt) - 1 : -1].astype(float)
        rows -= rows.max(axis=1, keepdims=True)
        rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
        expected = [row[token.id] for row, token in zip(rows, tokens, strict=True)]
        return float(np.abs(np.subtract(expected, [token.logprob for token in tokens])).max())

    return float(np.max(await asyncio.gather(*(one(prompt) for prompt in prompts))))


async def check(folder: Path, names: Sequence[str], device: str | None) -> bool:
    """Print a line for each model; return whether all are right."""
    are_right = True
    for name in names:
        reference = read_golden(str(folder / name))
        config = EngineConfig(
            device=device,
            max_context=CONTEXT,
            max_num_seqs=8,
            weight_cache=False,
            skip_tokenizer=True,
            speculation="off",
            max_mixed_step_s=None,
        )
        if name == names[0]:
            lengths = " | ".join(f"{len(prompt):,}" for prompt in reference.prompts)
            print(f"| model | {lengths} | one step | steps of {CHUNK} | answers |", flush=True)
        with tempfile.TemporaryDirectory() as directory:
            try:
                found = await errors(reference, write_long(name, Path(directory), "float16"), config)
            except UnicornError as exc:
                print(f"| {name} | {type(exc).__name__}: {exc}", flush=True)
                are_right = False
                continue
        are_right &= found.is_right
        steps = "" if found.num_steps == 1 else f" ({found.num_steps} steps)"
        print(f"| {name} | {' | '.join(found.cells())} |{steps}{'' if found.is_right else ' WRONG'}", flush=True)
    return are_right


def main() -> None:
    """Parse the command line and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="CASE")
    parser.add_argument("--device", help="index or part of the name; a software device is taken only when it is named")
    options = parser.parse_args()
    names = options.names or sorted(path.stem for path in options.folder.glob("*.npz"))
    if not names:
        parser.error(f"{options.folder}: has no references; tools/make_long_golden.py writes them")
    sys.exit(not asyncio.run(check(options.folder.resolve(), names, options.device)))


if __name__ == "__main__":
    main()
