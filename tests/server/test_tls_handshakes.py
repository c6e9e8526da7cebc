"""TLS handshakes: early ones, silent ones, and requests that come with their last message."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
import uvloop

from tests.server.conftest import serving
from tests.server.fake_engine import FakeEngine
from unicorn_async.server import ServerOptions, bind, serve
from unicorn_async.server.tls import tls_context

if TYPE_CHECKING:
    from collections.abc import Callable

FILES = Path(__file__).parent / "tls"
REQUEST = b"GET /ready HTTP/1.1\r\nhost: localhost\r\n\r\n"


def encrypted(**limits: int | float) -> ServerOptions:
    return ServerOptions(tls=tls_context(FILES / "cert.pem", FILES / "key.pem"), **limits)  # type: ignore[arg-type]


class Peer:
    """A client's side of TLS, whose bytes are sent when the test says so."""

    def __init__(self) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        trust = ssl.create_default_context(cafile=FILES / "cert.pem")
        self._tls = trust.wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")

    def hello(self) -> bytes:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        return self._outgoing.read()

    async def answer(self, reader: asyncio.StreamReader, write: Callable[[bytes], object]) -> bytes:
        """End the handshake, with a request behind its last message, and return the answer's first line."""
        while True:
            self._incoming.write(await reader.read(1 << 16))
            with contextlib.suppress(ssl.SSLWantReadError):
                self._tls.do_handshake()
                break
        self._tls.write(REQUEST)
        write(self._outgoing.read())
        answer = b""
        while b"\r\n" not in answer:
            with contextlib.suppress(ssl.SSLWantReadError):
                answer += self._tls.read()
                continue
            self._incoming.write(await reader.read(1 << 16))
        return answer.partition(b"\r\n")[0]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_handshake_that_began_before_the_server_did_goes_on(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def ask(client: socket.socket, peer: Peer, listener: socket.socket) -> bytes:
        serving_there = asyncio.create_task(serve(FakeEngine(), listener=listener, options=encrypted()))
        reader, writer = await asyncio.open_connection(sock=client)
        async with asyncio.timeout(120):
            first = await peer.answer(reader, writer.write)
        writer.transport.abort()
        serving_there.cancel()
        await asyncio.wait((serving_there,))
        return first

    listener, peer = bind("127.0.0.1", 0), Peer()
    client = socket.create_connection(listener.getsockname())
    client.sendall(peer.hello())
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(ask(client, peer, listener)) == b"HTTP/1.1 200 OK"


async def test_handshakes_that_do_not_come_are_bounded_in_number_and_time(engine: FakeEngine) -> None:
    async with serving(engine, encrypted(max_connections=2, header_timeout_s=0.1)) as served:
        host, port = served.url.removeprefix("https://").split(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(4)]
        async with asyncio.timeout(120):
            for reader, writer in silent:
                with contextlib.suppress(ConnectionError):  # it was dropped for a later one
                    assert await reader.read() == b""
                writer.close()
        trust = ssl.create_default_context(cafile=FILES / "cert.pem")
        async with httpx.AsyncClient(base_url=served.url, verify=trust) as client, asyncio.timeout(120):
            while True:
                with contextlib.suppress(httpx.TransportError):  # this handshake has no longer than the silent ones
                    assert (await client.get("/ready")).status_code == 200
                    break
