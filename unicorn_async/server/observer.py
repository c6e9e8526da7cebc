"""The layer around all endpoints that names each request, counts it and logs it."""

from __future__ import annotations

import logging
import re
import secrets
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders

from unicorn_async.server.connection import ANSWERED
from unicorn_async.server.request_context import RequestContext, current

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import Span
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from unicorn_async.server.metrics import Metrics
    from unicorn_async.server.tracing import Tracing

logger = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"
_GOOD_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_QUIET = frozenset({"/health", "/ready", "/metrics"})  # asked for every few seconds


class Observer:
    """ASGI middleware. A request has the name that its client gave it in `x-request-id`, or a new one."""

    def __init__(self, app: ASGIApp, metrics: Metrics, tracing: Callable[[], Tracing | None]) -> None:
        self._app = app
        self._metrics = metrics
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, with what is noted of it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        host, port = scope.get("client") or ("", 0)
        context = RequestContext(_given_id(scope) or f"req_{secrets.token_hex(12)}", f"{host}:{port}")
        token, tracing = current.set(context), self._tracing()
        span = (
            nullcontext() if tracing is None or scope["path"] in _QUIET else tracing.request(scope, context.request_id)
        )
        try:
            with span as begun:
                if scope["type"] == "http":
                    await self._http(context, begun, scope, receive, send)
                else:
                    await self._websocket(context, scope, receive, send)
        finally:
            current.reset(token)

    async def _http(
        self, context: RequestContext, span: Span | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        began, status = time.monotonic(), 499  # nginx' number for a client that went before the answer

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = context.request_id
            await send(message)

        try:
            await self._app(scope, receive, named)
        finally:
            status = scope.get("state", {}).get(ANSWERED, status)
            route = getattr(scope.get("route"), "path", None)
            method = scope["method"] if route is not None else "other"  # a stranger's words are no labels
            self._metrics.requests[method, route or "none", status] += 1
            if span is not None:
                from unicorn_async.server.tracing import describe_answer

                describe_answer(span, scope["method"], route, status)
            level = logging.DEBUG if scope["path"] in _QUIET else logging.INFO
            if logger.isEnabledFor(level):
                path, seconds = scope["path"][:200], time.monotonic() - began
                logger.log(level, "%s %s: %d after %.3f s", scope["method"], path, status, seconds)

    async def _websocket(self, context: RequestContext, scope: Scope, receive: Receive, send: Send) -> None:
        began, is_open = time.monotonic(), False

        async def named(message: Message) -> None:
            nonlocal is_open
            if message["type"] in ("websocket.accept", "websocket.http.response.start"):
                headers = [*message.get("headers", ()), (REQUEST_ID.encode(), context.request_id.encode())]
                message = {**message, "headers": headers}
            if message["type"] == "websocket.accept":
                is_open = True
                self._metrics.websockets += 1
            await send(message)

        try:
            await self._app(scope, receive, named)
        finally:
            if is_open:
                self._metrics.websockets -= 1
                logger.info("websocket %s: was open for %.3f s", scope["path"][:200], time.monotonic() - began)


def _given_id(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text = value.decode("latin-1")
            return text if _GOOD_ID.fullmatch(text) else None
    return None
