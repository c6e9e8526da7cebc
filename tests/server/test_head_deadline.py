"""One deadline for a connection's first head, a TLS handshake before it included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import uvicorn
from uvicorn.server import ServerState

from unicorn_async.server import ServerOptions
from unicorn_async.server.http_protocol import HttpProtocol
from unicorn_async.server.port import Port

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock:
    """An event loop's time, which goes on when the test says so, and when something is due."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[float] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], object]) -> Mock:
        self.due.append(when)
        return Mock()

    def call_later(self, delay: float, callback: Callable[[], object]) -> Mock:
        return self.call_at(self.now + delay, callback)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer nothing."""


def test_a_handshake_takes_from_the_time_that_a_head_has() -> None:
    clock, config = Clock(), uvicorn.Config(app, ws="none", log_config=None)
    config.load()
    options = ServerOptions(header_timeout_s=15)
    arguments = {"config": config, "server_state": ServerState(), "app_state": {}, "_loop": clock}
    protocol = HttpProtocol(Port.of(options), **arguments)
    clock.now += 10  # the handshake
    transport = Mock(**{"get_protocol.return_value": protocol, "is_closing.return_value": False})
    transport.get_extra_info.return_value = None
    protocol.connection_made(transport)
    assert clock.due == [115.0]
