#!/usr/bin/env python3
"""What the host does for a step and for a token that is sent, and whether the device ever waits for it.

    host.py steps MODEL [--streams 1 8 32 64] [--context 8] [--tokens 128] [--device NAME] [--weights int4]
            [--trace FILE] [--json FILE] [--kv-dtype f16] [--dtype BF16] [--layers N] [--folder DIRECTORY] [--keep]
    host.py server [--clients 1 8] [--tokens 20000] [--transports websocket sse chat]

steps: for each number of streams that decode at once, wall time a step outside of waiting (what `stats` calls
host_us_per_step), CPU time of the event loop's thread a step, and of that the parts that make a step: which tokens
(schedule), their arguments (write), the call to the driver (submit), what was sampled (read), what comes of it
(commit). The rest is the loop itself, waking up, and the consumers of the tokens, which are in this process here.
Clocks around each part are in all of these figures. Of the device: submissions a step, and the gaps between consecutive
steps by its own timestamps, from the end of one to the begin of the next. --trace writes both beside each other, for
the Perfetto UI; the device's clock is placed so that no step ends after the host has seen it.

server: CPU time of the server for each token that it sends, without a model. A stand-in engine gives tokens as fast as
they are taken, to several answers at once; a client process reads them. The CPU time is the server process's own, from
the first token to the last. No device takes part: the one that each result names, as the server's /health does, is the
stand-in's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import itertools
import json
import multiprocessing
import statistics
import sys
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import bench_model
import model_runs as runs
import uvloop
from command_line import add_part, out_file, run_part, run_script
from websockets.asyncio.client import connect

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.server.conftest import serving
from tests.server.fake_engine import FakeEngine
from unicorn_async.cli.options import count
from unicorn_async.engine.engine_loop import EngineLoop
from unicorn_async.engine.types import FinishReason, Token
from unicorn_async.errors import ConfigError
from unicorn_async.gpu.queue import Queue
from unicorn_async.scheduler.scheduler import Scheduler
from unicorn_async.step import runner as runner_module
from unicorn_async.step.batch_writer import BatchWriter
from unicorn_async.step.runner import Runner

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from unicorn_async.sampling_params import SamplingParams
    from unicorn_async.step.result import StepResult

PARTS: tuple[tuple[str, Any, str], ...] = (
    ("schedule", Scheduler, "schedule"),
    ("write", BatchWriter, "write"),
    ("submit", Queue, "submit"),
    ("read", runner_module, "read_tokens"),
    ("commit", EngineLoop, "_commit"),
)
SEED = 27
TRANSPORTS = ("websocket", "sse", "chat")


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


async def measure_steps(options: argparse.Namespace, path: str) -> dict[str, Any]:
    """Open the model, and decode with every number of streams."""
    most = max(options.streams)
    room = runs.decode_room(options.context, most, options.tokens, 1)
    config = bench_model.engine_config(options, options.weights, streams=most, context=room)
    rng, found, trace = Random(SEED), [], []
    async with runs.opened(path, config) as engine:
        print(bench_model.heading(engine, options, options.weights), flush=True)
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
        report = bench_model.facts(engine, options, options.weights, bench_model.read_work(path, config))
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


class EndlessEngine(FakeEngine):
    """Gives a token to every answer in each turn of the loop, as a step of a batch does."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__()
        self.num_tokens = num_tokens
        self.max_context = num_tokens + 100

    async def stream(
        self, prompt: str | Sequence[int], sampling: SamplingParams | None = None, *, request_id: str | None = None
    ) -> AsyncGenerator[Token, None]:
        for index in range(self.num_tokens):
            await asyncio.sleep(0)
            yield Token(index, " token", finish_reason=FinishReason.STOP if index == self.num_tokens - 1 else None)


async def read_websocket(url: str) -> None:
    """Read an answer's events."""
    async with connect(url.replace("http", "ws") + "/v1/responses", compression=None) as socket:
        await socket.send(json.dumps({"type": "response.create", "input": "Hi", "store": False}))
        async for message in socket:
            if '"type":"response.completed"' in message:
                return


