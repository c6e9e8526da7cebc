"""What a measured run makes of the times at which tokens come, without a model."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from unicorn_async.cli.bench_run import Measurement, decoded_together, measure_decode
from unicorn_async.errors import ConfigError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))

import model_runs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from unicorn_async.engine.engine import Engine
    from unicorn_async.sampling_params import SamplingParams


def test_tokens_count_from_the_first_one_of_the_last_sequence_to_the_last_one_of_the_first_to_end() -> None:
    times = [[1.0, 2.0, 3.0, 4.0], [2.5, 3.5, 4.5, 5.5]]
    assert decoded_together(times) == (3, 1.5)  # 3.0, 3.5 and 4.0, from 2.5 to 4.0
    assert decoded_together([[1.0, 2.0, 4.0]]) == (2, 3.0)


def test_sequences_that_follow_one_another_were_never_together() -> None:
    assert decoded_together([[1.0, 2.0], [2.0, 3.0]]) == (0, 0.0)
    assert decoded_together([[1.0, 2.0], [3.0, 4.0]]) == (0, 0.0)


def test_rates_are_of_the_time_of_the_tokens_and_the_devices_share_of_all_the_time() -> None:
    run = Measurement(30, 1.5, 2.0, 10, 1.0, 0.1, 0.5, 0.2)
    assert (run.tokens_per_s, run.device_busy) == (20.0, 0.5)


class MadeUpEngine:
    """Gives tokens to so many sequences at a time, without computing any; the others wait."""

    def __init__(self, num_at_once: int) -> None:
        self.model_spec = SimpleNamespace(vocab_size=10)
        self._places = asyncio.Semaphore(num_at_once)
        self._running = 0
        self._steps = 0

    def stats(self) -> Any:
        counters = {"steps": self._steps, "device_s": 0.0, "host_us_per_step": 0.0, "attention": None, "preemptions": 0}
        return SimpleNamespace(running=self._running, **counters)

    async def stream(self, prompt: Sequence[int], sampling: SamplingParams) -> AsyncIterator[int]:
        async with self._places:
            self._running += 1
            try:
                for token in range(sampling.max_tokens):
                    await asyncio.sleep(0)
                    self._steps += 1
                    yield token
            finally:
                self._running -= 1


async def decode(num_at_once: int) -> Any:
    engine = cast("Engine", MadeUpEngine(num_at_once))
    return await measure_decode(engine, Random(1), batch=4, num_tokens=20)


async def test_what_counts_is_the_time_in_which_all_sequences_decode() -> None:
    found = await decode(4)
    assert 4 * 18 <= found.tokens <= 4 * 20
    assert 0 < found.token_s <= found.wall_s


async def test_sequences_that_never_decoded_at_once_are_no_measurement_and_the_reasons_are_those_that_can_be() -> None:
    with pytest.raises(ConfigError, match=r"batch 4: a sequence had all 21 tokens before .* or a step, has no room"):
        await decode(2)


async def test_windows_in_which_not_all_streams_decode_are_none() -> None:
    engine = cast("Engine", MadeUpEngine(2))
    with pytest.raises(SystemExit, match=r"4 streams of 8 tokens: not all of them decoded .* or their prompts took"):
        await model_runs.decode_windows(engine, Random(1), streams=4, context=8, tokens=4, repeat=2)
