"""The websocket side of a connection: uvicorn's protocol, which holds little of what a peer sends or does not take."""

from __future__ import annotations

import logging
from collections import deque
from contextvars import copy_context
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from unicorn_async.errors import EngineClosedError
from unicorn_async.server.connection import UNFINISHED
from unicorn_async.server.port import address_of
from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.errors import ApiError, describe_error
from unicorn_async.server.stall import StallWatch
from unicorn_async.server.unfinished import Unfinished

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
    from websockets.frames import Frame
    from websockets.protocol import Event

    from unicorn_async.server.ledger import Lease
    from unicorn_async.server.port import Port
    from unicorn_async.server.protocol.errors import ErrorInfo

logger = logging.getLogger(__name__)

MAX_IDLE_FRAMES = 1000  # pings, pongs and messages too short to ask for anything, at once
_IDLE_FRAMES_A_SECOND = 100
_SHORT_BYTES = 16
_MAX_REASON_BYTES = 123  # RFC 6455, section 5.5
_TOO_BIG = 1009  # RFC 6455, section 7.4.1
_TRY_LATER = 1013  # of IANA's registry of close codes
_POLICY_VIOLATION = 1008  # RFC 6455, section 7.4.1
MAX_TURN_FRAMES = 32  # of a connection, in one turn of the event loop
_SLICE_BYTES = 512  # of what came, made frames of at a time


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One websocket; whoever sends waits while the peer has not taken what was sent.

    Nothing is taken before the handshake is answered. A peer gets so many frames handled in one turn of the event
    loop, and one message, which the application takes before the next one, and all connections of its address get no
    more: what else came waits, and nothing is read. One that floods the websocket with frames which ask for nothing is
    sent away (1008), and so is one whose message does not come whole in time; what has come of it counts as its
    client's, and is given up (1013) where that has too much under way, or is too large for a key (1009).
    """

    def __init__(self, port: Port, **arguments: Any) -> None:
        """`arguments` are uvicorn's."""
        super().__init__(**arguments)
        options = port.options
        self._idle, self._turns = port.idle, port.turns
        self._stall = StallWatch(options.send_timeout_s, port.unread)
        self._receive_timeout_s = options.receive_timeout_s
        self._unfinished = Unfinished(options.receive_timeout_s, self._give_up)
        self._num_queued_bytes = 0  # of a whole message that the application has not taken
        self.app_state = {**self.app_state, UNFINISHED: self._count_in}
        self._pong = b""
        self._idle_frames_left = float(MAX_IDLE_FRAMES)
        self._counted_s = self.loop.time()
        self._held = bytearray()
        self._frames_held: deque[Event] = deque()
        self._waits = False  # for its turn
        self._context = copy_context()  # of the application, once that takes messages

    def data_received(self, data: bytes) -> None:
        """Take what came; what one turn of the event loop has no time for is held, and nothing more is read."""
        self._held += data
        self._go_on()
        if self._waits:
            self.transport.pause_reading()

    def _take(self) -> None:
        """Take of what is held as much as one turn may, up to a message; what is behind it waits for its end."""
        self._waits = False
        self._context.copy().run(self._take_and_count)

    def _take_and_count(self) -> None:
        self._take_some()
        self._count()

    def _take_some(self) -> None:
        num_frames = 0
        while num_frames < MAX_TURN_FRAMES and not self._has_to_wait and not self.transport.is_closing():
            if self._frames_held:
                self.conn.events.append(self._frames_held.popleft())
                self.handle_events()
                num_frames += 1
                if not self.frames:
                    self._unfinished.end_wait()
            elif self._held:
                self._parse()
            else:
                self.transport.resume_reading()
                return
        if self.transport.is_closing():
            self._held.clear()
            self._frames_held.clear()
            return
        self.transport.pause_reading()
        if not self._has_to_wait:
            self._go_on()

    @property
    def _has_to_wait(self) -> bool:
        """Whether what came waits for the application, to take a message or to answer the handshake."""
        return self.read_paused or (self.handshake_initiated and not self.handshake_complete)

    def _count(self) -> None:
        """Count what has come of a message; a whole one is refused by who takes it, where there is no room for it."""
        size = len(self.conn.reader.buffer) + sum(map(len, self.frames)) + self._num_queued_bytes
        if self.transport.is_closing():
            self._unfinished.end_wait()
        elif size and not self.read_paused:
            self._unfinished.begin_wait()
        try:
            self._unfinished.resize(size)
        except ApiError as exc:
            if not self._num_queued_bytes:
                self._refuse_bytes(exc)

    def _count_in(self, lease: Lease) -> None:
        """Have the bytes of what comes count there, which the application says once it knows whose they are."""
        try:
            self._unfinished.count_in(lease)
        except ApiError as exc:
            self._refuse_bytes(exc)

    def _refuse_bytes(self, exc: ApiError) -> None:
        self._send_away(_TOO_BIG if exc.status == 413 else _TRY_LATER, str(exc))

    def _give_up(self) -> None:
        self._send_away(_POLICY_VIOLATION, f"a message did not come whole within {self._receive_timeout_s:g} s")

    def _go_on(self) -> None:
        if not self._waits:
            self._waits = True
            self._turns.take(address_of(self.client), self._take)

    def _parse(self) -> None:
        """Make frames of a slice, and of the handshake's lines one by one: what is behind it comes after its answer.

        A handshake that is none, which by itself nobody would hear of, is refused.
        """
        end = _SLICE_BYTES
        if not self.handshake_initiated:
            end = self._held.find(b"\n", 0, end) + 1 or end
        part = bytes(self._held[:end])
        del self._held[:end]
        self.conn.receive_data(part)
        if self.conn.parser_exc is not None:
            self.handle_parser_exception()
            return
        self._frames_held.extend(self.conn.events_received())
        found = self.conn.handshake_exc
        if found is not None and not self.handshake_initiated:
            message = f"the handshake of a websocket is a GET without a body: {found.__cause__ or found}"
            self._refuse(describe_error(ApiError(message, code="invalid_handshake")))

    def _refuse(self, error: ErrorInfo) -> None:
        """Answer a handshake with an error, in place of the application."""
        self.handshake_initiated = self.handshake_complete = self.close_sent = True
        body = encode_object({"error": error.to_json()}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        lines = [f"{name}: {value}\r\n" for name, value in (headers | error.retry_after).items()]
        status = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
        self.transport.write("".join([status, *lines, "\r\n"]).encode() + body)
        self.transport.close()

    def shutdown(self) -> None:
        """End with the server; a handshake that is not answered yet is refused."""
        if self.handshake_complete or self.initial_response is not None:
            super().shutdown()
        else:
            self._refuse(describe_error(EngineClosedError()))

    def connection_lost(self, exc: Exception | None) -> None:
        """End whatever waits."""
        self._idle.end(self)
        self._stall.end()
        self._unfinished.end()
        self._held.clear()  # who still refers to this keeps nothing of what came
        self._frames_held.clear()
        self.frames.clear()
        self.conn.reader.buffer.clear()
        self.conn.parser.close()  # it has the last frame
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Have what writes wait, and the client watched."""
        super().pause_writing()
        self._stall.begin(self.transport)

    def resume_writing(self) -> None:
        """Go on, with the pong that is due."""
        super().resume_writing()
        self._stall.end()
        pong, self._pong = self._pong, b""
        if pong and not self.transport.is_closing():
            self.transport.write(pong)

    def handle_text(self, event: Frame) -> None:
        """Take a message, or its first part."""
        if len(event.data) >= _SHORT_BYTES or self._may_idle():
            super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        """Take a message, or its first part."""
        if len(event.data) >= _SHORT_BYTES or self._may_idle():
            super().handle_bytes(event)

    def handle_pong(self, event: Frame) -> None:
        """Take an answer to a ping."""
        if self._may_idle():
            super().handle_pong(event)

    def _may_idle(self) -> bool:
        """Count a frame that asks for nothing; of too many the websocket is closed."""
        now = self.loop.time()
        more = (now - self._counted_s) * _IDLE_FRAMES_A_SECOND
        self._idle_frames_left = min(MAX_IDLE_FRAMES, self._idle_frames_left + more) - 1
        self._counted_s = now
        if self._idle_frames_left >= 0:
            return True
        self._send_away(_POLICY_VIOLATION, f"more than {MAX_IDLE_FRAMES} frames that ask for nothing")
        return False

    def handle_ping(self) -> None:
        """Answer; of pings whose answers the peer does not read, the last one alone (RFC 6455, section 5.5.3)."""
        if not self._may_idle():
            return
        output = b"".join(self.conn.data_to_send())
        if self.writable.is_set():
            self.transport.write(output)
        elif output:
            self._pong = output

    def handle_cont(self, event: Frame) -> None:
        """Take a part of a message, which may come in millions."""
        if not event.data and not self._may_idle():
            return
        joined = bytearray(self.frames[0]) if isinstance(self.frames[0], bytes) else self.frames[0]
        joined += event.data
        self.frames[0] = joined  # type: ignore[call-overload]
        if event.fin:
            self.send_receive_event_to_app()

    def send_receive_event_to_app(self) -> None:
        """Pass a message on; one that is no text ends the websocket (RFC 6455, section 8.1)."""
        data, self.frames = b"".join(self.frames), []
        if self.close_sent:
            return
        self._num_queued_bytes = len(data)
        if self.curr_msg_data_type == "bytes":
            self.queue.put_nowait({"type": "websocket.receive", "bytes": data})
        else:
            try:
                self.queue.put_nowait({"type": "websocket.receive", "text": data.decode()})
            except UnicodeDecodeError as exc:
                self._send_away(1007, f"a text is not UTF-8: {exc.reason} at byte {exc.start}")
                return
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def _send_away(self, code: int, reason: str) -> None:
        if self.transport.is_closing() or self.close_sent:
            return
        self.conn.fail(code, reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore"))
        self._end(reason)

    def handle_parser_exception(self) -> None:
        """End a websocket whose peer has sent what is no frame, or none that may come next."""
        self._end(str(self.conn.parser_exc))

    def _end(self, reason: str) -> None:
        logger.warning("the websocket of client %s is closed: %s", self.client, reason)
        super().handle_parser_exception()

    async def send(self, message: ASGISendEvent) -> None:
        """Send when there is room: of many that wait for it, one after the other."""
        while not self.writable.is_set():
            await self.writable.wait()
        await super().send(message)
        if message["type"] == "websocket.close" and not self.transport.is_closing():
            self._idle.begin(self)  # until the peer's own close
        if message["type"] in ("websocket.accept", "websocket.close"):
            self._go_on()
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True  # it was refused, in order

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next message, and have what came behind it taken in a turn to come."""
        self._context = copy_context()
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused, self._num_queued_bytes = False, 0
            self._count()
            self._go_on()
        return message
