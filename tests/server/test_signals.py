"""The server as a process: uvloop, and the signals that end it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, uvloop
from tests.server.fake_engine import FakeEngine
from unicorn_async.server import serve

async def main():
    engine = FakeEngine()
    engine.hold[1] = asyncio.Event()
    await serve(engine, port=0, on_ready=lambda url: print(url, flush=True))
    print("streams closed:", [call.closed.is_set() for call in engine.calls], flush=True)

uvloop.run(main())
"""


ANSWERS = {
    "/v1/responses": ({"input": "Hi", "stream": True}, b"response.output_text.delta", b"event: response.failed"),
    "/v1/chat/completions": (
        {"messages": [{"role": "user", "content": "Hi"}], "stream": True},
        b'"content":"Hello"',
        b"data: [DONE]",
    ),
}


@pytest.mark.combinations("either signal amid either kind of answer")
@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("path", ANSWERS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_an_answer_under_way_and_the_server_at_once(number: signal.Signals, path: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    request, first, last = ANSWERS[path]
    body = json.dumps(request).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await reader.readuntil(first)
    process.send_signal(number)
    signalled = time.monotonic()
    rest = await reader.read()
    assert b"the server is shutting down" in rest
    assert last in rest
    output = await process.stdout.read()
    assert await process.wait() == 0
    assert time.monotonic() - signalled < 1.5
    assert output.decode() == "streams closed: [True]\n"
    writer.transport.abort()
