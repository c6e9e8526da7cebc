"""Seconds from starting `unicorn demo` to the first token of an answer, with an empty shader cache and with a full one.

    python benchmarks/first_token.py [--repeat N] [--json] [-- COMMAND ARGUMENT ...]

It runs the command as a user would (the default is `unicorn demo --port 0` of this Python's environment), reads the
address from what it prints, asks over the websocket and stops the clock at the first piece of text. Cold runs get an
empty cache folder each (XDG_CACHE_HOME, also Mesa's); each is followed by a warm run with the same folder. The files of
Python and of the model are in the page cache from the second run on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect

from unicorn_async.cli.options import count

QUESTION = "What is 17 + 25?"
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Start:
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
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            health: dict[str, Any] = json.load(answer)
        device = health["device"]
        driver = f"{device['driver']} {device['driver_info']}"
        return cls(health["model"], device["name"], driver, device["software"], health["kernels"])

    def lines(self) -> list[str]:
        """Return what stands above and below the table."""
        kind = "SOFTWARE device" if self.software else "GPU"
        return [f"{self.model} on {self.device}, {self.driver}, {kind}", f"kernels: {', '.join(self.kernels)}"]


async def measure(command: list[str], cache: Path) -> tuple[Start, Setting, list[str]]:
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
        start = Start(address_s, first_token_s, time.perf_counter() - started, text)
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


async def run(command: list[str], repeat: int) -> tuple[dict[str, list[Start]], Setting]:
    """Return cold and warm starts, which alternate, and what they ran on."""
    starts: dict[str, list[Start]] = {"cold": [], "warm": []}
    for number in range(repeat):
        with tempfile.TemporaryDirectory() as cache:
            for kind, results in starts.items():
                async with asyncio.timeout(TIMEOUT_S):
                    start, setting, printed = await measure(command, Path(cache))
                if not number and kind == "cold":
                    print("\n".join(printed), file=sys.stderr)
                results.append(start)
    return starts, setting


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Seconds from the start of `unicorn demo` to its first token.")
    parser.add_argument("--repeat", type=count, default=3, metavar="N", help="cold and warm starts each (default 3)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("command", nargs="*", help="what to start instead; it must print its address")
    options = parser.parse_args()
    command = options.command or [str(Path(sys.executable).parent / "unicorn"), "demo", "--port", "0"]
    if shutil.which(command[0]) is None:
        parser.error(f"{command[0]}: no such command")
    starts, setting = asyncio.run(run(command, options.repeat))
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


if __name__ == "__main__":
    main()
