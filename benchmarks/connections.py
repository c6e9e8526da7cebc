#!/usr/bin/env python3
"""What it costs streams that many more clients are connected: gaps between tokens and memory, in turns in one run.

    connections.py [--clients 2000] [--streams 64] [--seconds 8] [--rounds 2] [--tokens 64] [--cores 0 1]
                   [--device NAME] [--json FILE] [-- OPTION OF `unicorn demo` ...]

`unicorn demo` is started with its limits raised to that number of connections and streams. Each of --streams websockets
asks for one answer after the other; in turns they are alone, and among websockets of another process that only stay
connected, --clients in all. Gaps are between deltas of one answer as its client gets them; the first second of a turn
is not counted. Memory is the server process's own (not shared), after one answer, at the end of each turn, and after
all have left.

With --cores the server has those cores alone; the clients have all. Else the machine's cores are shared by the server,
the clients and, with a software device, the model's steps: then gaps are those of the steps, and only their change says
what connections cost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from bench_device import DEVICE_HELP, check_fit
from command_line import out_file, positive, run_script, whole
from soak_clients import get
from soak_process import ServerProcess
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from unicorn_async.cli.options import count
from unicorn_async.config import EngineConfig, SpeculationMode
from unicorn_async.errors import UnicornError
from unicorn_async.resources import demo_model_dir

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from websockets.asyncio.client import ClientConnection

SPARE = 16  # connections, for /health and the like
SETTLE_S = 1.0
FINAL = {"response.completed", "response.incomplete"}
CONNECTED = """
import asyncio, resource, sys
from websockets.asyncio.client import connect
from websockets.protocol import State

most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

