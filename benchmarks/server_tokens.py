"""CPU time of the server for each token that it sends, without a model: python benchmarks/server_tokens.py.

A stand-in engine gives tokens as fast as they are taken, to several answers at once; a client process reads them.
The CPU time is the server process's own, from the first token to the last. No device takes part: the one that each
result names, as the server's /health does, is the stand-in's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from websockets.asyncio.client import connect

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.server.conftest import serving
from tests.server.fake_engine import FakeEngine
from unicorn_async.cli.options import count
from unicorn_async.engine.types import FinishReason, Token

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from unicorn_async.config import SamplingParams


TRANSPORTS = ("websocket", "sse", "chat")


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
    async with connect(url.replace("http", "ws") + "/v1/responses", compression=None) as socket:
        await socket.send(json.dumps({"type": "response.create", "input": "Hi", "store": False}))
        async for message in socket:
            if '"type":"response.completed"' in message:
                return


async def read_sse(url: str, path: str, body: dict[str, object]) -> None:
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
    with urllib.request.urlopen(f"{url}/health", timeout=30) as answer:
        health: dict[str, Any] = json.load(answer)
    return health


async def measure(transport: str, num_clients: int, num_tokens: int) -> dict[str, object]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=count, default=20_000, help="of each answer")
    parser.add_argument("--clients", type=count, nargs="+", default=[1, 8])
    parser.add_argument("--transports", choices=TRANSPORTS, nargs="+", default=TRANSPORTS)
    arguments = parser.parse_args()
    for transport in arguments.transports:
        for num_clients in arguments.clients:
            print(json.dumps(uvloop.run(measure(transport, num_clients, arguments.tokens))), flush=True)


if __name__ == "__main__":
    main()
