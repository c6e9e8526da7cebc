#!/usr/bin/env python3
"""What the host does for a step and for a token that is sent, and whether the device ever waits for it.

    host_time.py MODEL [--streams 1 8 32 64] [--context 8] [--tokens 128] [--server-tokens 20000] [--device NAME]
                 [--weights int4] [--trace FILE] [--json FILE] [--dtype BF16] [--layers N] [--folder DIRECTORY] [--keep]

The runner: for each number of streams that decode at once, wall time a step outside of waiting (what `stats` calls
host_us_per_step), CPU time of the event loop's thread a step, and of that the parts that make a step: which tokens
(schedule), their arguments (write), the call to the driver (submit), what was sampled (read), what comes of it
(commit). The rest is the loop itself, waking up, and the consumers of the tokens, which are in this process here.
Clocks around each part are in all of these figures.

The device: submissions a step, and the gaps between consecutive steps by the device's own timestamps, from the end of
one to the begin of the next. --trace writes both beside each other, for the Perfetto UI; the device's clock is placed
so that no step ends after the host has seen it.

The server: CPU time a token that it sends, without a model, as server_tokens.py measures it. 0 tokens: not measured.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import model_options
import model_runs as runs
import server_tokens
import uvloop
from amounts import whole
from out_file import out_file
from refusals import run_script

from unicorn_async.cli.options import count
from unicorn_async.engine.engine_loop import EngineLoop
from unicorn_async.errors import ConfigError
from unicorn_async.gpu.queue import Queue
from unicorn_async.scheduler.scheduler import Scheduler
from unicorn_async.step import runner as runner_module
from unicorn_async.step.batch_writer import BatchWriter
from unicorn_async.step.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unicorn_async.step.result import StepResult

PARTS: tuple[tuple[str, Any, str], ...] = (
    ("schedule", Scheduler, "schedule"),
    ("write", BatchWriter, "write"),
    ("submit", Queue, "submit"),
    ("read", runner_module, "read_tokens"),
    ("commit", EngineLoop, "_commit"),
)
SEED = 27


@dataclass(frozen=True, slots=True)
class HostRun:
    """What one number of streams took of the host, and left of the device; µs a step, gaps in µs."""

    streams: int
    steps: int
    step_us: float
    host_us: float
    loop_cpu_us: float
    parts_us: dict[str, float]
    submissions: float
    gap_us: float
    gap_p99_us: float
    gap_share: float

    def lines(self) -> list[str]:
        """Return it for people."""
        parts = ", ".join(f"{name} {us:.0f}" for name, us in self.parts_us.items())
        return [
            f"{self.streams:3} streams, {self.steps} steps of {self.step_us:,.0f} µs: host {self.host_us:.0f} µs a"
            f" step, CPU of the loop {self.loop_cpu_us:.0f} µs ({parts})",
            f"    {self.submissions:.2f} submissions a step; between steps the device waits {self.gap_us:.1f} µs"
            f" (99 of 100: at most {self.gap_p99_us:.1f}), {self.gap_share:.2%} of the time",
        ]


@dataclass(slots=True)
class Watch:
    """What was seen of the parts and of the device's steps."""

    cpu_ns: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    events: list[tuple[str, int, int]] = field(default_factory=list)  # part, begin and end in ns of the wall clock
    steps: list[tuple[float, float, int]] = field(default_factory=list)  # device: begin and length in s; seen, in ns
    start_s: float = 0.0  # CPU time of the loop's thread at the first moment, and at the last one
    stop_s: float = 0.0

    def note_moment(self) -> None:
        """Begin with what is noted; or note that it ends, if it has begun."""
        self.stop_s = time.thread_time()
        if not self.start_s:
            self.start_s = self.stop_s
            for seen in (self.cpu_ns, self.calls, self.events, self.steps):
                seen.clear()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Put clocks around the parts, and note each step that is collected."""
        collect = Runner.collect

        @functools.wraps(collect)
        async def collected(runner: Runner, step: Any) -> StepResult:
            result = await collect(runner, step)
            self.steps.append((result.device_start_s, result.device_s, time.perf_counter_ns()))
            return result

        originals = [(owner, name, getattr(owner, name)) for _, owner, name in PARTS]
        for part, owner, name in PARTS:
            setattr(owner, name, self._clocked(part, getattr(owner, name)))
        Runner.collect = collected  # type: ignore[method-assign]
        try:
            yield
        finally:
            Runner.collect = collect  # type: ignore[method-assign]
            for owner, name, original in originals:
                setattr(owner, name, original)

    def _clocked(self, part: str, work: Any) -> Any:
        @functools.wraps(work)
        def clocked(*args: Any, **kwargs: Any) -> Any:
            wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
            try:
                return work(*args, **kwargs)
            finally:
                self.cpu_ns[part] += time.thread_time_ns() - cpu
                self.calls[part] += 1
                self.events.append((part, wall, time.perf_counter_ns()))

        return clocked

    def gaps_us(self) -> list[float]:
        """Return how long the device waited between steps."""
        return [1e6 * (after[0] - before[0] - before[1]) for before, after in itertools.pairwise(self.steps)]

    def trace(self) -> list[dict[str, Any]]:
        """Return events of a Chrome trace, in µs."""
        offset = min(seen / 1e9 - start - length for start, length, seen in self.steps)
        rows = [("device", "step", start + offset, length) for start, length, _ in self.steps]
        rows += [("host", part, start / 1e9, (stop - start) / 1e9) for part, start, stop in self.events]
        return [
            {"name": name, "ph": "X", "ts": 1e6 * start, "dur": 1e6 * length, "pid": 1, "tid": row}
            for row, name, start, length in rows
        ]


async def measure_runner(options: argparse.Namespace, path: str) -> dict[str, Any]:
    """Open the model, and decode with every number of streams."""
    most = max(options.streams)
    room = runs.decode_room(options.context, most, options.tokens, 1)
    config = model_options.engine_config(options, options.weights, streams=most, context=room)
    rng, found, trace = Random(SEED), [], []
    async with runs.opened(path, config) as engine:
        print(model_options.heading(engine, options, options.weights), flush=True)
        for streams in options.streams:
            watch = Watch()
            with watch.watching():
                moments = await runs.decode_windows(
                    engine,
                    rng,
                    streams=streams,
                    context=options.context,
                    tokens=options.tokens,
                    repeat=1,
                    on_moment=watch.note_moment,
                )
            run = host_run(watch, streams, *moments)
            print("\n".join(run.lines()), flush=True)
            found.append(run)
            trace = watch.trace()
        report = model_options.facts(engine, options, options.weights, model_options.read_work(path, config))
    if options.trace:
        options.trace.write_text(json.dumps({"traceEvents": trace}))
    return report | {"host": found}


def host_run(watch: Watch, streams: int, first: runs.Moment, last: runs.Moment) -> HostRun:
    """Sum up what was seen between two moments.

    Raises:
        ConfigError: too few steps were seen for a gap between two of them.
    """
    steps = last.steps - first.steps
    gaps = sorted(watch.gaps_us())
    if not gaps or not steps:
        raise ConfigError(f"{streams} streams: {len(watch.steps)} steps were seen, 2 are needed; ask for more --tokens")
    begin, end = watch.steps[0][0], watch.steps[-1][0] + watch.steps[-1][1]
    return HostRun(
        streams=streams,
        steps=steps,
        step_us=1e6 * (last.time_s - first.time_s) / steps,
        host_us=1e6 * (last.host_s - first.host_s) / steps,
        loop_cpu_us=1e6 * (watch.stop_s - watch.start_s) / steps,
        parts_us={name: watch.cpu_ns[name] / steps / 1e3 for name, _, _ in PARTS},
        submissions=watch.calls["submit"] / max(watch.calls["write"], 1),
        gap_us=statistics.median(gaps),
        gap_p99_us=gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))],
        gap_share=sum(gaps) / 1e6 / (end - begin),
    )


def measure_server(num_tokens: int) -> list[dict[str, object]]:
    """Measure what the server's process takes for a token, by transport and number of clients."""
    found = []
    for transport, clients in itertools.product(("websocket", "sse", "chat"), (1, 8)):
        run = uvloop.run(server_tokens.measure(transport, clients, num_tokens))
        print(f"server, {transport:9} {clients} clients: {run['cpu_us_per_token']} µs CPU a token", flush=True)
        found.append(run)
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="What the host does for a step and for a token that is sent.")
    model_options.add_model_options(parser)
    model_options.add_format_option(parser)
    parser.add_argument("--streams", type=count, nargs="+", default=[1, 8, 32, 64], metavar="N")
    parser.add_argument("--context", type=count, default=8, metavar="N", help="tokens of each prompt (default 8)")
    parser.add_argument("--tokens", type=count, default=128, metavar="N", help="steps that count (default 128)")
    parser.add_argument(
        "--server-tokens", type=whole, default=20_000, metavar="N", help="of each answer; 0 = no server"
    )
    parser.add_argument(
        "--trace", type=out_file, metavar="FILE", help="of the last number of streams, for the Perfetto UI"
    )
    options = model_options.parsed(parser)
    if options.tokens < 2:
        parser.error(f"--tokens: expected 2 steps or more, between which there is a gap, got {options.tokens}")
    if options.trace is not None and options.trace == options.json:
        parser.error(f"--trace and --json: both are to be written to {options.json}")
    with model_options.model_path(options) as path:
        report = uvloop.run(measure_runner(options, path))
    model_options.write_reports(options, [report])  # the next part may be cut off
    if options.server_tokens:
        report["server"] = measure_server(options.server_tokens)
    model_options.write_reports(options, [report])


if __name__ == "__main__":
    run_script(main)
