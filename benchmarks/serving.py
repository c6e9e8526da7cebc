#!/usr/bin/env python3
"""What clients of a server get: tokens a second, time to the first token and between tokens, beside llama-server.

    serving.py FILE [--streams 1 8 32] [--prompt 60] [--tokens 128] [--requests 2] [--rounds 1] [--json FILE]
               [--words FILE] [--llama-server "COMMAND {file} {port}"] [-- OPTION ...]

FILE is a GGUF file that both read (tools/make_gguf.py makes one). In each round `unicorn serve FILE OPTION ...` and
llama-server are started one after the other, and asked by the same client over /v1/completions as server-sent events:
so many streams at once, each with so many requests one after another. Prompts are words drawn at random, so that no
cache knows them (60 of the default words are about 512 tokens of tools/make_gguf.py's files); each answer goes on to
its last token (`ignore_eos`). Random weights repeat themselves, and proposals would gain by it: `-- --speculation off`.

A request of each stream goes ahead and is not counted. Tokens a second are all answers' tokens, as the servers' usage
counts them, by the time from the first request to the last answer's end. Gaps are between events that have text, from
the second on. The client is one process of this script: what it takes is in the figures of both.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h11
from command_line import LlamaCommand, out_file, run_script
from first_answer import Server, ServerError

from unicorn_async.cli.options import count

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

READ_BYTES = 1 << 16
SHARES = (0.5, 0.99)


@dataclass(slots=True)
class Answer:
    """One request: its tokens, and when it was sent and each piece of text came (seconds)."""

    sent_s: float
    pieces_s: list[float] = field(default_factory=list)
    tokens: int = 0
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """What so many streams got of one server in one round."""

    server: str
    round: int
    streams: int
    tokens_per_s: float
    prompt_tokens: float  # of a request
    first_s: tuple[float, float]  # the median, and what 99 of 100 are below
    gap_s: tuple[float, float]


def share(values: list[float], part: float) -> float:
    """Return the value that so many of them are not above."""
    ordered = sorted(values)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)] if ordered else float("nan")


async def events(port: int, body: dict[str, Any]) -> AsyncIterator[str]:
    """Ask a completion; the data of its events as they come.

    Raises:
        ServerError: it is not answered with 200, or the answer breaks off.
    """
    try:
        async for data in _events(port, body):
            yield data
    except (OSError, h11.RemoteProtocolError) as exc:
        raise ServerError(f"the answer broke off: {exc}") from exc


async def _events(port: int, body: dict[str, Any]) -> AsyncIterator[str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        client, data = h11.Connection(h11.CLIENT), json.dumps(body).encode()
        headers = [("Host", "127.0.0.1"), ("Content-Type", "application/json"), ("Content-Length", str(len(data)))]
        request = h11.Request(method="POST", target="/v1/completions", headers=headers)
        writer.writelines(
            part for part in map(client.send, (request, h11.Data(data), h11.EndOfMessage())) if part is not None
        )
        status, rest = 0, b""
        while True:
            event = client.next_event()
            if event is h11.NEED_DATA:
                client.receive_data(await reader.read(READ_BYTES))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                *lines, rest = (rest + event.data).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: "):
                        yield line[6:].decode()
            elif isinstance(event, h11.EndOfMessage):
                break
        if status != 200:
            raise ServerError(f"the server answered {status}: {rest[:300].decode(errors='replace')}")
    finally:
        writer.close()


async def ask(port: int, prompt: str, tokens: int) -> Answer:
    """Ask once, and note what came when."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    found = Answer(time.perf_counter())
    async for data in events(port, {**body, "stream_options": {"include_usage": True}}):
        if data == "[DONE]":
            continue
        event = json.loads(data)
        if "error" in event:
            raise ServerError(f"the server answered: {data[:300]}")
        if any(choice.get("text") for choice in event["choices"]):
            found.pieces_s.append(time.perf_counter())
        if usage := event.get("usage"):
            found.tokens, found.prompt_tokens = usage["completion_tokens"], usage["prompt_tokens"]
    if found.tokens != tokens:
        raise ServerError(f"an answer of {tokens} tokens was asked for, {found.tokens} came")
    return found


