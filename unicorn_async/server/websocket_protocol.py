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


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One websocket; whoever sends waits while the peer has not taken what was sent."""

    def __init__(self, unread: Unread, options: ServerOptions, **arguments: Any) -> None:
        """`arguments` are uvicorn's."""
        super().__init__(**arguments)
        self._stall = StallWatch(options.send_timeout_s, unread)
        self._pong = b""

    def data_received(self, data: bytes) -> None:
        """Take what came; a handshake that is none, which by itself nobody would hear of, is refused."""
        super().data_received(data)
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

    def handle_ping(self) -> None:
        """Answer; of pings whose answers the peer does not read, the last one alone (RFC 6455, section 5.5.3)."""
        output = b"".join(self.conn.data_to_send())
        if self.writable.is_set():
            self.transport.write(output)
        elif output:
            self._pong = output

    def handle_cont(self, event: Frame) -> None:
        """Take a part of a message, which may come in millions."""
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
