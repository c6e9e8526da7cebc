"""What strangers can do to a connection: send by halves, read nothing, stay for ever, be too many."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from typing import TYPE_CHECKING

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.frames import Opcode

from tests.server.fake_engine import words
from tests.server.pipe import Pipe
from tests.server.raw_connection import UPGRADE, from_client, post, raw
from tests.server.ws_client import connected, text_of
from unicorn_async.engine.types import FinishReason, Token
from unicorn_async.server import ServerOptions
from unicorn_async.server.http_protocol import HttpProtocol
from unicorn_async.server.keys import ApiKey
from unicorn_async.server.listener import bind, drop_silent
from unicorn_async.server.stall import StallWatch, Unread

if TYPE_CHECKING:
    from tests.server.conftest import Served, ServeWith
    from tests.server.fake_engine import FakeEngine

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
HUGE = "x" * (12 << 20)


@pytest.mark.parametrize(
    "sent", [b"", b"GET /health HT", b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\nGET", post("/v1/nothing", {"a": 1})[:-3]]
)
async def test_a_head_or_the_rest_of_a_body_that_does_not_come_ends_the_connection(
    serve_with: ServeWith, sent: bytes
) -> None:
    options = ServerOptions(header_timeout_s=0.1, idle_timeout_s=0.1)
    async with serve_with(options) as served, raw(served) as (reader, writer):
        writer.write(sent)
        async with asyncio.timeout(120):
            await reader.read()


async def test_bytes_that_trickle_do_not_keep_a_connection(serve_with: ServeWith) -> None:
    async with serve_with(ServerOptions(header_timeout_s=0.1)) as served, raw(served) as (reader, writer):
        ended = asyncio.create_task(reader.read())
        async with asyncio.timeout(120):
            while not ended.done():
                writer.write(b"G")
                await asyncio.sleep(0.01)


async def test_of_too_many_idle_connections_the_oldest_goes(serve_with: ServeWith) -> None:
    options = ServerOptions(max_connections=3, header_timeout_s=60, idle_timeout_s=60)
    async with serve_with(options) as served, contextlib.AsyncExitStack() as stack:
        readers = [(await stack.enter_async_context(raw(served)))[0] for _ in range(8)]
        async with httpx.AsyncClient(base_url=served.url) as client:
            assert (await client.get("/ready")).status_code == 200
        for reader in readers[:5]:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        assert not readers[-1].at_eof()


async def test_who_looks_after_the_server_is_answered_when_all_others_are_refused(serve_with: ServeWith) -> None:
    options = ServerOptions(max_connections=2)
    async with serve_with(options) as served, contextlib.AsyncExitStack() as stack:
        for _ in range(2):  # websockets count
            await stack.enter_async_context(connected(served.ws_url))
        async with httpx.AsyncClient(base_url=served.url) as client:
            refused = await client.post("/v1/chat/completions", json=CHAT)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_connections")
            assert refused.headers["retry-after"]
            assert (await client.get("/")).status_code == 503
            for path in ("/health", "/ready"):
                assert (await client.get(path)).status_code == 200
            with pytest.raises(InvalidStatus, match="503"):
                async with connected(served.ws_url):
                    pass
        await stack.aclose()
        async with connected(served.ws_url) as socket:
            await socket.create()
            assert text_of(await socket.answer()) == "Hello there, friend"


async def test_one_client_has_so_many_connections(serve_with: ServeWith) -> None:
    options = ServerOptions(max_client_connections=1, api_keys=(ApiKey("anna", "a"), ApiKey("ben", "b")))

    def bearer(key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    async with serve_with(options) as served, httpx.AsyncClient(base_url=served.url) as client:
        async with connected(served.ws_url, additional_headers=bearer("a")):
            refused = await client.get("/v1/models", headers=bearer("a"))
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_connections")
            assert (await client.get("/v1/models", headers=bearer("b"))).status_code == 200
        while (await client.get("/v1/models", headers=bearer("a"))).status_code == 429:
            pass


class CutOff(logging.Handler):
    """Waits for the line of the log that says that a client was cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "is cut off" in record.getMessage():
            self.seen.set()


async def test_of_too_much_that_nobody_takes_the_oldest_goes() -> None:
    unread, pipes = Unread(250_000), [Pipe() for _ in range(4)]
    watches = [StallWatch(60, unread) for _ in pipes]
    for watch, pipe in zip(watches, pipes, strict=True):
        watch.begin(pipe)
        if pipe is pipes[1]:
            watch.end()
    assert [pipe.aborted.is_set() for pipe in pipes] == [True, False, False, False]
    for watch in watches:
        watch.end()


@pytest.mark.parametrize("transport", ["websocket", "stream", "object"])
async def test_who_does_not_take_the_last_write_is_cut_off(
    serve_with: ServeWith, engine: FakeEngine, transport: str
) -> None:
    engine.script = [Token(0, HUGE), Token(1, "", finish_reason=FinishReason.STOP)]
    log = CutOff()
    logging.getLogger("unicorn_async.server").addHandler(log)
    async with serve_with(ServerOptions(send_timeout_s=0.15)) as served:
        async with httpx.AsyncClient(base_url=served.url) as client:
            name = (await client.post("/v1/responses", json={"input": "Hi", "background": True})).json()["id"]
            await engine.calls[0].closed.wait()
        async with raw(served) as (reader, writer):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            if transport == "websocket":
                writer.write(UPGRADE % b"/v1/responses")
                await reader.readuntil(b"\r\n\r\n")
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            if transport == "websocket":
                event = json.dumps({"type": "unicorn.resume", "response_id": name, "starting_after": 7}).encode()
                writer.write(from_client(Opcode.TEXT, event))
            else:
                query = b"?stream=true&starting_after=7" if transport == "stream" else b""
                writer.write(b"GET /v1/responses/%s%s HTTP/1.1\r\nhost: x\r\n\r\n" % (name.encode(), query))
            async with asyncio.timeout(120):
                await log.seen.wait()
    logging.getLogger("unicorn_async.server").removeHandler(log)