async def load(options: argparse.Namespace, server: str, port: int, number: int, streams: int) -> Load:
    """Ask as so many streams, each one request after another."""
    source = random.Random(f"{number} {streams}")

    def prompt() -> str:
        return " ".join(options.words[source.randrange(len(options.words))] for _ in range(options.prompt))

    async def stream(prompts: list[str]) -> list[Answer]:
        return [await ask(port, text, options.tokens) for text in prompts]

    await asyncio.gather(*(ask(port, prompt(), options.tokens) for _ in range(streams)))
    prompts = [[prompt() for _ in range(options.requests)] for _ in range(streams)]
    began = time.perf_counter()
    answers = [answer for part in await asyncio.gather(*map(stream, prompts)) for answer in part]
    took_s = time.perf_counter() - began
    firsts = [answer.pieces_s[0] - answer.sent_s for answer in answers]
    gaps = [b - a for answer in answers for a, b in zip(answer.pieces_s[1:], answer.pieces_s[2:], strict=False)]
    first, gap = (tuple(share(values, part) for part in SHARES) for values in (firsts, gaps))
    return Load(
        server,
        number,
        streams,
        sum(answer.tokens for answer in answers) / took_s,
        statistics.mean(answer.prompt_tokens for answer in answers),
        (first[0], first[1]),
        (gap[0], gap[1]),
    )


def commands(options: argparse.Namespace) -> dict[str, tuple[str, Callable[[int], list[str]]]]:
    """Return the servers' commands by their ports, behind what their /health says when they are ready."""
    words = [sys.executable, "-m", "unicorn_async", "serve", str(options.file), *options.options]
    found: dict[str, tuple[str, Callable[[int], list[str]]]] = {
        "unicorn": ("ready", lambda port: [*words, "--port", str(port)])
    }
    if options.llama_server is not None:
        peer = [word.replace("{file}", str(options.file)) for word in options.llama_server.words]
        found["llama-server"] = ("ok", lambda port: [word.replace("{port}", str(port)) for word in peer])
    return found


async def measure(options: argparse.Namespace) -> list[Load]:
    """Run the rounds, and print each load as it ends."""
    found = []
    for number in range(1, options.rounds + 1):
        for name, (ready, command) in commands(options).items():
            server = Server(command, {})
            with contextlib.closing(server):
                await server.connected()
                await server.watch(ready)
                if server.start.device:
                    device = server.start.device
                    kind = "SOFTWARE device" if device["software"] else "GPU"
                    print(f"{device['name']}, {device['driver']} {device['driver_info']}, {kind}", flush=True)
                for streams in options.streams:
                    found.append(await load(options, name, server.port, number, streams))
                    print(line(found[-1]), flush=True)
    return found


def line(found: Load) -> str:
    """Return a load as a line of the table."""
    first, gap = ([f"{value * 1e3:,.1f}" for value in values] for values in (found.first_s, found.gap_s))
    return (
        f"{found.round} {found.server:12} {found.streams:3} streams  {found.tokens_per_s:9,.1f} tok/s"
        f"  first token {first[0]:>9} ms (99%: {first[1]:>9})  gap {gap[0]:>7} ms (99%: {gap[1]:>8})"
        f"  prompts of {found.prompt_tokens:,.0f}"
    )


def ratios(found: list[Load]) -> list[str]:
    """Return, for each number of streams, the medians' ratios of unicorn and llama-server."""

    def middle(server: str, streams: int, what: Callable[[Load], float]) -> float:
        return statistics.median(what(load) for load in found if (load.server, load.streams) == (server, streams))

    facts: dict[str, Callable[[Load], float]] = {
        "tok/s": lambda load: load.tokens_per_s,
        "first token": lambda load: load.first_s[0],
        "first token, 99%": lambda load: load.first_s[1],
        "gap": lambda load: load.gap_s[0],
        "gap, 99%": lambda load: load.gap_s[1],
    }
    return [
        f"{streams:3} streams, unicorn / llama-server: "
        + ", ".join(
            f"{name} {middle('unicorn', streams, what) / middle('llama-server', streams, what):.2f}"
            for name, what in facts.items()
        )
        for streams in sorted({load.streams for load in found})
    ]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="What clients of `unicorn serve` get, beside llama-server's.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--streams", type=count, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=count, default=60, help="words of a prompt (default 60)")
    parser.add_argument("--words", type=Path, metavar="FILE", help="to draw from (default: t300 to t30000)")
    parser.add_argument("--tokens", type=count, default=128, help="tokens of an answer (default 128)")
    parser.add_argument("--requests", type=count, default=2, help="of each stream (default 2)")
    parser.add_argument("--rounds", type=count, default=1)
    parser.add_argument("--llama-server", type=LlamaCommand.parse, metavar="COMMAND", help="with {file} and {port}")
    parser.add_argument("--json", type=out_file, metavar="FILE")
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:end])
    options.options = given[end + 1 :]  # of `unicorn serve`
    if not options.file.is_file():
        parser.error(f"{options.file}: no such file")
    words = [f"t{number}" for number in range(300, 30000)]
    options.words = options.words.read_text(encoding="utf-8").split() if options.words else words
    found = asyncio.run(measure(options))
    if options.llama_server is not None:
        print("\n".join(ratios(found)))
    if options.json is not None:
        loads = [asdict(load) for load in found]
        options.json.write_text(json.dumps({"file": str(options.file), "options": options.options, "loads": loads}))


if __name__ == "__main__":
    run_script(main)
