"""What the benchmark of proposals asks of a model whose answers follow a cycle."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import speculation

from unicorn_async.scheduler.prompt_lookup import PromptLookup

CYCLE = range(4, 5000)
NUM_TOKENS = 64


def asked(name: str, stream: int) -> tuple[list[int], list[int]]:
    """Return a prompt and what the cycle has behind it."""
    prompt = speculation.walk_prompt(name, CYCLE, NUM_TOKENS, stream)
    start = CYCLE.index(prompt[-1]) + 1
    return prompt, [CYCLE[(start + number) % len(CYCLE)] for number in range(NUM_TOKENS)]


def test_the_text_proposes_a_whole_quote_and_nothing_of_a_walk() -> None:
    for stream in range(4):
        for name, found in (("walk", False), ("quote", True)):
            prompt, expected = asked(name, stream)
            lookup = PromptLookup(prompt)
            lookup.follow(expected[:4])  # a place of its index may have been taken
            assert list(lookup.propose(0, NUM_TOKENS - 4)) == (expected[4:] if found else [])


def test_each_stream_walks_elsewhere() -> None:
    assert len({tuple(asked("walk", stream)[1]) for stream in range(8)}) == 8
