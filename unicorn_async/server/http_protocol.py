"""The HTTP side of a connection: uvicorn's protocol, with deadlines for whoever sends or takes nothing."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from unicorn_async.errors import EngineClosedError
from unicorn_async.server.connection import ABORT, ANSWERED, HALF_CLOSED
from unicorn_async.server.port import address_of
from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.errors import ApiError, describe_error
from unicorn_async.server.stall import StallWatch
from unicorn_async.server.strict_http import MAX_TURN_EVENTS, StrictConnection, reason_of

if TYPE_CHECKING:
    from unicorn_async.server.port import Port
    from unicorn_async.server.protocol.errors import ErrorInfo

logger = logging.getLogger(__name__)

MAX_REASON_CHARS = 200


class HttpProtocol(H11Protocol):
    """One connection until it becomes a websocket. h11 parses, whatever else is installed: it is the strict one."""

    def __init__(self, port: Port, **arguments: Any) -> None:
        """`arguments` are uvicorn's."""
        super().__init__(**arguments)
        self.conn = self._requests = StrictConnection(self._refuse)
        self._options = options = port.options
        self._idle, self._turns = port.idle, port.turns
        self._stall = StallWatch(options.send_timeout_s, port.unread)
        self._head_timer: asyncio.TimerHandle | None = None
        self._first_head_by: float | None = self.loop.time() + options.header_timeout_s  # with a TLS handshake before
        self._half_closed = asyncio.Event()
        self._received = bytearray()  # and not taken
        self._waits_to_take = False
        self._waits_to_go_on = False
        self._is_behind_answer = False
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
        """Take what came; if it is the turn of another connection of the client, nothing more is read meanwhile."""
        self._received += data
        if not self._waits_to_take:
            self._waits_to_take = True
            self._turns.take(address_of(self.client), self._take)
        if self._waits_to_take:
            self.transport.pause_reading()

    def _take(self) -> None:
        self._waits_to_take = False
        data, self._received = bytes(self._received), bytearray()
        if self._is_left():
            return
        if not self.flow.read_paused:
            self.transport.resume_reading()
        self.conn.receive_data(data)
        self.handle_events()
        self._watch()

    def handle_events(self) -> None:
        """Act on what came; what one turn of the event loop has no time for waits, and nothing more is read."""
        if self._is_behind_answer and self._requests.trailing_data[0]:
            self._wait_to_go_on()
            return
        self._requests.events_left = MAX_TURN_EVENTS
        super().handle_events()
        if self._requests.events_left or self._is_left():
            return
        self._wait_to_go_on()

    def _wait_to_go_on(self) -> None:
        self.transport.pause_reading()
        if not self._waits_to_go_on:
            self._waits_to_go_on = True
            self._turns.take(address_of(self.client), self._go_on)

    def _go_on(self) -> None:
        self._waits_to_go_on = False
        if self._is_left():
            return
        self.handle_events()
        if not self._waits_to_go_on and not self.flow.read_paused:
            self.transport.resume_reading()
        self._watch()

    def _is_left(self) -> bool:
        return self.transport.is_closing() or self.transport.get_protocol() is not self

    def _refuse(self, exc: h11.RemoteProtocolError) -> None:
        """Answer what is no request."""
        reason = reason_of(exc)[:MAX_REASON_CHARS]
        logger.warning("a request of client %s is refused: %s", self.client, reason)
        status = exc.error_status_hint if 400 <= exc.error_status_hint < 500 else 400
        self._end_with(describe_error(ApiError(reason, status=status, code="invalid_http")))

    def _end_with(self, error: ErrorInfo) -> None:
        """Answer with an error, where no answer is under way, and end the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = encode_object({"error": error.to_json()}).encode()
            headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
            headers |= error.retry_after
            reason = HTTPStatus(error.status).phrase
            for event in (
                h11.Response(status_code=error.status, headers=list(headers.items()), reason=reason),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:
            if not self.cycle.response_started:
                self.cycle.scope["state"][ANSWERED] = error.status
            self.cycle.disconnected = True  # who answers has nobody any more
            self.cycle.message_event.set()
        self.transport.close()

    def shutdown(self) -> None:
        """Begin to end, with the server: a request that is not whole is refused, and others are answered."""
        cycle = self.cycle
        if cycle is None or cycle.response_started or not cycle.more_body:
            super().shutdown()
        else:
            self._end_with(describe_error(EngineClosedError()))

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: who asks for another protocol gets HTTP (RFC 9110, section 7.8)."""

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
        """Begin to wait for the next request, or for the turn of one that is there already."""
        self._is_behind_answer = True
        super().on_response_complete()
        self._is_behind_answer = False
        self._watch()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over, with what came behind the request."""
        self._leave()
        super().handle_websocket_upgrade(event)
        frames = self.conn.trailing_data[0]
        if frames:
            cast("asyncio.Protocol", self.transport.get_protocol()).data_received(frames)

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
        if self._is_left():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._first_head_by = None
            self._leave()
            return
        self._idle.begin(self)
        if self._first_head_by is None and not self._requests.is_begun:
            if self.timeout_keep_alive_task is None:  # the rest of a body has come, behind the answer
                self._end_head()
                idle_s, close = self.timeout_keep_alive, self.timeout_keep_alive_handler
                self.timeout_keep_alive_task = self.loop.call_later(idle_s, close)
            return  # else what came was an empty line at most: the idle time goes on
        self._unset_keepalive_if_required()
        if self._head_timer is None:
            due = self._first_head_by or self.loop.time() + self._options.header_timeout_s
            self._head_timer = self.loop.call_at(due, self.transport.close)

    def _leave(self) -> None:
        self._idle.end(self)
        self._end_head()

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _abort(self) -> None:
        self.transport.abort()
