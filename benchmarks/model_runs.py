"""What the scripts that measure whole models share: prompts, and windows of decoding."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from unicorn_async.cli.bench_kernels import kernel_lines
from unicorn_async.cli.bench_limits import Limits, measure_limits
from unicorn_async.cli.bench_run import measure_prompt
from unicorn_async.config import EngineConfig
from unicorn_async.engine.engine import Engine
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.step.buckets import bucket_for, bucket_sizes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
    from random import Random

    from step_work import StepWork

    from unicorn_async.step.kernel_times import KernelTime

WARM_UP = 3  # prompts: a step of a new shape is recorded once for each frame, and the first one is cut fine
WARM_UP_TOKENS = 16
SMALLEST_CHUNK = 16  # tokens of prompts in a step, at least
SPARE_TOKENS = 16
BUSY_STEPS = 32  # from which on the ends count little


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, lowest and highest."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Sum up values."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:,.1f} ({self.lowest:,.1f} to {self.highest:,.1f})"


@dataclass(frozen=True, slots=True)
class PromptRun:
    """Prompts of one sequence; `flops_per_s` are of the matrices."""

    tokens: int
    tokens_per_s: Spread
    flops_per_s: float


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """Decoding of several streams at once; `tokens_per_s` is their sum.

    `context` is the mean number of positions that a stream's token saw. Of a step `weight_bytes` are those that it
    reads, of experts those to be expected, `kv_bytes` are of all streams, and `state_bytes`, too, read and written.
    `device_busy` is the device's share of the time, None where few steps were seen: those at the ends, some of whose
    time lies outside, count whole.
    """

    streams: int
    context: float
    tokens_per_s: Spread
    weight_bytes: float
    kv_bytes: float
    state_bytes: int
    flops: float
    device_busy: float | None
    host_us_per_step: float

    @property
    def step_bytes(self) -> float:
        """What a step must read, and write of states."""
        return self.weight_bytes + self.kv_bytes + self.state_bytes

    @property
    def bytes_per_s(self) -> float:
        """Rate at which steps do so."""
        return self.step_bytes * self.tokens_per_s.median / self.streams

    def line(self, limits: Limits) -> str:
        """Return it for people."""
        busy = "not told by so few steps" if self.device_busy is None else f"{self.device_busy:.0%}"
        states = f", {self.state_bytes / self.step_bytes:.0%} states" if self.state_bytes else ""
        return (
            f"decode, {self.streams:3} streams, context {self.context:,.0f}: {self.tokens_per_s} tok/s,"
            f" {self.bytes_per_s / 1e9:,.1f} GB/s = {self.bytes_per_s / limits.copy_bytes_per_s:.0%} of copy"
            f" ({self.kv_bytes / self.step_bytes:.0%} of the bytes are KV{states});"
            f" device busy {busy}, host {self.host_us_per_step:.0f} µs/step"
        )


@dataclass(frozen=True, slots=True)
class Moment:
    """Counters when a token came."""

    time_s: float
    tokens: int
    steps: int
    device_s: float
    host_s: float

    @classmethod
    def now(cls, engine: Engine, tokens: int) -> Moment:
        stats = engine.stats()
        host_s = stats.host_us_per_step * stats.steps / 1e6
        return cls(time.perf_counter(), tokens, stats.steps, stats.device_s, host_s)


@contextlib.asynccontextmanager
async def opened(path: str, config: EngineConfig) -> AsyncIterator[Engine]:
    """Open a model and wait until it is loaded and its KV cache has grown."""
    async with Engine.open(path, config=config) as engine:
        await engine.cache_grown()
        yield engine


def decode_room(context: int, streams: int, tokens: int, repeat: int) -> int:
    """Tokens that a stream may come to have in `decode_windows`: the first decode while the last ones' prompts come."""
    chunk = max(EngineConfig().max_num_batched_tokens - streams, SMALLEST_CHUNK)
    steps_of_prompts = -(-streams * context // chunk) if streams > 1 else 0
    return context + WARM_UP_TOKENS + tokens * repeat + steps_of_prompts + SPARE_TOKENS


async def prompt_run(engine: Engine, rng: Random, work: StepWork, *, tokens: int, repeat: int) -> PromptRun:
    """Measure prompts of one sequence, to the first token."""
    runs = [await measure_prompt(engine, rng, batch=1, num_tokens=tokens) for _ in range(WARM_UP + repeat)]
    rate = Spread.of([run.tokens_per_s for run in runs[WARM_UP:]])
    return PromptRun(tokens, rate, work.prompt_flops(tokens) * rate.median / tokens)


async def decode_run(
    engine: Engine, rng: Random, work: StepWork, *, streams: int, context: int, tokens: int, repeat: int
) -> DecodeRun:
    """Decode with `streams` prompts of `context` tokens; the repeats are windows of the same answers."""
    moments = await decode_windows(engine, rng, streams=streams, context=context, tokens=tokens, repeat=repeat)
    return figures_of(moments, work, streams=streams, context=context, tokens=tokens)


def figures_of(moments: Sequence[Moment], work: StepWork, *, streams: int, context: int, tokens: int) -> DecodeRun:
    """Sum up windows of `tokens` steps between moments."""
    windows = list(itertools.pairwise(moments))
    first, last = moments[0], moments[-1]
    steps = last.steps - first.steps
    busy = (last.device_s - first.device_s) / (last.time_s - first.time_s)
    seen = context + WARM_UP_TOKENS + tokens * len(windows) / 2
    return DecodeRun(
        streams,
        seen,
        Spread.of([(stop.tokens - start.tokens) / (stop.time_s - start.time_s) for start, stop in windows]),
        work.weight_bytes_of(streams),
        streams * work.kv_bytes(seen),
        streams * work.moved_state_bytes,
        work.decode_flops(streams),
        min(busy, 1.0) if steps >= BUSY_STEPS else None,
        1e6 * (last.host_s - first.host_s) / steps,
    )


async def decode_windows(
    engine: Engine,
    rng: Random,
    *,
    streams: int,
    context: int,
    tokens: int,
    repeat: int,
    on_moment: Callable[[], None] = lambda: None,
) -> list[Moment]:
    """Return the moments between windows of `tokens` steps in which all streams decode.

    The streams begin one after the other; the last of them has the shortest context, and says when a window ends.
    `on_moment` is called at each of these moments.
    """
    size = engine.model_spec.vocab_size
    room = decode_room(context, streams, tokens, repeat) - context
    sampling = SamplingParams(max_tokens=room, ignore_eos=True)
    prompts = [[rng.randrange(size) for _ in range(context)] for _ in range(streams)]
    before, count, moments = engine.stats().preemptions, 0, []

    async def answer(prompt: list[int], on_token: Callable[[int], bool]) -> None:
        nonlocal count
        number = 0
        async with contextlib.aclosing(engine.stream(prompt, sampling)) as stream:
            async for _ in stream:
                number, count = number + 1, count + 1
                if on_token(number):
                    return

    def note(number: int) -> bool:
        """Note the moment if it is between windows; returns whether it is the last one."""
        if (number - WARM_UP_TOKENS) % tokens == 0 and number >= WARM_UP_TOKENS:
            on_moment()
            moments.append(Moment.now(engine, count))
        return len(moments) == repeat + 1

    async with asyncio.TaskGroup() as group:
        others = [group.create_task(answer(prompt, lambda _: False)) for prompt in prompts[1:]]
        await group.create_task(answer(prompts[0], note))  # the last to ask is the last to get a token
        stats = engine.stats()
        for task in others:
            task.cancel()
    if stats.running < streams - 1 or stats.preemptions > before:
        raise SystemExit(
            f"{streams} streams of {context} tokens: not all of them decoded to the end of the last window"
            f" ({stats.running} others ran, {stats.preemptions - before} preemptions): the KV cache has no room for all"
            " at once, or their prompts took so many steps that answers ended"
        )
    return moments


async def measured_kernels(
    path: str, config: EngineConfig, tokens: Sequence[int], work: Callable[[Engine], Awaitable[object]]
) -> list[dict[str, Any]]:
    """Print where the time of steps goes while `work` uses the engine; returns those of steps of so many tokens."""
    async with opened(path, replace(config, time_kernels=True)) as engine:
        await work(engine)
    print("\n".join(kernel_lines(engine, measure_limits(str(engine.device.index)))), flush=True)
    return [asdict(time) for time in times_of(engine.kernel_times(), config, tokens)]


def times_of(times: Iterable[KernelTime], config: EngineConfig, tokens: Iterable[int]) -> list[KernelTime]:
    """Return the times of steps of so many tokens, which are noted by the sizes that steps are padded to."""
    most = config.max_num_batched_tokens
    sizes = {bucket_for(min(number, most), bucket_sizes(most)) for number in tokens}
    return [time for time in times if time.tokens in sizes]
