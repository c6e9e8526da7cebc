"""What the scripts that measure whole models share: which model, how it is opened, prompts and decoding, reports.

A report is what one model in one format did on one device; files hold `{"reports": [...]}`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from step_work import StepWork

from unicorn_async.cli.bench_kernels import kernel_lines
from unicorn_async.cli.bench_limits import Limits, measure_limits
from unicorn_async.cli.bench_run import measure_prompt
from unicorn_async.config import EngineConfig, KVDType, SamplingParams, WeightScheme
from unicorn_async.engine.engine import Engine
from unicorn_async.engine.model_on_disk import ModelOnDisk

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
    from random import Random

MAKE = Path(__file__).parent.parent / "tools" / "make_checkpoint.py"
WARM_UP = (
    3  # prompts: the engine records a step of a new shape once for each of its frames, and cuts the first one fine
)
WARM_UP_TOKENS = 16
SMALLEST_CHUNK = (
    16  # tokens of a prompt in a step: so many steps may pass between the first prompt's end and the last's
)


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

    `context` is the mean number of positions that a stream's token saw, `kv_bytes` are of all streams in a step.
    """

    streams: int
    context: float
    tokens_per_s: Spread
    weight_bytes: int
    kv_bytes: float
    flops: float
    device_busy: float
    host_us_per_step: float

    @property
    def bytes_per_s(self) -> float:
        """Rate at which steps read what they must."""
        return (self.weight_bytes + self.kv_bytes) * self.tokens_per_s.median / self.streams

    def line(self, limits: Limits) -> str:
        """Return it for people."""
        return (
            f"decode, {self.streams:3} streams, context {self.context:,.0f}: {self.tokens_per_s} tok/s,"
            f" {self.bytes_per_s / 1e9:,.1f} GB/s = {self.bytes_per_s / limits.copy_bytes_per_s:.0%} of copy"
            f" ({self.kv_bytes / (self.weight_bytes + self.kv_bytes):.0%} of the bytes are KV);"
            f" device busy {self.device_busy:.0%}, host {self.host_us_per_step:.0f} µs/step"
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


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add what chooses a model, its format and the device."""
    parser.add_argument("model", help="a folder, a GGUF file, `demo`, or a shape that tools/make_checkpoint.py knows")
    parser.add_argument("--dtype", choices=("BF16", "F16"), default="BF16", help="of a checkpoint that is made")
    parser.add_argument("--layers", type=int, help="of a checkpoint that is made: fewer or more than the shape has")
    parser.add_argument("--folder", type=Path, help="where a made checkpoint goes, or is already (default: temporary)")
    parser.add_argument("--keep", action="store_true", help="leave the checkpoint that was made")
    parser.add_argument(
        "--weights",
        nargs="+",
        choices=[scheme.value for scheme in WeightScheme],
        default=["auto"],
        help="what weights become while they are loaded, one report each (default: what they are)",
    )
    parser.add_argument("--kv-dtype", choices=[kind.value for kind in KVDType], default=KVDType.F16.value)
    parser.add_argument("--device", help="index or part of the name; a software device is taken only when it is named")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="measurements that count (default 3)")
    parser.add_argument("--kernels", action="store_true", help="open the model again and time every dispatch")
    parser.add_argument("--json", type=Path, metavar="FILE")


@contextlib.contextmanager
def model_path(options: argparse.Namespace) -> Iterator[str]:
    """Yield what to open, after making it where it is a shape; what was made is removed unless it is to be kept."""
    if options.model == "demo" or Path(options.model).exists():
        yield options.model
        return
    folder = options.folder or Path(tempfile.mkdtemp(prefix="unicorn-bench-"))
    is_made = not (folder / "config.json").exists()
    try:
        if is_made:
            command = [sys.executable, str(MAKE), options.model, str(folder), "--dtype", options.dtype]
            command += ["--layers", str(options.layers)] if options.layers else []
            subprocess.run(command, check=True)
        yield str(folder)
    finally:
        if is_made and not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


def engine_config(options: argparse.Namespace, weights: str, *, streams: int, context: int) -> EngineConfig:
    """Return a configuration with room for so many streams of so many tokens, and no weight cache."""
    return EngineConfig(
        device=options.device,
        max_num_seqs=streams,
        max_context=context,
        weights=WeightScheme(weights),
        kv_dtype=KVDType(options.kv_dtype),
        weight_cache=False,
        max_mixed_step_s=None,  # prompts before the measurement as fast as they can be
    )


@contextlib.asynccontextmanager
async def opened(path: str, config: EngineConfig) -> AsyncIterator[Engine]:
    """Open a model and wait until it is loaded."""
    async with Engine.open(path, config=config) as engine:
        await engine.loaded()
        yield engine


def decode_room(context: int, streams: int, tokens: int, repeat: int) -> int:
    """Tokens that a stream may come to have in `decode_windows`."""
    return context + WARM_UP_TOKENS + tokens * repeat + streams * -(-context // SMALLEST_CHUNK) + SMALLEST_CHUNK


def heading(engine: Engine, options: argparse.Namespace, weights: str) -> str:
    """Say what is measured, on what."""
    info = engine.device
    kind = "SOFTWARE device" if info.is_software else "GPU"
    return (
        f"{options.model}, weights {weights}: {info.name}, {info.driver_name} {info.driver_info}, {kind},"
        f" {os.cpu_count()} cores\nkernels: {', '.join(engine.kernels)}"
    )


def facts(
    engine: Engine, options: argparse.Namespace, weights: str, work: StepWork, limits: Limits | None = None
) -> dict[str, Any]:
    """Return what every report begins with."""
    info = engine.device
    return {
        "model": options.model,
        "weights": weights,
        "device": info.name,
        "driver": f"{info.driver_name} {info.driver_info}",
        "software": info.is_software,
        "kernels": list(engine.kernels),
        "limits": limits and asdict(limits),
        "work": asdict(work),
    }


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
    windows = list(itertools.pairwise(moments))
    first, last = moments[0], moments[-1]
    seen = context + WARM_UP_TOKENS + tokens * repeat / 2
    return DecodeRun(
        streams,
        seen,
        Spread.of([(stop.tokens - start.tokens) / (stop.time_s - start.time_s) for start, stop in windows]),
        work.weight_bytes,
        streams * work.kv_bytes(seen),
        work.decode_flops(streams),
        (last.device_s - first.device_s) / (last.time_s - first.time_s),
        1e6 * (last.host_s - first.host_s) / (last.steps - first.steps),
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
    size = engine.model_config.vocab_size
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
        raise SystemExit(f"{streams} streams of {context} tokens: the KV cache has no room for all of them at once")
    return moments


async def measured_kernels(
    path: str, config: EngineConfig, tokens: Sequence[int], work: Callable[[Engine], Awaitable[object]]
) -> list[dict[str, Any]]:
    """Print where the time of steps goes while `work` uses the engine; returns those of these buckets of tokens."""
    async with opened(path, replace(config, time_kernels=True)) as engine:
        await work(engine)
    print("\n".join(kernel_lines(engine, measure_limits(str(engine.device.index)))), flush=True)
    return [asdict(time) for time in engine.kernel_times() if time.tokens in tokens]


def limits_of(options: argparse.Namespace) -> Limits:
    """Measure what the device can do, and print it."""
    limits = measure_limits(options.device)
    print("\n".join(limits.lines()), flush=True)
    return limits


def read_work(path: str, config: EngineConfig) -> StepWork:
    """Count what steps of a model must do."""
    return StepWork.of(ModelOnDisk.read(path, config.weights), config)


def write_reports(options: argparse.Namespace, reports: Sequence[dict[str, Any]]) -> None:
    """Write what there is so far, if a file is asked for."""
    if options.json:
        options.json.write_text(json.dumps({"reports": reports}, indent=1, default=asdict) + "\n")
