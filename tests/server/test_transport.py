"""What strangers can do to a connection: send by halves, read nothing, stay for ever, write what is no HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import socket
from typing import TYPE_CHECKING, cast

import h11
import httpx
import pytest
from uvicorn import Config
from uvicorn.server import ServerState
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode

from tests.server.fake_engine import words
from tests.server.ws_client import connected, text_of
from unicorn_async.engine.types import FinishReason, Token
from unicorn_async.server import ServerOptions, websocket_protocol
from unicorn_async.server.http_protocol import HttpProtocol
from unicorn_async.server.keys import ApiKey
from unicorn_async.server.listener import bind, drop_silent
from unicorn_async.server.port import Port
from unicorn_async.server.request_context import RequestContext, current
from unicorn_async.server.stall import StallWatch, Unread
from unicorn_async.server.strict_http import MAX_TURN_EVENTS, StrictConnection
from unicorn_async.server.websocket_protocol import MAX_IDLE_FRAMES, MAX_TURN_FRAMES, WebSocketProtocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from tests.server.conftest import Served
    from tests.server.fake_engine import FakeEngine

    ServeWith = Callable[[ServerOptions], AbstractAsyncContextManager[Served]]

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
HUGE = "x" * (12 << 20)
UPGRADE = (
    b"GET %s HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@contextlib.asynccontextmanager
async def raw(served: Served) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect without speaking HTTP."""
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def post(path: str, body: dict[str, object], *, chunks: bool = False) -> bytes:
    text = json.dumps(body).encode()
    length = b"transfer-encoding: chunked" if chunks else b"content-length: %d" % len(text)
    head = b"POST %s HTTP/1.1\r\nhost: x\r\n%s\r\n\r\n" % (path.encode(), length)
    return head + (b"%x\r\n%s\r\n0\r\n\r\n" % (len(text), text) if chunks else text)


@pytest.mark.parametrize(
    "request_text",
    [
        b"GET /health HTTP/1.1\nhost: x\r\n\r\n",
        b"GET /health HTTP/1.1\nhost: x\n\n",
        b"GET /health HTTP/1.1\r\nhost: x\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\na: b\r\n c\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\na: b\r\n\tc\r\n\r\n",
        b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
        b"POST /v1/responses HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer a\r\nAuthorization: Bearer a\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost : x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\na: b\rc: d\r\n\r\n",
        b"\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
)
async def test_what_may_be_read_in_two_ways_is_refused(served: Served, request_text: bytes) -> None:
    async with raw(served) as (reader, writer):
        for part in (request_text[:20], request_text[20:]):
            writer.write(part)
            await writer.drain()
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400 "), answer
        assert answer.count(b"HTTP/1.1") == 1


HEAD = b"POST /v1/responses HTTP/1.1\r\nhost: x\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (HEAD + b"content-length: +5\r\n\r\nhello", 400),
        (HEAD + b"content-length: 99999999999999999999\r\n\r\n", 413),
        (HEAD + b"expect: 100-continue\r\ncontent-length: 99999999\r\n\r\n", 413),
        (HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n", 400),
        (HEAD + CHUNKED + b"1\r\n{\r\n-1\r\n", 400),
        (HEAD + b"a: b\0\r\n\r\n", 400),
        (HEAD + b"a:\r\n" * 128 + b"\r\n", 431),
        (HEAD + b"a: %s\r\n\r\n" % (b"x" * (32 << 10)), 431),
        (b"GET http://y/ready HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\nhost: x\r\n\r\n", 400),
        (b"GET http://x/ready HTTP/1.1\r\nhost: x\r\n\r\n", 200),
        (b"GET HTTP://X?a=b HTTP/1.1\r\nhost: x\r\n\r\n", 200),
    ],
    ids=[
        *("sign", "length", "expect", "coding", "chunk", "zero", "headers", "head", "host"),
        *("authority", "asterisk", "version", "absolute", "no-path"),
    ],
)
async def test_an_odd_request_has_its_answer_and_one_line_of_the_log(
    served: Served, caplog: pytest.LogCaptureFixture, request_text: bytes, status: int
) -> None:
    async with raw(served) as (reader, writer), asyncio.timeout(120):
        writer.write(request_text)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status)
        length = re.search(rb"content-length: (\d+)", head.lower())
        assert length is not None
        body = await reader.readexactly(int(length[1]))
        if status != 200:
            assert json.loads(body)["error"]["message"]
        port = writer.get_extra_info("sockname")[1]
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [str(port) in record.getMessage() for record in records] == [True] * (status in (400, 431))