async def test_who_has_said_all_it_had_to_say_gets_a_stream(served: Served) -> None:
    async with raw(served) as (reader, writer):
        writer.write(post("/v1/chat/completions", {**CHAT, "stream": True}))
        writer.write_eof()
        assert (await reader.read()).rstrip().endswith(b"data: [DONE]\n\n\r\n0")


async def test_who_has_said_all_it_had_to_say_is_told_that_a_whole_answer_needs_the_connection(
    served: Served, engine: FakeEngine
) -> None:
    engine.hold[1] = asyncio.Event()
    async with raw(served) as (reader, writer):
        writer.write(post("/v1/chat/completions", dict(CHAT)))
        await engine.called.wait()
        writer.write_eof()
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b'"half_closed"' in answer
    await engine.calls[0].closed.wait()


async def test_who_is_gone_behind_a_half_closed_connection_ends_its_answer(served: Served, engine: FakeEngine) -> None:
    engine.hold[1] = asyncio.Event()
    async with raw(served) as (reader, writer):
        writer.write(post("/v1/chat/completions", {**CHAT, "stream": True}))
        await reader.readuntil(b"Hello")
        writer.close()
        async with asyncio.timeout(120):
            await engine.calls[0].closed.wait()


async def test_a_stream_shows_signs_of_life_while_nothing_comes(serve_with: ServeWith, engine: FakeEngine) -> None:
    engine.hold[0] = asyncio.Event()
    async with (
        serve_with(ServerOptions(keepalive_s=0.02)) as served,
        httpx.AsyncClient(base_url=served.url) as client,
        client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as response,
    ):
        lines = response.aiter_lines()
        num_comments = 0
        async for line in lines:
            num_comments += line.startswith(":")
            if num_comments == 2:
                engine.hold[0].set()
            assert not line or line.startswith((":", "data: "))
        assert line == "" or num_comments >= 2


@pytest.mark.parametrize("kind", ["stream", "whole", "websocket"])
async def test_an_answer_that_is_deleted_while_it_runs_ends_and_is_gone(
    served: Served, engine: FakeEngine, kind: str
) -> None:
    engine.script = words("Hello there, friend")
    engine.hold[1] = asyncio.Event()
    async with httpx.AsyncClient(base_url=served.url) as client, contextlib.AsyncExitStack() as stack:
        if kind == "websocket":
            socket_ = await stack.enter_async_context(connected(served.ws_url))
            await socket_.create()
        else:
            asking = asyncio.create_task(client.post("/v1/responses", json={"input": "Hi", "stream": kind == "stream"}))
        await engine.called.wait()
        name = engine.calls[0].request_id
        deleted = await client.delete(f"/v1/responses/{name}")
        assert (deleted.status_code, deleted.json()["deleted"]) == (200, True)
        assert (await client.get(f"/v1/responses/{name}")).status_code == 404
        await engine.calls[0].closed.wait()
        if kind == "websocket":
            assert (await socket_.answer())[-1]["response"]["status"] == "cancelled"
            await socket_.create("go on", previous_response_id=name)
            assert (await socket_.answer())[-1]["error"]["code"] == "previous_response_not_found"
        else:
            assert '"cancelled"' in (await asking).text
        assert (await client.get(f"/v1/responses/{name}")).status_code == 404
        assert (await client.delete(f"/v1/responses/{name}")).status_code == 404


def test_linux_drops_connections_whose_peer_is_silent() -> None:
    with bind("127.0.0.1", 0) as listener:
        drop_silent(listener, 7.5)
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7500


async def test_a_line_of_the_log_says_why_a_websocket_was_refused(
    serve_with: ServeWith, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_with(ServerOptions(max_connections=1)) as served, connected(served.ws_url):
        with caplog.at_level(logging.WARNING), pytest.raises(InvalidStatus):
            async with connected(served.ws_url):
                pass
    assert ["connections are busy" in record.getMessage() for record in caplog.records] == [True]


async def test_a_server_that_ends_drops_those_who_read_nothing_without_a_word(
    serve_with: ServeWith, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full = asyncio.Event()
    pause = HttpProtocol.pause_writing

    def paused(of: HttpProtocol) -> None:
        pause(of)
        is_full.set()

    monkeypatch.setattr(HttpProtocol, "pause_writing", paused)
    async with (
        asyncio.timeout(120),
        serve_with(ServerOptions(shutdown_timeout_s=0.05)) as served,
        raw(served) as (_, writer),
    ):
        writer.transport.pause_reading()
        while not is_full.is_set():
            writer.write(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 10)
            await asyncio.sleep(0)
        served.task.cancel()
        await asyncio.wait((served.task,))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
