"""When a connection is closed in which no request, or none that is whole, comes: a handshake before it, and empty
lines, change nothing of that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import h11
import pytest
import uvicorn
from uvicorn.server import ServerState

from unicorn_async.server import ServerOptions
from unicorn_async.server.http_protocol import HttpProtocol
from unicorn_async.server.port import Port

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Clock:
    """An event loop's time, which goes on when the test says so, and when something is due."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[tuple[float, Mock]] = []

    @property
    def due(self) -> list[float]:
        """When what is not cancelled comes."""
        return [when for when, timer in self._timers if not timer.cancel.called]

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], object]) -> Mock:
        self._timers.append((when, Mock()))
        return self._timers[-1][1]

    def call_later(self, delay: float, callback: Callable[[], object]) -> Mock:
        return self.call_at(self.now + delay, callback)

    def create_task(self, work: Coroutine[object, object, None]) -> Mock:
        """Leave what was asked for to the test."""
        work.close()
        return Mock()


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer nothing."""


def made(clock: Clock, port: Port) -> HttpProtocol:
    """Return what serves a connection that is yet to be made."""
    config = uvicorn.Config(app, ws="none", log_config=None, timeout_keep_alive=75)
    config.load()
    arguments = {"config": config, "server_state": ServerState(), "app_state": {}, "_loop": clock}
    return HttpProtocol(port, **arguments)


def connect(protocol: HttpProtocol) -> Mock:
    """Begin a connection; return its transport."""
    transport = Mock(**{"get_protocol.return_value": protocol, "is_closing.return_value": False})
    transport.get_extra_info.return_value = None
    protocol.connection_made(transport)
    return transport


def answer(protocol: HttpProtocol) -> None:
    """End the answer to the request under way."""
    for event in (h11.Response(status_code=200, headers=[("content-length", "0")]), h11.EndOfMessage()):
        protocol.conn.send(event)
    protocol.cycle.response_complete = True
    protocol.on_response_complete()


def test_a_handshake_takes_from_the_time_that_a_head_has() -> None:
    clock = Clock()
    protocol = made(clock, Port.of(ServerOptions(header_timeout_s=15)))
    clock.now += 10  # the handshake
    connect(protocol)
    assert clock.due == [115.0]


@pytest.mark.parametrize("sent", [[REQUEST, b"\r\n"], [REQUEST, b"\r", b"\n"]])
async def test_an_empty_line_behind_a_request_neither_shortens_nor_prolongs_the_idle_time(sent: list[bytes]) -> None:
    clock = Clock()
    protocol = made(clock, Port.of(ServerOptions(header_timeout_s=15)))
    transport = connect(protocol)
    protocol.data_received(sent[0])
    assert clock.due == []
    answer(protocol)
    for part in sent[1:]:
        clock.now += 1
        await asyncio.sleep(0)
        protocol.data_received(part)
        assert clock.due == [175.0]
    await asyncio.sleep(0)
    protocol.data_received(b"GET")
    assert clock.due == [clock.now + 15]
    await asyncio.sleep(0)
    protocol.data_received(REQUEST[3:])
    assert clock.due == []
    transport.close.assert_not_called()


async def test_a_second_empty_line_is_refused() -> None:
    protocol = made(Clock(), Port.of(ServerOptions()))
    transport = connect(protocol)
    protocol.data_received(REQUEST)
    answer(protocol)
    for _ in range(2):
        transport.close.assert_not_called()
        await asyncio.sleep(0)
        protocol.data_received(b"\r\n")
    transport.close.assert_called_once()


async def test_a_head_that_begins_behind_a_request_has_no_longer_than_others() -> None:
    clock = Clock()
    protocol = made(clock, Port.of(ServerOptions(header_timeout_s=15)))
    connect(protocol)
    protocol.data_received(REQUEST + b"GET")
    answer(protocol)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert clock.due == [115.0]


async def test_the_idle_time_begins_when_the_rest_of_a_body_has_come_behind_the_answer() -> None:
    clock = Clock()
    protocol = made(clock, Port.of(ServerOptions(header_timeout_s=15)))
    connect(protocol)
    protocol.data_received(REQUEST.replace(b"host", b"content-length: 2\r\nhost"))
    answer(protocol)
    assert clock.due == [115.0]
    for part, due in ((b"a", 115.0), (b"b", 177.0), (b"\r\n", 177.0)):
        clock.now += 1
        await asyncio.sleep(0)
        protocol.data_received(part)
        assert clock.due == [due]


async def test_who_sends_an_empty_line_or_a_part_of_a_head_is_not_taken_for_newer_than_others() -> None:
    port = Port.of(ServerOptions(max_connections=2))
    first, second, third = (made(Clock(), port) for _ in range(3))
    transports = [connect(first), connect(second)]
    for part in (b"\r\n", b"GET"):
        await asyncio.sleep(0)
        first.data_received(part)
    transports.append(connect(third))
    assert [transport.abort.called for transport in transports] == [True, False, False]
