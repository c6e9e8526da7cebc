"""A websocket's protocol on a transport that remembers what is written."""

from __future__ import annotations

import asyncio

from uvicorn import Config
from uvicorn.server import ServerState

from tests.server.raw_connection import UPGRADE
from unicorn_async.server import ServerOptions
from unicorn_async.server.port import Port
from unicorn_async.server.websocket_protocol import WebSocketProtocol


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


async def take_all(protocol: WebSocketProtocol) -> None:
    while True:
        await protocol.receive()
