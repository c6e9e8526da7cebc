"""Handlers of HTTP requests behind the access check, and their errors as JSON."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse, Response

from unicorn_async.server.generation import ClientGoneError
from unicorn_async.server.keys import Right
from unicorn_async.server.presence import Presence, present
from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.errors import ApiError, describe_error
from unicorn_async.server.request_context import let_pass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.exceptions import HTTPException
    from starlette.requests import Request

    from unicorn_async.server.access import Access
    from unicorn_async.server.reply import Reply

    Handler = Callable[[Request], Awaitable[Response | Reply]]

logger = logging.getLogger(__name__)

_API = ("/v1", "/health", "/ready", "/tokenize", "/detokenize", "/apply-template", "/metrics")


def guarded(access: Access, handler: Handler, right: Right | None = Right.USE) -> Handler:
    """Return the handler behind the access check, with errors as JSON; `asking` is who asks, `present` watches it."""

    async def checked(request: Request) -> Response | Reply:
        host = request.client.host if request.client is not None else None
        try:
            let_pass(access.check(request.headers, host, right))
        except ApiError as exc:
            logger.warning("refused %s %s of client %s: %s", request.method, request.url.path[:200], host, exc)
            raise
        present.set(Presence(request.scope, request.receive))
        return await handler(request)

    return told(checked)


def told(handler: Handler) -> Handler:
    """Return the handler with errors as JSON."""

    async def telling(request: Request) -> Response | Reply:
        try:
            return await handler(request)
        except ClientGoneError:
            return Response(status_code=400)
        except Exception as exc:
            return error_response(exc)

    return telling


async def unrouted(request: Request, exc: HTTPException) -> Response:
    """Answer a request that no route takes: as JSON where a client of the API asks, as text where a browser does."""
    path = request.url.path
    if not any(path == root or path.startswith(root + "/") for root in _API):
        return PlainTextResponse(exc.detail, status_code=exc.status_code, headers=exc.headers)
    known = {404: "not_found", 405: "method_not_allowed"}
    message = f"{request.method} {path[:200]}: {exc.detail}"
    response = error_response(ApiError(message, status=exc.status_code, code=known.get(exc.status_code)))
    response.headers.update(exc.headers or {})
    return response


def json_response(text: str, *, status: int = 200) -> Response:
    """Return a response from JSON that is encoded already."""
    return Response(text, status_code=status, media_type="application/json", headers={"cache-control": "no-store"})


def error_response(exc: Exception) -> Response:
    """Return an error as OpenAI's API does; what is our own fault goes to the log."""
    error = describe_error(exc)
    if error.status == 500:
        logger.error("request failed", exc_info=exc)
    response = json_response(encode_object({"error": error.to_json()}), status=error.status)
    if error.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    response.headers.update(error.retry_after)
    return response
