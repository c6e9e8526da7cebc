#!/usr/bin/env python3
"""How long people wait for the first token of `unicorn serve`: from the start of the process, over a websocket.

    first_answer.py MODEL [--repeat 5] [--states warm cold empty switch] [--question TEXT] [--weights SCHEME]
                    [--llama-server "COMMAND {file}" [--gguf FILE]] [--json FILE] [-- OPTION ...]

It starts what people start, `unicorn serve MODEL` of this Python's environment with its defaults (OPTIONs are added as
they are), connects as soon as that is possible, asks /health forty times a second, and a question over a websocket,
once it is connected. Written are, in seconds from the start of the process:

    connected      a connection was taken
    answered       /health was answered for the first time
    opening, …     /health said so for the first time
    tokenizer      how long the tokenizer took, by /health, beside everything else
    last byte      the load's own seconds, from its first read to the last active layer, by /health
    first token    the first piece of the answer's text was there

and CPU seconds of the process and of those that it waited for, with the largest resident memory of one of them.

States: warm, the files are in the page cache; cold, they were dropped from it; empty, warm with an
empty folder for the caches, ours (weights, tokenizers, pipelines) and the drivers'. A start before the rounds fills
those of the other two, and serves on for some seconds: a tokenizer is written beside that. PYTHONDONTWRITEBYTECODE is
left out of a server's environment: an installed package has its byte code. In the state switch the seconds are those
from a request to load the model once more, with a context shorter by one token, to a server that has it ready, with a
KV cache that has grown to its end.
In a round each state is started once, and llama-server behind each, warm or cold: a command that listens on {port} and
answers llama-server's /health and /v1/chat/completions.

With `--weights int4` the rounds load the model's entry in the weight cache; those with empty caches make it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_device import check_fit
from command_line import LlamaCommand, out_file, run_script
from load import drop, warm
from websockets.asyncio.client import connect

from unicorn_async.cli.options import count
from unicorn_async.config import EngineConfig, WeightScheme
from unicorn_async.engine.files import ModelFiles
from unicorn_async.errors import UnicornError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

QUESTION = "What is 17 + 25?"
TIMEOUT_S = 600.0
POLL_S = 0.005
HEALTH_S = 0.025  # each answer is work of the event loop that serves the load
FILL_S = 8.0  # for what is kept of a start, beside serving
STATES = ("warm", "cold", "empty", "switch")
CACHE_FOLDERS = ("XDG_CACHE_HOME", "MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH")
FACTS = ("connected", "answered", "opening", "loading", "ready", "tokenizer", "last byte", "first token", "cpu")


class ServerError(UnicornError):
    """A server that ended, or did not answer."""


@dataclass(slots=True)
class Start:
    """One start: seconds by what happened, and what the server said of its device."""

    seconds: dict[str, float] = field(default_factory=dict)
    peak_bytes: int = 0
    device: dict[str, Any] = field(default_factory=dict)


class Server:
    """A server in a process of its own, on a free port; leaving the block ends it, and notes what it used."""

    def __init__(self, command: Callable[[int], list[str]], environ: dict[str, str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.start = Start()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed with this)
        self.begun = time.monotonic()
        self._process = subprocess.Popen(
            command(self.port),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=_environment() | environ,
        )

    def begin(self) -> None:
        """Count from now on."""
        self.start, self.begun = Start(), time.monotonic()

    def note(self, what: str) -> None:
        """Note what happened now, unless it has before."""
        self.start.seconds.setdefault(what, time.monotonic() - self.begun)

    def load(self, model: str, max_context: int) -> None:
        """Begin to load a model in place of the one that is there."""
        url = f"http://127.0.0.1:{self.port}/v1/models/load"
        body = json.dumps({"model": model, "max_context": max_context}).encode()
        with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})):
            pass

    def health(self) -> dict[str, Any] | None:
        """Ask; None while there is no answer that says anything."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=TIMEOUT_S) as answer:
                found: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as exc:
            exc.close()
            return None
        except (OSError, ValueError):
            self.check()
            return None
        return found

    def check(self) -> None:
        """End the script if the server has ended."""
        if self._process.poll() is not None:
            self._log.seek(0)
            raise ServerError(f"the server ended: {self._log.read()[-500:].decode(errors='replace')}")

    async def connected(self) -> None:
        """Wait until a connection is taken."""
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                self.note("connected")
                return
            self.check()
            await asyncio.sleep(POLL_S)

    async def grown(self) -> dict[str, Any]:
        """Wait until the KV cache has all of its blocks; returns what /health says then."""
        while True:
            found = await asyncio.to_thread(self.health)
            if found is not None and found["stats"]["blocks_total"] == found["stats"]["blocks_planned"]:
                return found
            await asyncio.sleep(HEALTH_S)

    async def watch(self, until: str) -> None:
        """Note what /health says when it says it first, until it says this."""
        while True:
            found = await asyncio.to_thread(self.health)
            if found is not None:
                self.note("answered")
                self.note(status := str(found["status"]))
                if status == until:
                    load = found.get("load", {})
                    if "tokenizer_s" in load:
                        self.start.seconds |= {"tokenizer": load["tokenizer_s"], "last byte": load["seconds"]}
                        self.start.device = found["device"]
                    return
                if status == "error":
                    raise ServerError(f"the model could not be loaded: {found['error']}")
            await asyncio.sleep(HEALTH_S)

    def close(self) -> None:
        """End the server, and note what it used."""
        if self._process.poll() is None:
            self._process.terminate()
            _, status, used = os.wait4(self._process.pid, 0)
            self._process.returncode = os.waitstatus_to_exitcode(status)
            self.start.seconds["cpu"] = used.ru_utime + used.ru_stime
            self.start.peak_bytes = used.ru_maxrss << 10
        self._log.close()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


