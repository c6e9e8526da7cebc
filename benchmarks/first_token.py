#!/usr/bin/env python3
"""When the first token of an answer comes: from a server's start, with empty caches of kernels, and behind a load.

    first_token.py server [--repeat 3] [--json] [-- COMMAND ARGUMENT ...]
    first_token.py caches MODEL [--prompt 16] [--later 10] [--repeat 3] [--device NAME] [--json FILE]
    first_token.py load MODEL [--weights SCHEME] [--device NAME] [--repeat 5] [--short 16] [--long N] [--tokens 64]
                   [--one-step] [--only cold] [--llama "COMMAND {file}" [--gguf FILE]] [--json FILE]

server: it runs a command as a user would (the default is `unicorn demo --port 0` of this Python's environment), reads
the address from what it prints, asks over the websocket and stops the clock at the first piece of text. Cold runs get
an empty cache folder each (XDG_CACHE_HOME, also Mesa's); each is followed by a warm run with the same folder. The files
of Python and of the model are in the page cache from the second run on.

caches: MODEL is a directory or a GGUF file, whose files are read once before anything counts. Every start is a process
of its own, with random token ids and without a tokenizer. It asks at once, as soon as the model is loaded, or --later
seconds after that, as a user of a server would. In a round each of these is started with an empty folder for the
caches, the engine's and those of Mesa's and NVIDIA's drivers, and then again with what the first start has left there.

Wait: from the last layer's activation, or from the moment of asking if that is later, to the first token. Second: from
the first token to the second one, which is the first decoding step. Beside both, the same in the same process once
everything has run: what is above it was compiled, recorded or waited for. Medians with the lowest and the highest.

load is described in first_token_load.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import first_token_load
from command_line import add_part, amount, out_file, run_part, run_script
from websockets.asyncio.client import connect

from unicorn_async.cli.options import count
from unicorn_async.config import EngineConfig, SamplingParams
from unicorn_async.engine.engine import Engine

QUESTION = "What is 17 + 25?"
SERVER_TIMEOUT_S = 300.0
TIMEOUT_S = 600
ASKED = ("at once", "loaded", "later")
CACHES = ("empty", "full")
TOKENS = 4
CACHE_FOLDERS = ("XDG_CACHE_HOME", "MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH")


@dataclass(frozen=True, slots=True)
class ServerStart:
    """When the address, the first text and the whole answer were there, in seconds since the process was started."""

    address_s: float
    first_token_s: float
    answer_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Setting:
    """What the starts ran on, as the server's /health says."""

    model: str
    device: str
    driver: str
    software: bool
    kernels: list[str]

    @classmethod
    def ask(cls, url: str) -> Setting:
        """Ask the server; it blocks."""
        with urllib.request.urlopen(url, timeout=SERVER_TIMEOUT_S) as answer:
            health: dict[str, Any] = json.load(answer)
        device = health["device"]
        driver = f"{device['driver']} {device['driver_info']}"
        return cls(health["model"], device["name"], driver, device["software"], health["kernels"])

    def lines(self) -> list[str]:
        """Return what stands above and below the table."""
        kind = "SOFTWARE device" if self.software else "GPU"
        return [f"{self.model} on {self.device}, {self.driver}, {kind}", f"kernels: {', '.join(self.kernels)}"]


async def server_start(command: list[str], cache: Path) -> tuple[ServerStart, Setting, list[str]]:
    """Start the command with its caches in `cache`, ask, and end it; returns times, setting and what it printed."""
    environ = {**os.environ, "XDG_CACHE_HOME": str(cache), "MESA_SHADER_CACHE_DIR": str(cache / "mesa")}
    started = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*command, env=environ, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None, "it is a pipe"
    printed: list[str] = []
    drain: asyncio.Task[None] | None = None
    try:
        while not (found := re.search(r"^address\s+http://(\S+)", printed[-1] if printed else "")):
            line = await process.stderr.readline()
            if not line:
                raise SystemExit("the command ended: " + " ".join(printed))
            printed.append(line.decode().rstrip())
        address_s = time.perf_counter() - started
        drain = asyncio.create_task(collect(process.stderr, printed))
        first_token_s, text = await ask(f"ws://{found[1]}/v1/responses", started)
        start = ServerStart(address_s, first_token_s, time.perf_counter() - started, text)
        return start, await asyncio.to_thread(Setting.ask, f"http://{found[1]}/health"), printed
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        if drain is not None:
            await drain


