"""The HTTP side of a connection: uvicorn's protocol, with deadlines for whoever sends or takes nothing."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Protocol

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from unicorn_async.server.connection import ABORT, HALF_CLOSED
from unicorn_async.server.stall import StallWatch
from unicorn_async.server.strict_http import StrictConnection

if TYPE_CHECKING:
    from unicorn_async.server.options import ServerOptions
    from unicorn_async.server.stall import Unread

MAX_HEAD_BYTES = 32 << 10


class _Abortable(Protocol):
    def abort(self) -> None: ...


class _Waiting(Protocol):
    @property
    def transport(self) -> _Abortable: ...


class IdleConnections:
    """The connections without a request under way; of too many those go that have waited longest.

    So there is always one left for a client that asks, whatever others keep open.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._idle: OrderedDict[_Waiting, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._idle)

    def begin(self, protocol: _Waiting) -> None:
        """Take a connection that waits from now on."""
        self._idle[protocol] = None
        self._idle.move_to_end(protocol)
        while len(self._idle) > self._limit:
            oldest, _ = self._idle.popitem(last=False)
            oldest.transport.abort()

    def end(self, protocol: _Waiting) -> None:
        """Let go of one that waits no longer; harmless for others."""
        self._idle.pop(protocol, None)


class HttpProtocol(H11Protocol):
    """One connection until it becomes a websocket. h11 parses, whatever else is installed: it is the strict one."""

    def __init__(self, idle: IdleConnections, unread: Unread, options: ServerOptions, **arguments: Any) -> None:
        """`arguments` are uvicorn's."""
        super().__init__(**arguments)
        self.conn = StrictConnection(h11.SERVER, MAX_HEAD_BYTES)
        self._idle = idle
        self._options = options
        self._stall = StallWatch(options.send_timeout_s, unread)
        self._head_timer: asyncio.TimerHandle | None = None
        self._first_head_by: float | None = self.loop.time() + options.header_timeout_s  # with a TLS handshake before
        self._half_closed = asyncio.Event()
        # A websocket's protocol takes the state over, and the transport.
        self.app_state = {**self.app_state, ABORT: self._abort, HALF_CLOSED: self._half_closed}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=self._options.max_unread_bytes)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End whatever waits."""
        self._stall.end()
        self._leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        super().data_received(data)
        self._watch()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Leave the connection open for an answer under way: its client may only have said all that it had to say."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return None
        if self.scheme == "https":
            return None  # an encrypted connection has no half
        cycle.keep_alive = False
        self._half_closed.set()
        return True

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._watch()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over."""
        self._leave()
        super().handle_websocket_upgrade(event)

    def pause_writing(self) -> None:
        """Have what writes wait, and the client watched."""
        super().pause_writing()
        self._stall.begin(self.transport)

    def resume_writing(self) -> None:
        """Go on."""
        super().resume_writing()
        self._stall.end()

    def _watch(self) -> None:
        """Bound the time in which a request's head, or what is left of the last one's body, has to come."""
        if self.transport.get_protocol() is not self or self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._first_head_by = None
            self._leave()
            return
        self._idle.begin(self)
        if self._head_timer is None and self.timeout_keep_alive_task is None:
            due = self._first_head_by or self.loop.time() + self._options.header_timeout_s
            self._head_timer = self.loop.call_at(due, self.transport.close)

    def _leave(self) -> None:
        self._idle.end(self)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _abort(self) -> None:
        self.transport.abort()
