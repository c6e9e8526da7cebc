"""One measured run: random prompts through `Engine.stream`, with clocks and counters around them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError
from unicorn_async.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from unicorn_async.engine.engine import Engine

DECODE_PROMPT = 8  # tokens: short enough that all sequences begin in one step


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one run took. `tokens` came in `token_s` seconds; the other figures are of the whole run, `wall_s` long.

    `device_s` is by the device's own timestamps, or, where another one attends, what the host saw. `process_cpu_s` is
    of all threads, `loop_cpu_s` of the event loop's.
    """

    tokens: int
    token_s: float
    wall_s: float
    steps: int
    device_s: float
    host_s: float
    process_cpu_s: float
    loop_cpu_s: float

    @property
    def tokens_per_s(self) -> float:
        """The rate of the run."""
        return self.tokens / self.token_s

    @property
    def device_busy(self) -> float:
        """Share of the wall clock's time in which the device worked."""
        return self.device_s / self.wall_s


@dataclass(frozen=True, slots=True)
class BatchResult:
    """All counted runs of one batch size."""

    batch: int
    prompt_tokens: int
    decode_tokens: int
    prompt: tuple[Measurement, ...]
    decode: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True)
class _Clocks:
    wall_s: float
    process_cpu_s: float
    loop_cpu_s: float
    steps: int
    device_s: float
    host_s: float

    @classmethod
    def read(cls, engine: Engine) -> _Clocks:
        stats = engine.stats()
        return cls(
            time.perf_counter(),
            time.process_time(),
            time.thread_time(),
            stats.steps,
            stats.device_s if stats.attention is None else stats.attention.near_s,
            stats.host_us_per_step * stats.steps / 1e6,
        )


def check_context(engine: Engine, *, num_prompt: int, num_tokens: int) -> None:
    """See that prompts of `num_prompt` tokens, and `num_tokens` decoded ones, have room; the model may still load.

    Raises:
        ConfigError: the context is too short.
    """
    prompt, decoding = num_prompt + 1, DECODE_PROMPT + num_tokens + 1  # the first token of an answer is not counted
    for option, needed in ((f"--prompt {num_prompt}", prompt), (f"--tokens {num_tokens}", decoding)):
        if needed > engine.max_context:
            raise ConfigError(f"{option}: a context of {needed} tokens is needed, there is one of {engine.max_context}")


async def measure_prompt(engine: Engine, rng: Random, *, batch: int, num_tokens: int) -> Measurement:
    """Process `batch` prompts of `num_tokens` each, to the first token of all of them.

    Raises:
        RequestError: a prompt does not fit the context.
    """
    before = _Clocks.read(engine)
    times = await _streams(engine, rng, batch=batch, num_prompt=num_tokens, num_tokens=1)
    return _measurement(before, _Clocks.read(engine), batch * num_tokens, max(t[0] for t in times) - before.wall_s)


async def measure_decode(
    engine: Engine, rng: Random, *, batch: int, num_tokens: int, num_prompt: int = DECODE_PROMPT
) -> Measurement:
    """Decode with `batch` sequences at once; counted is the time in which all of them decode.

    Raises:
        RequestError: the tokens do not fit the context.
        ConfigError: the sequences did not run at the same time.
    """
    before = _Clocks.read(engine)
    times = await _streams(engine, rng, batch=batch, num_prompt=num_prompt, num_tokens=num_tokens + 1)
    after = _Clocks.read(engine)
    tokens, seconds = decoded_together(times)
    if not seconds:
        raise ConfigError(
            f"batch {batch}: a sequence had all {num_tokens + 1} tokens before others had their first: the KV cache, or"
            " a step, has no room for all prompts at once; try fewer sequences, or more tokens"
        )
    return _measurement(before, after, tokens, seconds)


def decoded_together(times: Sequence[Sequence[float]]) -> tuple[int, float]:
    """Return how many tokens came while all of these sequences decoded, and in how many seconds; 0: they never did.

    `times` has the moments of each one's tokens. The time begins with the first token of the last to begin, which does
    not count, and ends with the last token of the first to end, which does.
    """
    start, stop = max(moments[0] for moments in times), min(moments[-1] for moments in times)
    if stop <= start:
        return 0, 0.0
    return sum(start < moment <= stop for moments in times for moment in moments), stop - start


def _measurement(before: _Clocks, after: _Clocks, tokens: int, token_s: float) -> Measurement:
    return Measurement(
        tokens=tokens,
        token_s=token_s,
        wall_s=after.wall_s - before.wall_s,
        steps=after.steps - before.steps,
        device_s=after.device_s - before.device_s,
        host_s=after.host_s - before.host_s,
        process_cpu_s=after.process_cpu_s - before.process_cpu_s,
        loop_cpu_s=after.loop_cpu_s - before.loop_cpu_s,
    )


async def _streams(engine: Engine, rng: Random, *, batch: int, num_prompt: int, num_tokens: int) -> list[list[float]]:
    """Run the sequences at once; returns when each token of each came."""
    size = engine.model_spec.vocab_size
    prompts = [[rng.randrange(size) for _ in range(num_prompt)] for _ in range(batch)]
    sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_arrivals(engine, prompt, sampling)) for prompt in prompts]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def _arrivals(engine: Engine, prompt: list[int], sampling: SamplingParams) -> list[float]:
    return [time.perf_counter() async for _ in engine.stream(prompt, sampling)]
