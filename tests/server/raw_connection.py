"""Connections without a client of HTTP or websockets, and the bytes that such a client would write."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

from websockets.frames import Frame, Opcode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.server.conftest import Served

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


def from_client(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)
