"""Frames of websockets as they are written, floods of them too, and what the log says of them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import TYPE_CHECKING, cast

import pytest
from websockets.frames import Frame, Opcode

from tests.server.pipe import Pipe, given, take_all, websocket_on
from tests.server.raw_connection import UPGRADE, from_client, raw
from unicorn_async.server import ServerOptions, websocket_protocol
from unicorn_async.server.keys import ApiKey
from unicorn_async.server.request_context import RequestContext, current
from unicorn_async.server.stall import Unread
from unicorn_async.server.websocket_protocol import MAX_IDLE_FRAMES, MAX_TURN_FRAMES, WebSocketProtocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.server.conftest import Served, ServeWith


async def test_a_handshake_that_a_server_s_end_leaves_unanswered_is_refused() -> None:
    pipe = Pipe()
    protocol = await websocket_on(pipe, is_open=False)
    protocol.shutdown()
    head, body = b"".join(pipe.written).split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in head
    assert json.loads(body)["error"]["code"] == "engine_closed"
    assert pipe.is_closing()


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
