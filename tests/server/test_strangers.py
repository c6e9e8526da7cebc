"""Who has shown no key yet: how many may wait, and who has to go."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import httpx

from tests.server.ws_client import connected, text_of
from unicorn_async.server import ServerOptions
from unicorn_async.server.keys import ApiKey
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.strangers import Strangers

if TYPE_CHECKING:
    import pytest

    from tests.server.conftest import ServeWith

KEYS = (ApiKey("anna", "a"),)


async def test_who_shows_no_key_takes_nobodys_place(serve_with: ServeWith, caplog: pytest.LogCaptureFixture) -> None:
    options = ServerOptions(max_connections=16, api_keys=KEYS)
    async with serve_with(options) as served, contextlib.AsyncExitStack() as stack, asyncio.timeout(120):
        page = {"origin": served.url}
        sockets = [
            await stack.enter_async_context(connected(served.ws_url, additional_headers=page)) for _ in range(20)
        ]
        for one in sockets[:18]:
            error = (await one.receive())["error"]
            assert (error["code"], error["message"]) == (
                "too_many_connections",
                "more than 2 connections wait for their API keys",
            )
            await one.socket.wait_closed()
            assert one.socket.close_code == 1013
        for one in sockets[18:]:
            await one.send({"type": "unicorn.auth", "key": "a"})
            assert (await one.receive())["type"] == "unicorn.authenticated"
            await one.create()
            assert text_of(await one.answer()) == "Hello there, friend"
        async with httpx.AsyncClient(base_url=served.url, headers={"authorization": "Bearer a"}) as client:
            assert (await client.get("/v1/models")).status_code == 200
        for _ in range(2):
            await stack.enter_async_context(connected(served.ws_url, additional_headers=page))
        await sockets[-1].create()
        assert text_of(await sockets[-1].answer()) == "Hello there, friend"
    assert caplog.text.count("1 had to go") == caplog.text.count("had to go") == 1


async def test_who_shows_none_in_time_is_told(serve_with: ServeWith, caplog: pytest.LogCaptureFixture) -> None:
    options = ServerOptions(receive_timeout_s=0.05, api_keys=KEYS)
    async with serve_with(options) as served, connected(served.ws_url, additional_headers={"origin": "x"}) as one:
        assert (await one.receive())["error"]["message"] == "no API key came"
        await one.socket.wait_closed()
        assert one.socket.close_code == 1008
    assert caplog.text.count("no API key came") == 1


async def test_who_has_most_has_to_go() -> None:
    strangers, gone, four = Strangers(4 * 8), list[str](), asyncio.Event()

    async def wait(name: str, number: int) -> None:
        try:
            async with strangers.waiting(name, 60):
                await asyncio.Event().wait()
        except ApiError as exc:
            assert exc.status == 503
            gone.append(f"{name}{number}")
            if len(gone) == 4:
                four.set()

    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        tasks = [group.create_task(wait(name, number)) for number, name in enumerate("abaaacab")]
        await four.wait()
        assert sorted(gone) == ["a0", "a2", "a3", "b1"]
        for task in tasks:
            task.cancel()


async def test_websockets_that_are_closed_but_by_their_peers_have_no_end_of_places(serve_with: ServeWith) -> None:
    options = ServerOptions(max_connections=8, api_keys=KEYS)
    handshake = (
        b"GET /v1/responses HTTP/1.1\r\nhost: x\r\norigin: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    async with serve_with(options) as served, contextlib.AsyncExitStack() as stack, asyncio.timeout(120):
        address = httpx.URL(served.url)
        readers, writers = list[asyncio.StreamReader](), list[asyncio.StreamWriter]()
        for _ in range(24):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            stack.callback(writer.transport.abort)
            writer.write(handshake)
            assert await reader.readuntil(b"\r\n\r\n")
            readers.append(reader)
            writers.append(writer)
        for reader in readers[:15]:  # one waits for its key, eight for the peer's close
            with contextlib.suppress(ConnectionError):
                await reader.read()
        for reader in readers[16:]:
            assert not reader.at_eof()
        async with httpx.AsyncClient(base_url=served.url, headers={"authorization": "Bearer a"}) as client:
            assert (await client.get("/v1/models")).status_code == 200
