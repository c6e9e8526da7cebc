"""The websocket side of a connection: uvicorn's protocol, which holds little of what a peer sends or does not take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.errors import ApiError, describe_error
from unicorn_async.server.stall import StallWatch

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent
    from websockets.frames import Frame

    from unicorn_async.server.options import ServerOptions
    from unicorn_async.server.stall import Unread


MAX_IDLE_FRAMES = 1000  # pings, pongs and messages too short to ask for anything, at once
_IDLE_FRAMES_A_SECOND = 100
_SHORT_BYTES = 16
_SLICE_BYTES = 4096  # of what came, taken before the next look at how many frames these were


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One websocket; whoever sends waits while the peer has not taken what was sent.

    A peer that floods it with frames which ask for nothing is sent away (1008): each costs the event loop time.
    """

    def __init__(self, unread: Unread, options: ServerOptions, **arguments: Any) -> None:
        """`arguments` are uvicorn's."""
        super().__init__(**arguments)
        self._stall = StallWatch(options.send_timeout_s, unread)
        self._pong = b""
        self._idle_frames_left = float(MAX_IDLE_FRAMES)
        self._counted_s = self.loop.time()
        self._has_flooded = False

    def data_received(self, data: bytes) -> None:
        """Take what came; a handshake that is none, which by itself nobody would hear of, is refused."""
        for start in range(0, len(data), _SLICE_BYTES):
            if self._has_flooded:
                return
            super().data_received(data[start : start + _SLICE_BYTES])
        found = self.conn.handshake_exc
        if found is not None and not self.handshake_initiated:
            self._refuse(f"the handshake of a websocket is a GET without a body: {found.__cause__ or found}")

    def _refuse(self, message: str) -> None:
        self.handshake_initiated = self.handshake_complete = self.close_sent = True
        error = describe_error(ApiError(message, code="invalid_handshake"))
        body = encode_object({"error": error.to_json()}).encode()
        head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: "
        self.transport.write(f"{head}{len(body)}\r\n\r\n".encode() + body)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """End whatever waits."""
        self._stall.end()
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
        if self._idle_frames_left < 0 and not self._has_flooded:
            self._has_flooded = True
            self.conn.fail(1008, f"more than {MAX_IDLE_FRAMES} frames that ask for nothing")
            if self.conn.close_sent is None:  # not even opened
                self.transport.abort()
            else:
                self.handle_parser_exception()
        return not self._has_flooded

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
        if self._has_flooded:
            return
        joined = bytearray(self.frames[0]) if isinstance(self.frames[0], bytes) else self.frames[0]
        joined += event.data
        self.frames[0] = joined  # type: ignore[call-overload]
        if event.fin:
            self.send_receive_event_to_app()

    async def send(self, message: ASGISendEvent) -> None:
        """Send when there is room: of many that wait for it, one after the other."""
        while not self.writable.is_set():
            await self.writable.wait()
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True  # it was refused, in order