async def ask_unicorn(server: Server, question: str) -> None:
    """Ask over the websocket; returns at the first piece of text, and closes the connection."""
    async with connect(f"ws://127.0.0.1:{server.port}/v1/responses", open_timeout=TIMEOUT_S) as client:
        body = {"input": question, "max_output_tokens": 8, "temperature": 0}
        await client.send(json.dumps({"type": "response.create", **body}))
        async for message in client:
            event = json.loads(message)
            if event["type"] in ("error", "response.failed"):
                raise ServerError(f"the server answered: {message!r}")
            if event["type"] in ("response.output_text.delta", "response.completed", "response.incomplete"):
                server.note("first token")
                return
    raise ServerError("the server closed the connection before the answer")


def ask_llama(server: Server, question: str) -> None:
    """Ask llama-server, again and again while it loads; it blocks until the first piece of text."""
    body = {"messages": [{"role": "user", "content": question}], "stream": True, "max_tokens": 8, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    while True:
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                for line in answer:
                    delta = json.loads(line[6:])["choices"][0]["delta"] if line.startswith(b"data: {") else {}
                    if delta.get("content") or delta.get("reasoning_content"):
                        server.note("first token")
                        return
                raise ServerError("llama-server's answer had no text")
        except urllib.error.HTTPError as exc:
            exc.close()
            if exc.code != 503:
                raise ServerError(f"llama-server answered {exc.code}") from exc
        except OSError:
            server.check()
        time.sleep(POLL_S)


async def all_of(*parts: Coroutine[Any, Any, None]) -> None:
    """Run the parts at once; the first error ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(part)
    except ExceptionGroup as found:
        raise found.exceptions[0] from None


async def start_unicorn(options: argparse.Namespace, environ: dict[str, str], *, stay_s: float = 0.0) -> Start:
    """Start the server once, and measure; it serves for so many seconds more."""
    words = [sys.executable, "-m", "unicorn_async", "serve", options.model, "--weights", options.weights.value]
    server = Server(lambda port: [*words, "--port", str(port), *options.options], environ)
    with contextlib.closing(server):
        await server.connected()
        await all_of(server.watch("ready"), ask_unicorn(server, options.question))
        await asyncio.sleep(stay_s)
    return server.start


async def switch_unicorn(options: argparse.Namespace, environ: dict[str, str]) -> Start:
    """Start the server, load the same model in place of itself, and measure that."""
    words = [sys.executable, "-m", "unicorn_async", "serve", options.model, "--weights", options.weights.value]
    server = Server(lambda port: [*words, "--port", str(port), *options.options], environ)
    with contextlib.closing(server):
        await server.connected()
        await all_of(server.watch("ready"), ask_unicorn(server, options.question))
        found = await server.grown()
        server.begin()
        await asyncio.to_thread(server.load, found["model"], found["max_context"] - 1)
        await all_of(server.watch("ready"), ask_unicorn(server, options.question))
    return server.start


async def start_llama(options: argparse.Namespace) -> Start:
    """Start llama-server once, and measure."""
    words = [word.replace("{file}", str(options.gguf)) for word in options.llama_server.words]
    server = Server(lambda port: [word.replace("{port}", str(port)) for word in words], {})
    with contextlib.closing(server):
        await server.connected()
        await all_of(server.watch("ok"), asyncio.to_thread(ask_llama, server, options.question))
    return server.start


async def measure(options: argparse.Namespace, files: tuple[Path, ...]) -> dict[str, list[Start]]:
    """Run the rounds; starts by state, and llama-server's by "llama-server " and state."""
    found: dict[str, list[Start]] = {}
    with tempfile.TemporaryDirectory() as full:
        await start_unicorn(options, dict.fromkeys(CACHE_FOLDERS, full), stay_s=FILL_S)
        for number in range(options.repeat):
            for state in options.states:
                with tempfile.TemporaryDirectory() as empty:
                    (drop if state == "cold" else warm)(files)
                    folder = empty if state == "empty" else full
                    begin = switch_unicorn if state == "switch" else start_unicorn
                    start = await begin(options, dict.fromkeys(CACHE_FOLDERS, folder))
                found.setdefault(state, []).append(start)
                show(f"{number + 1}/{options.repeat} {state}", start)
                if options.llama_server is not None and state in ("warm", "cold"):
                    (drop if state == "cold" else warm)((options.gguf,))
                    peer = await start_llama(options)
                    found.setdefault(f"llama-server {state}", []).append(peer)
                    show(f"{number + 1}/{options.repeat} llama-server {state}", peer)
    return found


def show(name: str, start: Start) -> None:
    """Print one start."""
    print(f"{name}: " + ", ".join(f"{what} {value:.3f}" for what, value in start.seconds.items()), flush=True)


def summary(found: dict[str, list[Start]]) -> list[str]:
    """Return the table: medians, with the lowest and the highest."""
    lines = []
    for state, starts in found.items():
        for fact in FACTS:
            values = sorted(start.seconds[fact] for start in starts if fact in start.seconds)
            if values:
                middle = statistics.median(values)
                lines.append(f"{state:20} {fact:12} {middle:7.3f} s ({values[0]:.3f} to {values[-1]:.3f})")
        lines.append(f"{state:20} peak         {max(start.peak_bytes for start in starts) / 1e6:7.0f} MB")
    return lines


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description="Seconds from the start of `unicorn serve` to the first token of an answer."
    )
    parser.add_argument("model")
    parser.add_argument("--repeat", type=count, default=5, metavar="N", help="rounds (default 5)")
    parser.add_argument("--states", nargs="+", choices=STATES, default=["warm"])
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--weights", type=WeightScheme, default=WeightScheme.AUTO, metavar="SCHEME")
    parser.add_argument("--llama-server", type=LlamaCommand.parse, metavar="COMMAND", help="with {file} and {port}")
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="for llama-server (default: the model)")
    parser.add_argument("--json", type=out_file, metavar="FILE")
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:end])
    options.options = given[end + 1 :]  # of `unicorn serve`
    options.gguf = options.gguf or Path(options.model)
    device = options.options[options.options.index("--device") + 1] if "--device" in options.options[:-1] else None
    check_fit(parser, options.model, EngineConfig(weights=options.weights, device=device))
    files = ModelFiles.read(options.model).checkpoint.files
    found = asyncio.run(measure(options, files))
    used = found[options.states[0]][0].device
    kind = "SOFTWARE device" if used["software"] else "GPU"
    print(f"{used['name']}, {used['driver']} {used['driver_info']}, {kind}")
    print("\n".join(summary(found)))
    if options.json is not None:
        starts = {state: [asdict(start) for start in starts] for state, starts in found.items()}
        options.json.write_text(json.dumps({"model": options.model, "options": options.options, "starts": starts}))


if __name__ == "__main__":
    run_script(main)
