"""Messages of websockets that don't come whole: their bytes are their client's, and they have a deadline."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import TYPE_CHECKING

import httpx
import pytest
from websockets.frames import Frame, Opcode

from tests.server.pipe import Pipe, given, take_all, websocket_on
from tests.server.raw_connection import UPGRADE, from_client, raw
from unicorn_async.server import ServerOptions, websocket_protocol
from unicorn_async.server.connection import UNFINISHED
from unicorn_async.server.keys import ApiKey
from unicorn_async.server.ledger import Ledger
from unicorn_async.server.websocket import MAX_KEY_BYTES
from unicorn_async.server.websocket_protocol import MAX_IDLE_FRAMES, WebSocketProtocol

if TYPE_CHECKING:
    from tests.server.conftest import ServeWith

AT_ONCE = ServerOptions(receive_timeout_s=1e-9)
PART = from_client(Opcode.TEXT, b"x" * 200_000, fin=False)
SHORT = from_client(Opcode.TEXT, b"x" * 1_000, fin=False)  # which a server reads at once, up to its end
HALF = from_client(Opcode.TEXT, b"x" * 200_008)[:-8]
KEY = ApiKey("anna", "a-key")


def upgrade(*, key: str | None) -> bytes:
    """Return a handshake; a browser's has no key."""
    header = b"origin: http://127.0.0.1\r\n" if key is None else f"authorization: Bearer {key}\r\n".encode()
    return (UPGRADE % b"/v1/responses").replace(b"upgrade: websocket\r\n", header + b"upgrade: websocket\r\n")


async def opened(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, key: str | None = KEY.key
) -> asyncio.StreamReader:
    writer.write(upgrade(key=key))
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    return reader


