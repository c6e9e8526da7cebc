#!/usr/bin/env python3
"""Run random requests of golden models alone and side by side, and compare the answers.

    check_requests.py [CASE ...] [--device DEVICE] [--requests 64]       default: one model of each kind of layers

Requests have prompts of 1 to 180 tokens, some of which begin as others do, come from three clients at random moments,
and half of them are drawn by a seed. Consumers leave some before their end, or before there is a token. Alone they have
a cache with room for all; side by side one that is too small, so that requests lose their places and come again. A line
says how many ran at once at most, how often places were lost, how many prompt tokens were found in the cache, how many
answers differ, and how far apart in deviations of the logits the tokens are where they first do: at a tie steps of
other sizes may round the other way. It fails where blocks, states, tasks, memory, devices or threads are left, where no
place was lost, and where a difference is no tie. The tests' folder must be beside this one.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.engine.invariance import Outcome, alone, random_jobs, related_jobs, side_by_side
from tests.engine.leftovers import no_leftovers
from tests.golden.cases import CASES
from tests.golden.checkpoints import golden, write_checkpoint
from unicorn_async.config import EngineConfig
from unicorn_async.engine.engine import Engine

DEFAULT = (
    *("qwen3_moe", "qwen3_5", "qwen3_next", "lfm2", "lfm2_moe", "lfm3", "rwkv7", "gpt_oss", "gemma4_small"),
    *("gemma4_moe", "granite_hybrid_moe", "glm4_moe_lite"),
)
BLOCKS = 32  # of the small cache; a sequence has up to 16
LENGTHS = (1, 2, 5, 17, 33, 60, 150)  # of prompts
MOST_TOKENS = 64  # of an answer
TIE = 2e-2  # twice what logits may be wrong by, in deviations


async def compare(model: Path, config: EngineConfig, num_requests: int) -> Outcome:
    """Run requests alone on one engine, then side by side on one whose cache is small."""
    async with Engine.open(model, config=config) as engine:
        await engine.cache_grown()
        vocab_size = engine.model_spec.vocab_size
        jobs = related_jobs(random_jobs(vocab_size, lengths=LENGTHS, most_tokens=MOST_TOKENS, count=num_requests))
        expected = await alone(engine, jobs)
        if engine.kv_cache_bytes:
            small = engine.kv_cache_bytes * BLOCKS // engine.stats().blocks_total
            config = replace(config, kv_cache_bytes=small)
        else:
            config = replace(config, max_num_seqs=config.max_num_seqs // 2)
    async with Engine.open(model, config=config) as engine:
        await engine.cache_grown()
        return await side_by_side(engine, jobs, expected)


def check(name: str, device: str | None, num_requests: int) -> bool:
    """Print one model's line; return whether all is as it should be."""
    config = EngineConfig(
        device=device,
        max_context=256,
        max_num_seqs=16,
        max_num_batched_tokens=96,
        weight_cache=False,
        skip_tokenizer=True,
        speculation="off",
        max_mixed_step_s=None,
    )
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch, no_leftovers(patch):
        model = write_checkpoint(name, Path(directory), "float16")
        found = asyncio.run(compare(model, config, num_requests))
    far = [margin / golden(name).deviation for margin in found.different.values()]
    is_right = found.preemptions > 0 and all(margin <= TIE for margin in far)
    numbers = (found.most_running, found.preemptions, found.prompt_tokens_found, len(far))
    cells = [*(str(number) for number in numbers), ", ".join(f"{margin:.4f}" for margin in far)]
    print(f"| {name} | {' | '.join(cells)} |{'' if is_right else ' WRONG'}", flush=True)
    return is_right


def main() -> None:
    """Parse the command line and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CASE", default=DEFAULT)
    parser.add_argument("--device", help="index or part of the name; a software device is taken only when it is named")
    parser.add_argument("--requests", type=int, default=64)
    options = parser.parse_args()
    if unknown := set(options.names) - CASES.keys():
        parser.error(f"{', '.join(sorted(unknown))}: known are {', '.join(CASES)}")
    print("| model | at once | places lost | prompt tokens found | other answers | apart by |", flush=True)
    results = [check(name, options.device, options.requests) for name in options.names]
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
