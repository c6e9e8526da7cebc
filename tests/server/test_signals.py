"""The server as a process: uvloop, and the signals that end it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.server.fake_library import FakeLibrary
from unicorn_async.server import ModelHost, ServerOptions
from unicorn_async.server import service as service_module
from unicorn_async.server.service import Service

PROGRAM = """
import asyncio, signal, sys, uvloop
from tests.server.fake_engine import FakeEngine
from unicorn_async.server import ServerOptions, serve

async def main():
    asyncio.get_running_loop().slow_callback_duration = 600  # of which PYTHONASYNCIODEBUG has the loop tell
    engine = FakeEngine()
    engine.hold[1] = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, engine.hold[1].set)
    options = ServerOptions(drain_s=float(sys.argv[1]), shutdown_timeout_s=600)
    await serve(engine, port=0, options=options, on_ready=lambda url: print(url, flush=True))
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


FURTHER = {
    "/v1/models/load": {"model": "other"},
    "/v1/models/unload": {},
    "/v1/completions": {"prompt": "Hi"},
    "/tokenize": {"content": "Hi"},
}


async def ask(url: str, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
    """Ask for an answer and wait for its first token; with it comes what a stream that was cut ends with."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    request, first, last = ANSWERS[path]
    body = json.dumps(request).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await reader.readuntil(first)
    return reader, writer, last


@pytest.mark.usefixtures("ctrl_c")
async def test_sigterm_lets_an_answer_end_where_it_may_and_refuses_others() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, "600", stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    reader, writer, _ = await ask(url, "/v1/responses")
    process.send_signal(signal.SIGTERM)
    async with httpx.AsyncClient(base_url=url) as client:
        async with asyncio.timeout(120):
            while (await client.get("/ready")).status_code == 200:
                pass
        assert (await client.get("/ready")).json() == {"ready": False, "status": "draining"}
        refused = await client.post("/v1/responses", json={"input": "Hi"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["retry-after"] == "5"
        for path, body in FURTHER.items():
            refused = await client.post(path, json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining"), path
    process.send_signal(signal.SIGUSR1)
    rest = await reader.read()
    assert b"response.completed" in rest
    assert await process.wait() == 0
    writer.transport.abort()


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(("drain", "signals"), [("0.05", 1), ("600", 2)])
async def test_an_answer_that_does_not_end_in_time_or_at_a_second_signal_is_cut_short(drain: str, signals: int) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, drain, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    reader, writer, last = await ask(url, "/v1/responses")
    for _ in range(signals):
        process.send_signal(signal.SIGTERM)
        async with httpx.AsyncClient(base_url=url) as client:
            with contextlib.suppress(httpx.TransportError):  # it has ended by then
                while (await client.get("/ready")).status_code == 200:
                    pass
    async with asyncio.timeout(300):
        assert last in await reader.read()
        assert await process.wait() == 0
    writer.transport.abort()


@pytest.mark.usefixtures("ctrl_c")
async def test_a_server_that_is_ended_at_once_ends_what_it_holds_in_order() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", PROGRAM, "0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    _, writer, _ = await ask(url, "/v1/responses")
    for number in (signal.SIGTERM, signal.SIGINT):
        process.send_signal(number)
    output, errors = await process.communicate()
    assert (process.returncode, output, errors) == (0, b"streams closed: [True]\n", b"")
    writer.transport.abort()


@pytest.mark.combinations("each signal amid either kind of answer")
@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("path", ANSWERS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_an_answer_under_way_and_the_server_at_once(number: signal.Signals, path: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, "0", stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    reader, writer, last = await ask(url, path)
    process.send_signal(number)
    signalled = time.monotonic()
    rest = await reader.read()
    assert b"the server is shutting down" in rest
    assert last in rest
    output = await process.stdout.read()
    assert await process.wait() == 0
    assert time.monotonic() - signalled < 300  # half of what it would give clients that take nothing
    assert output.decode() == "streams closed: [True]\n"
    writer.transport.abort()


async def test_who_ignores_hangups_goes_on_serving() -> None:
    program = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + PROGRAM
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, "0", stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    host, port = (await process.stdout.readline()).decode().strip().removeprefix("http://").split(":")
    process.send_signal(signal.SIGHUP)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.transport.abort()
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0


async def test_a_server_that_ends_waits_but_for_a_moment_for_who_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "TELL_TIMEOUT_S", 0.01)
    service = Service(ModelHost(FakeLibrary()), ServerOptions())
    with service.telling():
        async with asyncio.timeout(120):
            await service.stop()
