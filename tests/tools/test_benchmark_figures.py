"""What the benchmarks make of what was measured: numbers worked out by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from unicorn_async.config import EngineConfig
from unicorn_async.engine.kernel_times import KernelTime

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))

import model_runs as runs


@pytest.mark.parametrize(
    ("tokens", "sizes"),
    [([1], [1]), ([3], [4]), ([5, 8], [8]), ([100], [128]), ([384, 385], [384, 512]), ([600], [512])],
)
def test_times_of_kernels_are_those_of_the_size_that_a_step_is_padded_to(tokens: list[int], sizes: list[int]) -> None:
    times = [KernelTime(size, "kernel", "", 0, 0, 1, 1, 1) for size in (1, 2, 4, 8, 128, 384, 512)]
    found = runs.times_of(times, EngineConfig(max_num_batched_tokens=512), tokens)
    assert [time.tokens for time in found] == sizes
