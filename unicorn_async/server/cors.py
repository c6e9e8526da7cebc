"""Cross-origin resource sharing: which other sites' pages may read this server's answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response

from unicorn_async.server.guard import error_response
from unicorn_async.server.origin import ANY
from unicorn_async.server.protocol.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_METHODS = "GET, POST, DELETE"
_EXPOSED = "x-request-id, retry-after"
_MAX_AGE_S = 600


class Cors:
    """ASGI middleware: answers browsers that ask what they may send, and lets listed pages read what they get."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, unless it only asks."""
        headers = Headers(scope=scope) if scope["type"] == "http" else None
        origin = None if headers is None else headers.get("origin")
        if headers is None or origin is None:
            await self._app(scope, receive, send)
            return
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await self._told(headers, origin)(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                found.add_vary_header("origin")
                if self._is_listed(origin):
                    found["access-control-allow-origin"] = origin
                    found["access-control-expose-headers"] = _EXPOSED
            await send(message)

        await self._app(scope, receive, marked)

    def _told(self, headers: Headers, origin: str) -> Response:
        """What a browser is told that asks: the request itself still has to pass."""
        vary = {"vary": "origin, access-control-request-headers, access-control-request-private-network"}
        if not self._is_listed(origin):
            message = f"origin {origin[:200]!r} may not use this server; --cors-origin lets it"
            refused = error_response(ApiError(message, status=403, code="foreign_origin"))
            refused.headers.update(vary)
            return refused
        told = {
            "access-control-allow-origin": origin,
            "access-control-allow-methods": _METHODS,
            "access-control-max-age": str(_MAX_AGE_S),
            **vary,
        }
        if wanted := headers.get("access-control-request-headers"):
            told["access-control-allow-headers"] = wanted
        if headers.get("access-control-request-private-network") == "true":
            told["access-control-allow-private-network"] = "true"
        return Response(status_code=204, headers=told)

    def _is_listed(self, origin: str) -> bool:
        return origin in self._origins or ANY in self._origins
