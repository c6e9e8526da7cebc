"""The connection below a request: sending with a deadline, and cutting off who does not read."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from unicorn_async.server.generation import ClientGoneError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Message, Scope, Send

logger = logging.getLogger(__name__)

# Keys in a scope's state.
ABORT = "unicorn_async.abort"  # a function that drops the connection at once
HALF_CLOSED = "unicorn_async.half_closed"  # an event: the client sends nothing more, and may be gone
UNFINISHED = "unicorn_async.unfinished"  # a function that has what comes of a websocket's messages counted in a lease
ANSWERED = "unicorn_async.answered"  # the status that the connection itself has answered with, in the endpoint's place
LEASES = "unicorn_async.leases"  # what the request holds, given back at its end


def host_of(scope: Scope) -> str | None:
    """Return the address that a request comes from, None of a socket in the file system."""
    client: tuple[str, int] | None = scope.get("client")
    return None if client is None else client[0]


class Outlet:
    """Sends ASGI messages of one request or websocket; a send that takes longer than the deadline drops the connection.

    Closing is not enough there: a transport whose buffer the peer does not take closes only when it is empty.
    """

    def __init__(self, scope: Scope, send: Send, *, timeout_s: float) -> None:
        self._send = send
        self._timeout_s = timeout_s
        self._abort = cast("Callable[[], None] | None", scope.get("state", {}).get(ABORT))
        self._client = scope.get("client")
        self._call_later = asyncio.get_running_loop().call_later
        self._is_gone = False
        self.num_sent = 0
        self.is_sending = False

    async def send(self, message: Message) -> None:
        """Send one message.

        Raises:
            ClientGoneError: the connection is lost, or was dropped just now.
        """
        if self._is_gone:
            raise ClientGoneError
        timer = self._call_later(self._timeout_s, self._give_up)
        self.is_sending = True
        try:
            await self._send(message)
        except (OSError, RuntimeError) as exc:  # uvicorn: lost, or closed by itself after an unanswered ping
            self.drop()
            raise ClientGoneError from exc
        finally:
            timer.cancel()
            self.is_sending = False
            self.num_sent += 1
        if self._is_gone:
            raise ClientGoneError

    def drop(self) -> None:
        """Drop the connection without a word."""
        self._is_gone = True
        if self._abort is not None:
            self._abort()

    def _give_up(self) -> None:
        logger.warning("client %s took nothing for %g s and is cut off", self._client, self._timeout_s)
        self.drop()
