"""How many may ask at a time: whatever else is refused, who looks after the server gets its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from unicorn_async.server.connection import LEASES, host_of
from unicorn_async.server.guard import error_response
from unicorn_async.server.ledger import Ledger
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.websocket import reject

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from unicorn_async.server.access import Access
    from unicorn_async.server.ledger import Lease
    from unicorn_async.server.options import ServerOptions

ALWAYS_OPEN = frozenset({"/health", "/ready", "/metrics"})


class Gate:
    """An ASGI application around another: counts requests and websockets, and gives back what a request held."""

    def __init__(self, app: ASGIApp, access: Access, options: ServerOptions) -> None:
        self._app = app
        self._access = access
        self._limit = options.max_connections
        self._clients = Ledger(options.max_client_connections, what="connections", code="too_many_connections")
        self._num = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or refuse it."""
        if scope["type"] == "lifespan" or scope["path"] in ALWAYS_OPEN:
            await self._app(scope, receive, send)
            return
        leases: list[Lease] = []
        scope.setdefault("state", {})[LEASES] = leases
        try:
            leases.append(self._claim(scope))
        except ApiError as exc:
            await _refuse(exc, scope, receive, send)
            return
        self._num += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._num -= 1
            for lease in leases:
                lease.release()

    def _claim(self, scope: Scope) -> Lease:
        if self._num >= self._limit:
            message = f"{self._limit} connections are busy already"
            raise ApiError(message, status=503, code="too_many_connections")
        client = self._access.caller(Headers(scope=scope), host_of(scope))
        return self._clients.claim(client.name)


async def _refuse(exc: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await reject(exc, scope, send)
        return
    response = error_response(exc)
    response.headers["connection"] = "close"
    await response(scope, receive, send)