async def collect(stream: asyncio.StreamReader, printed: list[str]) -> None:
    """Keep reading, so that the command never waits for us."""
    printed.extend([line.decode().rstrip() async for line in stream])


async def ask(url: str, started: float) -> tuple[float, str]:
    """Return when the first text came, in seconds since `started`, and the whole text."""
    first = 0.0
    async with connect(url) as socket:
        await socket.send(json.dumps({"type": "response.create", "input": QUESTION, "max_output_tokens": 64}))
        text = ""
        async for message in socket:
            event = json.loads(message)
            if event["type"] == "response.output_text.delta":
                first = first or time.perf_counter() - started
                text += event["delta"]
            elif event["type"] in ("response.completed", "response.incomplete"):
                return first, text
            elif event["type"] in ("response.failed", "error"):
                raise SystemExit(f"the server answered: {message!r}")
    raise SystemExit("the server closed the connection before the answer's end")


async def server_starts(command: list[str], repeat: int) -> tuple[dict[str, list[ServerStart]], Setting]:
    """Return cold and warm starts, which alternate, and what they ran on."""
    starts: dict[str, list[ServerStart]] = {"cold": [], "warm": []}
    for number in range(repeat):
        with tempfile.TemporaryDirectory() as cache:
            for kind, results in starts.items():
                async with asyncio.timeout(SERVER_TIMEOUT_S):
                    start, setting, printed = await server_start(command, Path(cache))
                if not number and kind == "cold":
                    print("\n".join(printed), file=sys.stderr)
                results.append(start)
    return starts, setting


@dataclass(frozen=True, slots=True)
class CacheStart:
    """One start; seconds, those of `load_s` from the process's own beginning of the work."""

    asked: str
    load_s: float
    wait_s: float
    second_s: float
    settled_wait_s: float
    settled_second_s: float
    device: str
    driver: str
    software: bool


async def one_start(options: argparse.Namespace) -> CacheStart:
    """Open the model, ask, and note when what happened."""
    rng, began = Random(options.prompt), time.monotonic()
    config = EngineConfig(
        device=options.device,
        allow_software=True,
        skip_tokenizer=True,
        weight_cache=False,
        max_num_seqs=1,
        max_context=options.prompt + TOKENS,
    )
    async with Engine.open(options.model, config=config) as engine:
        active = 0.0

        async def follow() -> None:
            nonlocal active
            async for _ in engine.load_progress():
                pass
            active = time.monotonic()

        async def asked_at() -> tuple[float, float, float]:
            prompt = [rng.randrange(engine.model_spec.vocab_size) for _ in range(options.prompt)]
            params = SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=0.0)
            asked = time.monotonic()
            first, second, *_ = [time.monotonic() async for _ in engine.stream(prompt, params)]
            return asked, first, second

        following = asyncio.create_task(follow())
        if options.start != "at once":
            await following
        if options.start == "later":
            await asyncio.sleep(options.later)
        asked, first, second = await asked_at()
        await following
        for _ in range(3):  # each of the frames records its commands
            settled = await asked_at()
        return CacheStart(
            options.start,
            active - began,
            first - max(asked, active),
            second - first,
            settled[1] - settled[0],
            settled[2] - settled[1],
            engine.device.name,
            f"{engine.device.driver_name} {engine.device.driver_info}",
            engine.device.is_software,
        )


def cache_start(options: argparse.Namespace, asked: str, folder: str) -> CacheStart:
    """Run one start in a process of its own, whose caches are in a folder."""
    command = [sys.executable, __file__, "caches", options.model, f"--start={asked}", f"--prompt={options.prompt}"]
    command += [f"--later={options.later}"] + [f"--device={options.device}"] * bool(options.device)
    environment = {**os.environ, **{name: str(Path(folder) / name.strip("_").lower()) for name in CACHE_FOLDERS}}
    for name in CACHE_FOLDERS:
        Path(environment[name]).mkdir(exist_ok=True)
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment)
    if done.returncode:
        print(done.stderr.strip(), file=sys.stderr)
        raise SystemExit(done.returncode)
    return CacheStart(**json.loads(done.stdout))


