"""The server as a process: uvloop, and the signals that end it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, uvloop
from tests.server.fake_engine import FakeEngine
from unicorn_async.server import ServerOptions, serve

async def main():
    engine = FakeEngine()
    engine.hold[1] = asyncio.Event()
    options = ServerOptions(shutdown_timeout_s=1)
    await serve(engine, port=0, options=options, on_ready=lambda url: print(url, flush=True))
    print("streams closed:", [call.closed.is_set() for call in engine.calls], flush=True)

uvloop.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_the_server_in_order_with_an_answer_under_way(number: signal.Signals) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"input": "Hi", "stream": True}).encode()
    writer.write(b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    await reader.readuntil(b"response.output_text.delta")
    process.send_signal(number)
    output = await process.stdout.read()
    assert await process.wait() == 0
    assert output.decode() == "streams closed: [True]\n"
    writer.transport.abort()