async def read_sse(url: str, path: str, body: dict[str, object]) -> None:
    """Read an answer's bytes."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\ncontent-length: {len(payload)}\r\n\r\n"
    writer.write(head.encode() + payload)
    status = await reader.readline()
    if b" 200 " not in status:
        raise SystemExit(f"{path}: {status!r}")
    while await reader.read(1 << 16):
        pass
    writer.close()


def read_all(url: str, transport: str, num_clients: int) -> None:
    """Be so many clients; what the process of the clients runs."""

    async def run() -> None:
        if transport == "websocket":
            await asyncio.gather(*(read_websocket(url) for _ in range(num_clients)))
            return
        ask: dict[str, object] = {"stream": True, "store": False, "input": "Hi"}
        chat: dict[str, object] = {"stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        path, body = ("/v1/responses", ask) if transport == "sse" else ("/v1/chat/completions", chat)
        await asyncio.gather(*(read_sse(url, path, body) for _ in range(num_clients)))

    uvloop.run(run())


def read_health(url: str) -> dict[str, Any]:
    """Ask the server what it runs on."""
    with urllib.request.urlopen(f"{url}/health", timeout=30) as answer:
        health: dict[str, Any] = json.load(answer)
    return health


async def measure_server(transport: str, num_clients: int, num_tokens: int) -> dict[str, object]:
    """Have clients read answers of so many tokens each."""
    async with serving(EndlessEngine(num_tokens)) as served:
        health = await asyncio.to_thread(read_health, served.url)
        context = multiprocessing.get_context("spawn")
        client = context.Process(target=read_all, args=(served.url, transport, num_clients))
        client.start()
        cpu, wall = time.process_time(), time.perf_counter()
        await asyncio.to_thread(client.join)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    if client.exitcode:
        raise SystemExit(f"{transport}, {num_clients} clients: their process ended with status {client.exitcode}")
    tokens = num_clients * num_tokens
    device = health["device"]
    return {
        "device": device["name"],
        "driver": f"{device['driver']} {device['driver_info']}",
        "software": device["software"],
        "kernels": health["kernels"],
        "transport": transport,
        "clients": num_clients,
        "tokens": tokens,
        "cpu_us_per_token": round(cpu / tokens * 1e6, 1),
        "tokens_per_s": round(tokens / wall),
    }


def run_steps(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Measure, print, write."""
    bench_model.check_model(options, parser)
    if options.tokens < 2:
        parser.error(f"--tokens: expected 2 steps or more, between which there is a gap, got {options.tokens}")
    if options.trace is not None and options.trace == options.json:
        parser.error(f"--trace and --json: both are to be written to {options.json}")
    with bench_model.model_path(options) as path:
        bench_model.write_reports(options, [uvloop.run(measure_steps(options, path))])


def run_server(options: argparse.Namespace, _: argparse.ArgumentParser) -> None:
    """Measure and print, by transport and number of clients."""
    for transport, clients in itertools.product(options.transports, options.clients):
        print(json.dumps(uvloop.run(measure_server(transport, clients, options.tokens))), flush=True)


def main() -> None:
    """Run the part that is asked for."""
    parser = argparse.ArgumentParser(description="What the host does for a step, and for a token that is sent.")
    parts = parser.add_subparsers(required=True, metavar="steps or server")

    steps = add_part(parts, "steps", run_steps, "The host's time a step, and how long the device waits for it.")
    bench_model.add_model_options(steps)
    bench_model.add_format_option(steps)
    steps.add_argument("--streams", type=count, nargs="+", default=[1, 8, 32, 64], metavar="N")
    steps.add_argument("--context", type=count, default=8, metavar="N", help="tokens of each prompt (default 8)")
    steps.add_argument("--tokens", type=count, default=128, metavar="N", help="steps that count (default 128)")
    text = "of the last number of streams, for the Perfetto UI"
    steps.add_argument("--trace", type=out_file, metavar="FILE", help=text)

    server = add_part(parts, "server", run_server, "The server's CPU time a token, without a model.")
    server.add_argument("--tokens", type=count, default=20_000, help="of each answer")
    server.add_argument("--clients", type=count, nargs="+", default=[1, 8])
    server.add_argument("--transports", choices=TRANSPORTS, nargs="+", default=TRANSPORTS)
    run_part(parser)


if __name__ == "__main__":
    run_script(main)
