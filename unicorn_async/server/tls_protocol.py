"""The TLS side of a connection: its handshake, which is bounded like the wait for a request's head."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.server.idle_connections import IdleConnections
    from unicorn_async.server.tls import FileContext

logger = logging.getLogger(__name__)


class TlsProtocol(asyncio.Protocol):
    """A connection that has just been accepted: it hands its socket on before anything is read from it.

    What comes first has to reach the event loop's TLS, and a loop may read as soon as `connection_made` has returned.
    """

    def __init__(self, handshakes: Handshakes, make: Callable[..., asyncio.Protocol], **arguments: Any) -> None:
        """`arguments` are uvicorn's, for `make`."""
        self._handshakes = handshakes
        self._make = partial(make, **arguments)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        try:
            sock = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        except OSError as exc:
            logger.warning("a connection is dropped: %s", exc)
        else:
            self._handshakes.begin(sock, self._make)
        cast("asyncio.Transport", transport).abort()  # its own descriptor alone: the connection lives on


class Handshakes:
    """The handshakes under way at a port; each becomes a connection of the protocol that is made for it."""

    def __init__(self, context: FileContext, idle: IdleConnections, *, timeout_s: float) -> None:
        self._context = context
        self._idle = idle
        self._timeout_s = timeout_s
        self._under_way: set[_Handshake] = set()

    def begin(self, sock: socket.socket, make: Callable[[], asyncio.Protocol]) -> None:
        """Carry out a handshake beside others, with the certificate as its file is now; the socket is its."""
        self._context = self._context.renewed()
        sock.setblocking(False)
        handshake = _Handshake(sock)
        self._under_way.add(handshake)
        self._idle.begin(handshake)
        handshake.task = asyncio.get_running_loop().create_task(self._carry_out(handshake, make))

    def close(self) -> None:
        """Drop the connections that are not encrypted yet."""
        for handshake in tuple(self._under_way):
            handshake.abort()

    async def _carry_out(self, handshake: _Handshake, make: Callable[[], asyncio.Protocol]) -> None:
        sock, peer = handshake.sock, _peer(handshake.sock)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                make, sock, ssl=self._context, ssl_handshake_timeout=self._timeout_s
            )
        except OSError as exc:
            logger.debug("no TLS with client %s: %s", peer, exc)
        finally:
            self._idle.end(handshake)
            self._under_way.discard(handshake)


class _Handshake:
    """One handshake, as `IdleConnections` knows connections."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.task: asyncio.Task[None] | None = None

    @property
    def transport(self) -> _Handshake:
        """What ends it."""
        return self

    def abort(self) -> None:
        """End the connection; the handshake fails by that."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


def _peer(sock: socket.socket) -> object:
    with contextlib.suppress(OSError):
        return sock.getpeername()
    return None