def cache_starts(options: argparse.Namespace) -> dict[tuple[str, str], list[CacheStart]]:
    """Run all rounds; returns starts by when they asked, and by the cache's state."""
    found: dict[tuple[str, str], list[CacheStart]] = {(asked, cache): [] for asked in ASKED for cache in CACHES}
    with tempfile.TemporaryDirectory() as folder:
        cache_start(options, "loaded", folder)  # reads the files
    for _ in range(options.repeat):
        for asked in ASKED:
            with tempfile.TemporaryDirectory() as folder:
                for cache in CACHES:
                    found[asked, cache].append(cache_start(options, asked, folder))
    return found


def spread(values: list[float]) -> str:
    """Median, lowest and highest, in milliseconds."""
    low, middle, high = (1e3 * value for value in (min(values), statistics.median(values), max(values)))
    return f"{middle:.0f} ms ({low:.0f} to {high:.0f})"


def cache_lines(found: dict[tuple[str, str], list[CacheStart]]) -> list[str]:
    """Return the report."""
    one = found[ASKED[0], CACHES[0]][0]
    report = [f"{one.device}, {one.driver}, {'SOFTWARE device' if one.software else 'GPU'}, {os.cpu_count()} cores"]
    for (asked, cache), starts in found.items():
        report.append(
            f"asked {asked}, cache {cache}: load {spread([s.load_s for s in starts])}, wait"
            f" {spread([s.wait_s for s in starts])}, later {spread([s.settled_wait_s for s in starts])}; second token"
            f" {spread([s.second_s for s in starts])}, later {spread([s.settled_second_s for s in starts])}"
        )
    return report


def run_server(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Measure starts of a server, and print."""
    command = options.command or [str(Path(sys.executable).parent / "unicorn"), "demo", "--port", "0"]
    if shutil.which(command[0]) is None:
        parser.error(f"{command[0]}: no such command")
    starts, setting = asyncio.run(server_starts(command, options.repeat))
    if options.json:
        times = {kind: [asdict(start) for start in results] for kind, results in starts.items()}
        print(json.dumps({**asdict(setting), **times}, indent=2))
        return
    where, kernels = setting.lines()
    print(where)
    for kind, results in starts.items():
        first = sorted(start.first_token_s for start in results)
        ready = statistics.median(start.address_s for start in results)
        print(
            f"{kind}: first token after {statistics.median(first):.2f} s ({first[0]:.2f} to {first[-1]:.2f},"
            f" {len(first)} starts), address after {ready:.2f} s, answer {results[0].text!r}"
        )
    print(kernels)


def run_caches(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Measure starts with empty and full caches, and print; or start once."""
    if not Path(options.model).exists():
        parser.error(f"{options.model}: no such folder or file")
    if options.start:
        print(json.dumps(asdict(asyncio.run(one_start(options)))))
        return
    found = cache_starts(options)
    print("\n".join(cache_lines(found)))
    if options.json:
        starts = [asdict(one) | {"cache": cache} for (_, cache), group in found.items() for one in group]
        options.json.write_text(json.dumps({"model": options.model, "starts": starts}, indent=1) + "\n")


def main() -> None:
    """Run the part that is asked for."""
    parser = argparse.ArgumentParser(description="When the first token of an answer comes.")
    parts = parser.add_subparsers(required=True, metavar="server, caches or load")

    server = add_part(parts, "server", run_server, "Seconds from the start of `unicorn demo` to its first token.")
    server.add_argument("--repeat", type=count, default=3, metavar="N", help="cold and warm starts each (default 3)")
    server.add_argument("--json", action="store_true")
    server.add_argument("command", nargs="*", help="what to start instead; it must print its address")

    caches = add_part(parts, "caches", run_caches, "What a first token waits for, with empty and full kernel caches.")
    caches.add_argument("model", help="a directory or a GGUF file")
    caches.add_argument("--prompt", type=count, default=16, metavar="N", help="tokens of the prompt (default 16)")
    caches.add_argument("--later", type=amount, default=10.0, metavar="S", help="between load and prompt (default 10)")
    caches.add_argument("--repeat", type=count, default=3, metavar="N", help="rounds (default 3)")
    caches.add_argument("--device", help="index or part of the name; a software device is taken where nothing else is")
    caches.add_argument("--json", type=out_file, metavar="FILE")
    caches.add_argument("--start", choices=ASKED, help=argparse.SUPPRESS)

    first_token_load.add(parts)
    run_part(parser)


if __name__ == "__main__":
    run_script(main)