async def stay(url, number):
    sockets = []
    for _ in range(number):
        sockets.append(await connect(url, compression=None, ping_interval=None))
    print("connected", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(sum(socket.state is not State.OPEN for socket in sockets), flush=True)

asyncio.run(stay(sys.argv[1], int(sys.argv[2])))
"""


class ConnectionsError(UnicornError):
    """What was to be measured did not happen."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What the streams got among so many connected clients; gaps in ms."""

    clients: int
    tokens_per_s: float
    gap_p50: float
    gap_p99: float
    gap_max: float
    memory_bytes: int


@dataclass(slots=True)
class Gaps:
    """Gaps of all streams, while they are counted."""

    is_counting: bool = False
    seconds: list[float] = field(default_factory=list)
    num_deltas: int = 0

    def note(self, before: float, now: float) -> None:
        """Note a delta, and the gap before it unless it is an answer's first."""
        if self.is_counting:
            self.num_deltas += 1
            if before:
                self.seconds.append(now - before)


async def stream(url: str, tokens: int, gaps: Gaps, *, answers: int = sys.maxsize) -> None:
    """Ask for one answer after the other on a websocket.

    Raises:
        ConnectionsError: an answer is none.
    """
    body = {"input": "Write the numbers from one to one hundred.", "max_output_tokens": tokens, "store": False}
    request = json.dumps({"type": "response.create", "temperature": 0, **body})
    try:
        async with connect(url, compression=None, ping_interval=None) as socket:
            for _ in range(answers):
                await socket.send(request)
                await read_answer(socket, gaps)
    except WebSocketException as exc:
        raise ConnectionsError(f"a stream broke off: {exc}") from exc


async def read_answer(socket: ClientConnection, gaps: Gaps) -> None:
    """Read to the end of an answer."""
    last, kind = 0.0, ""
    while kind not in FINAL:
        event = json.loads(await socket.recv())
        kind = event["type"]
        if kind == "response.output_text.delta":
            now = time.perf_counter()
            gaps.note(last, now)
            last = now
        elif kind in ("error", "response.failed"):
            raise ConnectionsError(f"expected an answer, got {json.dumps(event)[:500]}")


@contextlib.asynccontextmanager
async def connected(url: str, number: int) -> AsyncIterator[None]:
    """Have so many clients connected by another process; they do nothing.

    Raises:
        ConnectionsError: they can't connect, or the server has closed some meanwhile.
    """
    pipes: dict[str, Any] = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", CONNECTED, url, str(number), **pipes)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if await process.stdout.readline() != b"connected\n":
            raise ConnectionsError(f"{number} clients could not connect")
        yield
        process.stdin.close()
        if num_closed := int(await process.stdout.readline()):
            raise ConnectionsError(f"the server closed {num_closed} of {number} connected clients")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()


async def run_turn(options: argparse.Namespace, server: ServerProcess, gaps: Gaps, clients: int) -> Turn:
    """Measure the streams that are under way, among so many clients with theirs."""
    url = socket_url(server)
    others = connected(url, clients - options.streams) if clients > options.streams else contextlib.nullcontext()
    async with others:
        await asyncio.sleep(SETTLE_S)
        gaps.seconds, gaps.num_deltas, gaps.is_counting = [], 0, True
        started = time.perf_counter()
        await asyncio.sleep(options.seconds)
        took_s, gaps.is_counting = time.perf_counter() - started, False
        if not gaps.seconds:
            raise ConnectionsError(f"no two deltas of an answer came in {options.seconds:g} s")
        p50, p99, most = (float(value) for value in np.percentile(gaps.seconds, (50, 99, 100)) * 1e3)
        return Turn(clients, gaps.num_deltas / took_s, p50, p99, most, server.held()["bytes"])


def socket_url(server: ServerProcess) -> str:
    """Return where its websockets are."""
    return server.url.replace("http", "ws", 1) + "/v1/responses"


async def run_turns(options: argparse.Namespace, server: ServerProcess) -> list[Turn]:
    """Take all turns with the streams beside; the first of them that fails ends all.

    Raises:
        ConnectionsError: a stream or a turn failed.
    """
    gaps, url = Gaps(), socket_url(server)
    turns: list[Turn] = []
    try:
        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(stream(url, options.tokens, gaps)) for _ in range(options.streams)]
            for number in range(options.rounds):
                for clients in [options.streams, options.clients][:: -1 if number % 2 else 1]:
                    turns.append(await run_turn(options, server, gaps, clients))
                    print(row(turns[-1]), flush=True)
            for task in streams:
                task.cancel()
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return turns


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Start the server and measure; returns the report."""
    connections = options.clients + SPARE
    limits = {"max-connections": connections, "max-client-connections": connections}
    limits |= {"max-num-seqs": options.streams, "max-client-requests": options.streams}
    flags = [f"--{name}={value}" for name, value in limits.items()] + ["--speculation=off"]
    flags += [f"--device={options.device}"] * bool(options.device) + options.options
    async with ServerProcess.started(flags, cores=options.cores) as server:
        await stream(socket_url(server), options.tokens, Gaps(), answers=1)  # once the model is loaded
        before = server.held()["bytes"]
        turns = await run_turns(options, server)
        await asyncio.sleep(SETTLE_S)
        after = server.held()["bytes"]
        health = await get(server.url, "/health")
    return {
        "device": health["device"],
        "memory_before": before,
        "memory_after": after,
        "running_after": health["stats"]["running"],
        "turns": [asdict(turn) for turn in turns],
    }


def changes(turns: Sequence[dict[str, Any]]) -> str:
    """Return what the medians of the turns among all clients are, in those of the turns alone."""

    def middle(name: str, clients: int) -> float:
        return statistics.median(turn[name] for turn in turns if turn["clients"] == clients)

    few, many = (choose(turn["clients"] for turn in turns) for choose in (min, max))
    names = {"gap_p50": "gap p50", "gap_p99": "p99", "tokens_per_s": "tok/s"}
    return ", ".join(f"{text} x {middle(name, many) / middle(name, few):.2f}" for name, text in names.items())


HEAD = f"{'clients':>8}{'tok/s':>9}{'gap p50':>10}{'p99':>9}{'max':>9} ms{'memory':>9} MiB"


def row(turn: Turn) -> str:
    """Return a turn for people."""
    gap = f"{turn.gap_p50:>10.1f}{turn.gap_p99:>9.1f}{turn.gap_max:>9.1f}   "
    return f"{turn.clients:>8}{turn.tokens_per_s:>9.1f}{gap}{turn.memory_bytes / 2**20:>9.1f}"


def options_of(given: Sequence[str]) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(description="What it costs streams that many more clients are connected.")
    parser.add_argument("--clients", type=count, default=2000, metavar="N", help="connected in all (default 2000)")
    parser.add_argument("--streams", type=count, default=64, metavar="N", help="of them, that ask (default 64)")
    parser.add_argument("--seconds", type=positive, default=8.0, metavar="S", help="of a turn (default 8)")
    parser.add_argument("--rounds", type=count, default=2, metavar="N", help="each with a turn of either kind")
    parser.add_argument("--tokens", type=count, default=64, metavar="N", help="of an answer at most (default 64)")
    parser.add_argument("--cores", type=whole, nargs="+", default=[], metavar="N", help="of the server (default: all)")
    parser.add_argument("--device", help=DEVICE_HELP)
    parser.add_argument("--json", type=out_file, metavar="FILE")
    end = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:end])
    options.options = list(given[end + 1 :])
    if not set(options.cores) <= os.sched_getaffinity(0):
        parser.error(f"--cores: expected some of {sorted(os.sched_getaffinity(0))}, got {options.cores}")
    if options.clients <= options.streams:
        parser.error(f"--clients: expected more than the {options.streams} streams, got {options.clients}")
    config = EngineConfig(device=options.device, max_num_seqs=options.streams, speculation=SpeculationMode.OFF)
    check_fit(parser, demo_model_dir(), config)
    return options


def main() -> None:
    """Measure, and print."""
    options = options_of(sys.argv[1:])
    print(HEAD, flush=True)
    found = asyncio.run(measure(options))
    names = ", ".join(value for value in found["device"].values() if isinstance(value, str))
    cores = f"the server on cores {options.cores}" if options.cores else "the server on all cores"
    print(f"among {options.clients:,} clients: {changes(found['turns'])}; {cores}")
    before, after = (found[name] / 2**20 for name in ("memory_before", "memory_after"))
    print(f"{names}; memory {before:.1f} MiB before, {after:.1f} MiB after, {found['running_after']} requests left")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run_script(main)