async def test_a_body_that_breaks_behind_its_answer_ends_the_connection_alone(
    served: Served, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.hold[1] = asyncio.Event()
    async with httpx.AsyncClient(base_url=served.url) as client:
        name = (await client.post("/v1/responses", json={"input": "Hi", "background": True})).json()["id"]
        path = b"/v1/responses/%s?stream=true" % name.encode()
        async with raw(served) as (reader, writer), asyncio.timeout(120):
            writer.write(b"GET %s HTTP/1.1\r\nhost: x\r\n" % path + CHUNKED)
            await reader.readuntil(b"response.created")
            writer.write(b"no chunk\r\n")
            await reader.read()
        engine.hold[1].set()
        assert (await client.get("/ready")).status_code == 200
    assert [record.exc_info for record in caplog.records if record.levelno >= logging.WARNING] == [None]


async def test_a_body_in_many_parts_gets_a_bounded_part_of_each_turn_of_the_loop(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[int] = []
    next_event, handle = StrictConnection.next_event, HttpProtocol.handle_events

    def counted(of: StrictConnection) -> object:
        event = next_event(of)
        turns[-1] += isinstance(event, h11.Event)
        return event

    def handled(of: HttpProtocol) -> None:
        turns.append(0)
        handle(of)
        assert turns[-1] <= MAX_TURN_EVENTS

    monkeypatch.setattr(StrictConnection, "next_event", counted)
    monkeypatch.setattr(HttpProtocol, "handle_events", handled)
    text = json.dumps({"input": "Hi" * 1000}).encode()
    parts = b"".join(b"1\r\n%c\r\n" % byte for byte in text) + b"0\r\n\r\n"
    async with raw(served) as (reader, writer), asyncio.timeout(120):
        for _ in range(3):
            writer.write(HEAD + CHUNKED + parts + b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n")
        for _ in range(6):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            length = re.search(rb"content-length: (\d+)", head.lower())
            assert length is not None
            await reader.readexactly(int(length[1]))
    assert sum(turns) == 3 * (len(text) + 2 + 2)


@pytest.mark.parametrize(
    "request_text",
    [
        UPGRADE.replace(b"host: x", b"host: x\r\ncontent-length: 0") % b"/v1/responses",
        UPGRADE.replace(b"host: x", b"host: x\r\ncontent-length: 33") % b"/v1/responses",
        UPGRADE.replace(b"host: x", b"host: x\r\ntransfer-encoding: chunked") % b"/v1/responses",
        UPGRADE.replace(b"GET", b"POST") % b"/v1/responses",
        UPGRADE.replace(b"GET", b"HEAD") % b"/v1/responses",
        UPGRADE.replace(b"host: x", b"host: x\r\ncookie: " + b"x" * 9000) % b"/v1/responses",
        UPGRADE % (b"/v1/responses?" + b"x" * 9000),
    ],
    ids=["no-body", "body", "chunks", "post", "head", "long-header", "long-line"],
)
async def test_a_handshake_that_is_none_is_refused(served: Served, request_text: bytes) -> None:
    async with raw(served) as (reader, writer), asyncio.timeout(120):
        writer.write(request_text)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "invalid_handshake"


async def test_requests_that_are_written_as_they_should_be_are_answered(served: Served) -> None:
    async with raw(served) as (reader, writer):
        pipelined = b"GET /ready HTTP/1.1\r\nhost: x\r\na:\tb c\r\n\r\n"
        writer.write(post("/v1/responses", {"input": "a\nb"}, chunks=True) + pipelined + pipelined)
        for status in (b"200", b"200", b"200"):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 " + status)
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))


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


class Pipe(asyncio.Transport):
    """A transport that remembers what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.aborted = asyncio.Event()
        self.is_read = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 100_000

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return self.aborted.is_set()

    def abort(self) -> None:
        self.aborted.set()

    def close(self) -> None:
        self.abort()


async def websocket_on(pipe: Pipe, options: ServerOptions | None = None, *, is_open: bool = True) -> WebSocketProtocol:
    async def app(scope: object, receive: object, send: object) -> None:
        await asyncio.Event().wait()

    config = Config(app, lifespan="off", log_config=None)
    arguments = {"config": config, "server_state": ServerState(), "app_state": {}}
    protocol = WebSocketProtocol(Port.of(options or ServerOptions()), **arguments)
    protocol.connection_made(pipe)
    await given(protocol, UPGRADE % b"/")
    if is_open:
        await protocol.send({"type": "websocket.accept", "subprotocol": None, "headers": []})
        protocol.stop_keepalive()
        pipe.written.clear()
    return protocol


async def given(protocol: WebSocketProtocol, data: bytes) -> None:
    """Have a protocol take what came, in a turn of the loop that is its own."""
    for _ in range(2):
        await asyncio.sleep(0)
    protocol.data_received(data)


async def test_a_handshake_that_a_server_s_end_leaves_unanswered_is_refused() -> None:
    pipe = Pipe()
    protocol = await websocket_on(pipe, is_open=False)
    protocol.shutdown()
    head, body = b"".join(pipe.written).split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in head
    assert json.loads(body)["error"]["code"] == "engine_closed"
    assert pipe.is_closing()


async def take_all(protocol: WebSocketProtocol) -> None:
    while True:
        await protocol.receive()


def from_client(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


async def test_pings_of_who_reads_nothing_are_answered_once() -> None:
    pipe = Pipe()
    protocol = await websocket_on(pipe)
    protocol.pause_writing()
    for number in range(500):
        await given(protocol, from_client(Opcode.PING, b"%125d" % number))
    assert pipe.written == []
    protocol.resume_writing()
    assert pipe.written == [Frame(Opcode.PONG, b"%125d" % 499).serialize(mask=False)]
    await given(protocol, from_client(Opcode.PING, b"again"))
    assert pipe.written[1:] == [Frame(Opcode.PONG, b"again").serialize(mask=False)]
    for task in protocol.tasks:
        task.cancel()


@pytest.mark.parametrize(
    "frames",
    [
        *(from_client(opcode, b"") for opcode in (Opcode.PING, Opcode.PONG, Opcode.TEXT, Opcode.BINARY)),
        from_client(Opcode.TEXT, b"", fin=False) + from_client(Opcode.CONT, b""),
    ],
    ids=["pings", "pongs", "texts", "bytes", "parts"],
)
async def test_who_sends_frames_that_ask_for_nothing_without_end_is_sent_away(
    frames: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_protocol, "_IDLE_FRAMES_A_SECOND", 0)  # however long it takes
    pipe, seen = Pipe(), 0
    protocol = await websocket_on(pipe)
    handle = type(protocol)._may_idle

    def counted(of: WebSocketProtocol) -> bool:
        nonlocal seen
        seen += 1
        return handle(of)

    monkeypatch.setattr(WebSocketProtocol, "_may_idle", counted)
    protocol.tasks.add(asyncio.create_task(take_all(protocol)))
    protocol.data_received(frames * 20_000)  # what a socket gives at once
    async with asyncio.timeout(120):
        await pipe.aborted.wait()
    assert MAX_IDLE_FRAMES < seen < 2 * MAX_IDLE_FRAMES
    for _ in range(10):
        protocol.data_received(frames * 1000)
        await asyncio.sleep(0)
    assert seen < 2 * MAX_IDLE_FRAMES
    for task in protocol.tasks:
        task.cancel()


async def test_a_flood_tells_its_client_why_it_ends(served: Served) -> None:
    async with raw(served) as (reader, writer), asyncio.timeout(120):
        writer.write(UPGRADE % b"/v1/responses")
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(from_client(Opcode.PONG, b"") * 5000)
        assert b"frames that ask for nothing" in await reader.read()


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (from_client(Opcode.TEXT, b'{"type": "\xff, which is no text"}'), 1007),
        (from_client(Opcode.TEXT, b"\xc3", fin=False) + from_client(Opcode.CONT, b", half a letter"), 1007),
        (from_client(Opcode.CONT, b"the rest of nothing"), 1002),
        (b"\xf1\x80\0\0\0\0", 1002),
    ],
    ids=["text", "parts", "rest", "reserved-bits"],
)
@pytest.mark.parametrize("is_open", [True, False])
async def test_a_line_of_the_log_says_why_a_websocket_was_closed(
    served: Served, caplog: pytest.LogCaptureFixture, frames: bytes, code: int, is_open: bool
) -> None:
    async with raw(served) as (reader, writer), asyncio.timeout(120):
        writer.write(UPGRADE % b"/v1/responses" + (b"" if is_open else frames))
        if is_open:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(frames)
            assert (await reader.read())[2:4] == code.to_bytes(2)
        else:
            assert (await reader.read()).partition(b"\r\n\r\n")[2][2:4] == code.to_bytes(2)
        port = writer.get_extra_info("sockname")[1]
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [(str(port) in record.getMessage(), record.exc_info) for record in records] == [(True, None)]


@pytest.mark.parametrize("is_message", [False, True], ids=["parts", "messages"])
async def test_a_flood_gets_a_bounded_part_of_each_turn_of_the_loop(
    is_message: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, seen = Pipe(), 0
    protocol = await websocket_on(pipe)
    handle = type(protocol).handle_events

    def counted(of: WebSocketProtocol) -> None:
        nonlocal seen
        seen += 1
        handle(of)

    monkeypatch.setattr(WebSocketProtocol, "handle_events", counted)
    protocol.tasks.add(asyncio.create_task(take_all(protocol)))
    opcode = Opcode.TEXT if is_message else Opcode.CONT
    if not is_message:
        protocol.data_received(from_client(Opcode.TEXT, b"a", fin=False))
    most = 1 if is_message else MAX_TURN_FRAMES
    protocol.data_received(from_client(opcode, b"%016d" % 7, fin=is_message) * 500)
    num_turns = 0
    while seen < 500 + (not is_message):
        assert not pipe.is_read
        num_turns, earlier = num_turns + 1, seen
        await asyncio.sleep(0)
        assert seen - earlier <= most
        assert num_turns < 5000
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert pipe.is_read
    for task in protocol.tasks:
        task.cancel()


async def test_what_came_at_once_is_taken_in_order_to_its_end(served: Served) -> None:
    events = [json.dumps({"type": f"unknown {number}", "stream_id": str(number)}).encode() for number in range(300)]
    async with raw(served) as (reader, writer), asyncio.timeout(120):
        writer.write(UPGRADE % b"/v1/responses")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"".join(from_client(Opcode.TEXT, event) for event in events))
        answers = await reader.readuntil(b'"stream_id":"299"')
    found = re.findall(rb'"stream_id":"(\d+)"', answers)
    assert found == [b"%d" % number for number in range(300)]


async def test_a_message_in_a_million_parts_takes_what_it_has() -> None:
    protocol = await websocket_on(Pipe())
    await given(protocol, from_client(Opcode.TEXT, b"", fin=False))
    for _ in range(900):
        await given(protocol, from_client(Opcode.CONT, b"", fin=False) + from_client(Opcode.CONT, b"a", fin=False))
    assert len(protocol.frames) == 1
    await given(protocol, from_client(Opcode.CONT, b"!"))
    assert protocol.queue.get_nowait() == {"type": "websocket.connect"}
    message = cast("dict[str, object]", protocol.queue.get_nowait())
    assert message == {"type": "websocket.receive", "text": "a" * 900 + "!"}
    for task in protocol.tasks:
        task.cancel()


async def test_of_many_who_wait_to_write_one_fills_the_buffer() -> None:
    pipe = Pipe()
    protocol = await websocket_on(pipe)
    protocol.pause_writing()
    write = pipe.write

    def filling(data: bytes | bytearray | memoryview) -> None:
        write(data)
        protocol.pause_writing()

    pipe.write = filling  # type: ignore[method-assign]
    sending = [
        asyncio.create_task(protocol.send({"type": "websocket.send", "bytes": None, "text": str(n)})) for n in range(32)
    ]
    await asyncio.sleep(0)
    protocol.resume_writing()
    await asyncio.sleep(0)
    assert len(pipe.written) == 1
    for task in (*sending, *protocol.tasks):
        task.cancel()


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


CLOSE = from_client(Opcode.CLOSE, (1000).to_bytes(2))


@pytest.mark.parametrize("before", [b"", b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n"], ids=["first", "behind"])
@pytest.mark.parametrize("close", [CLOSE, from_client(Opcode.CLOSE, b"")], ids=["code", "empty"])
@pytest.mark.parametrize("key", [b"good", b"wrong"])
async def test_a_close_right_behind_a_handshake_comes_after_its_answer(
    serve_with: ServeWith, caplog: pytest.LogCaptureFixture, before: bytes, close: bytes, key: bytes
) -> None:
    asked = (UPGRADE % b"/v1/responses").replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer %s\r\n\r\n" % key)
    options = ServerOptions(api_keys=(ApiKey("it", "good"),))
    async with serve_with(options) as served, raw(served) as (reader, writer), asyncio.timeout(120):
        writer.write(before + asked + close)
        answers = await reader.read()
    status, rest = (b"101", close[:1]) if key == b"good" else (b"401", b'{"error"')
    *_, head, body = answers.split(b"\r\n\r\n")
    assert head.rpartition(b"HTTP/1.1 ")[2].startswith(status) and body.startswith(rest)
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.exc_info for record in records] == [None] * (key == b"wrong")


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


class Askers(logging.Handler):
    """Notes whose request each line is of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: list[str | None] = []

    def emit(self, record: logging.LogRecord) -> None:
        context = current.get()
        self.seen.append(None if context is None else f"{context.request_id} of {context.client.partition(' ')[0]}")


@pytest.fixture
def askers() -> Iterator[Askers]:
    handler, log = Askers(), logging.getLogger("unicorn_async.server")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


async def test_a_line_about_a_websocket_is_of_its_own_request(serve_with: ServeWith, askers: Askers) -> None:
    asked = UPGRADE % b"/v1/responses"
    options = ServerOptions(api_keys=(ApiKey("anna", "good"),))
    async with serve_with(options) as served, raw(served) as (reader, writer), asyncio.timeout(120):
        writer.write(asked[:-2] + b"x-request-id: hers\r\nauthorization: Bearer good\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(from_client(Opcode.TEXT, b"{}"))
        await reader.readuntil(b"}")
        writer.write(from_client(Opcode.CONT, b"the rest of nothing"))
        await reader.read()
    assert askers.seen == ["hers of anna"]


async def test_a_line_about_who_has_to_go_is_of_no_request(askers: Askers) -> None:
    unread, pipe = Unread(150_000), Pipe()
    current.set(RequestContext("hers", "anna"))
    unread.add(pipe, 100_000)
    unread.add(Pipe(), 100_000)
    assert pipe.is_closing() and askers.seen == [None]