async def closing_of(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Return the code and reason of the close frame that ends a connection."""
    received = await reader.read()
    return int.from_bytes(received[2:4]), received[4:].decode()


def ledger() -> Ledger:
    return Ledger(300_000, what="bytes", code="too_much")


@pytest.mark.parametrize("begun", [PART, HALF], ids=["part", "half"])
async def test_what_has_come_of_a_message_counts_as_its_clients(begun: bytes) -> None:
    counted, pipes = ledger(), [Pipe(), Pipe()]
    first, second = [await websocket_on(pipe) for pipe in pipes]
    await given(first, begun[:1000])
    for protocol in (first, second):
        protocol.app_state[UNFINISHED](counted.claim("anna", 0))
    await given(first, begun[1000:])
    assert 200_000 <= counted.held["anna"] <= 200_020
    await given(second, begun)
    assert [pipe.is_closing() for pipe in pipes] == [False, True]
    assert 200_000 <= counted.held["anna"] <= 200_020
    for protocol in (first, second):
        protocol.connection_lost(ConnectionResetError())
        for task in protocol.tasks:
            task.cancel()
    assert counted.held == {}


async def test_a_whole_message_counts_until_it_is_taken() -> None:
    counted = ledger()
    protocol = await websocket_on(Pipe())
    protocol.app_state[UNFINISHED](counted.claim("anna", 0))
    await protocol.receive()  # websocket.connect
    await given(protocol, PART + from_client(Opcode.CONT, b"x"))
    assert counted.held == {"anna": 200_001}
    assert len((await protocol.receive())["text"]) == 200_001  # type: ignore[typeddict-item]
    assert counted.held == {}
    for task in protocol.tasks:
        task.cancel()


async def test_who_has_too_much_of_messages_under_way_is_sent_away(serve_with: ServeWith) -> None:
    options = ServerOptions(api_keys=(KEY,), max_client_input_bytes=200_500)
    async with (
        serve_with(options) as served,
        httpx.AsyncClient(base_url=served.url, headers={"authorization": f"Bearer {KEY.key}"}) as client,
        asyncio.timeout(120),
    ):
        async with raw(served) as holds, raw(served) as asks:
            reader = await opened(*holds)
            holds[1].write(PART + from_client(Opcode.PING, b"taken"))
            await reader.readuntil(b"taken")
            body = {"input": "x" * 1_000}
            assert (await client.post("/v1/responses", json=body)).json()["error"]["code"] == "too_much_input"
            refused = await opened(*asks)
            asks[1].write(SHORT)
            code, reason = await closing_of(refused)
            assert code == 1013 and "bytes of requests under way: anna has 2000" in reason
        while (await client.post("/v1/responses", json=body)).status_code == 429:
            pass


@pytest.mark.parametrize(
    ("begun", "message"),
    [
        (PART, b"\x03\xf1bytes of an API key: 127.0.0.1 has "),  # behind the code 1009
        (HALF, b"\x03\xf1bytes of an API key: 127.0.0.1 has "),
        (from_client(Opcode.TEXT, b"x" * (MAX_KEY_BYTES + 1)), b"\x03\xf1API key"),
    ],
    ids=["part", "half", "whole"],
)
async def test_before_its_key_a_browser_has_no_room_but_for_that(
    serve_with: ServeWith, begun: bytes, message: bytes
) -> None:
    async with serve_with(ServerOptions(api_keys=(KEY,))) as served, raw(served) as (reader, writer):
        async with asyncio.timeout(120):
            await opened(reader, writer, key=None)
            writer.write(begun)
            assert message in await reader.readuntil(message)


@pytest.mark.parametrize("begun", [PART, HALF], ids=["part", "half"])
async def test_nothing_of_a_message_is_kept_behind_the_connections_end(begun: bytes) -> None:
    tracemalloc.start()
    try:
        protocol = await websocket_on(Pipe())
        await given(protocol, begun[:100])
        before = tracemalloc.get_traced_memory()[0]
        await given(protocol, begun[100:])
        assert tracemalloc.get_traced_memory()[0] - before > 190_000
        protocol.connection_lost(ConnectionResetError())
        assert tracemalloc.get_traced_memory()[0] - before < 50_000
    finally:
        tracemalloc.stop()
    for task in protocol.tasks:
        task.cancel()


async def test_after_its_key_they_count_as_the_keys(serve_with: ServeWith) -> None:
    options = ServerOptions(api_keys=(KEY,), max_client_input_bytes=200_500)
    async with serve_with(options) as served, raw(served) as holds, raw(served) as asks, asyncio.timeout(120):
        auth = json.dumps({"type": "unicorn.auth", "key": KEY.key}).encode()
        for reader, writer in (holds, asks):
            await opened(reader, writer, key=None)
            writer.write(from_client(Opcode.TEXT, auth))
            await reader.readuntil(b"unicorn.authenticated")
            await reader.readuntil(b"}")
        holds[1].write(PART + from_client(Opcode.PING, b"taken"))
        await holds[0].readuntil(b"taken")
        asks[1].write(SHORT)
        code, reason = await closing_of(asks[0])
        assert code == 1013 and "anna has 2000" in reason


@pytest.mark.parametrize("begun", [PART, HALF, b"\x81"], ids=["part", "half", "byte"])
async def test_a_message_has_to_come_whole_in_time(serve_with: ServeWith, begun: bytes) -> None:
    options = ServerOptions(api_keys=(KEY,), receive_timeout_s=0.05)
    async with serve_with(options) as served, raw(served) as (reader, writer), asyncio.timeout(120):
        await opened(reader, writer)
        writer.write(begun)
        assert await closing_of(reader) == (1008, "a message did not come whole within 0.05 s")


async def test_whole_messages_and_pings_have_no_deadline_and_a_rest_goes_on_with_the_first_parts() -> None:
    pipe = Pipe()
    protocol = await websocket_on(pipe, AT_ONCE)
    taking = asyncio.create_task(take_all(protocol))
    parts = PART + from_client(Opcode.CONT, b"x", fin=False)
    for whole in (from_client(Opcode.PING, b"x" * 16), from_client(Opcode.TEXT, b"x" * 16)):
        for cut in (2, len(whole)):
            await given(protocol, whole[:cut])
            await given(protocol, whole[cut:])
            for _ in range(5):
                await asyncio.sleep(0)
    assert not pipe.is_closing()
    await given(protocol, parts)
    await given(protocol, from_client(Opcode.PONG, b""))
    async with asyncio.timeout(120):
        await pipe.aborted.wait()
    taking.cancel()
    for task in protocol.tasks:
        task.cancel()


async def test_parts_that_carry_nothing_are_frames_that_ask_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_protocol, "_IDLE_FRAMES_A_SECOND", 0)  # however long it takes
    pipe, seen = Pipe(), 0
    protocol = await websocket_on(pipe)
    handle = WebSocketProtocol.handle_cont

    def counted(of: WebSocketProtocol, event: Frame) -> None:
        nonlocal seen
        seen += 1
        handle(of, event)

    monkeypatch.setattr(WebSocketProtocol, "handle_cont", counted)
    await given(protocol, from_client(Opcode.TEXT, b"x" * 16, fin=False))
    await given(protocol, from_client(Opcode.CONT, b"", fin=False) * 20_000)
    async with asyncio.timeout(120):
        await pipe.aborted.wait()
    assert MAX_IDLE_FRAMES < seen < 2 * MAX_IDLE_FRAMES
    for task in protocol.tasks:
        task.cancel()
