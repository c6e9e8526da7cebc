"""The TLS side of a connection: its handshake, which is bounded like the wait for a request's head."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from ssl import SSLContext

    from unicorn_async.server.http_protocol import IdleConnections

logger = logging.getLogger(__name__)


class Handshakes:
    """The handshakes under way at a port; each becomes a connection of the protocol that `make` returns."""

    def __init__(self, context: SSLContext, idle: IdleConnections, *, timeout_s: float) -> None:
        self.context = context
        self.idle = idle
        self.timeout_s = timeout_s
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, protocol: TlsProtocol) -> None:
        """Carry out a handshake beside others."""
        task = asyncio.get_running_loop().create_task(protocol.shake_hands())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Drop the connections that are not encrypted yet."""
        for task in self._tasks:
            task.cancel()


class TlsProtocol(asyncio.Protocol):
    """One connection until it is encrypted. A client may send its request with the handshake's last message."""

    def __init__(self, handshakes: Handshakes, make: Callable[..., asyncio.Protocol], **arguments: Any) -> None:
        """`arguments` are uvicorn's, for `make`."""
        self.transport: asyncio.Transport
        self._handshakes = handshakes
        self._make = make
        self._arguments = arguments
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.pause_reading()
        self._handshakes.idle.begin(self)
        self._handshakes.begin(self)

    def data_received(self, data: bytes) -> None:
        """Keep what comes before the protocol does that it is for."""
        self._early.append(data)

    async def shake_hands(self) -> None:
        """Carry out the handshake, and hand the connection over."""
        loop, ours = asyncio.get_running_loop(), self._handshakes
        try:
            encrypted = await loop.start_tls(
                self.transport, self, ours.context, server_side=True, ssl_handshake_timeout=ours.timeout_s
            )
        except OSError as exc:
            logger.debug("no TLS with client %s: %s", self.transport.get_extra_info("peername"), exc)
            self.transport.abort()
            return
        finally:
            ours.idle.end(self)
        if encrypted is None or encrypted.is_closing():
            return
        protocol = self._make(**self._arguments)
        encrypted.set_protocol(protocol)
        protocol.connection_made(encrypted)
        if self._early:
            protocol.data_received(b"".join(self._early))
