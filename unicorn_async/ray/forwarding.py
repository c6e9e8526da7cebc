"""HTTP requests that a gateway passes on, and how their answers come back."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import TYPE_CHECKING

from starlette.routing import Route

from unicorn_async.ray.calls import Head, HttpCall
from unicorn_async.ray.engines import replica_failed
from unicorn_async.server.body import hold_body, read_body
from unicorn_async.server.connection import host_of
from unicorn_async.server.guard import error_response, guarded
from unicorn_async.server.observer import REQUEST_ID
from unicorn_async.server.openapi import OPERATIONS
from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.errors import ApiError, describe_error, error_event
from unicorn_async.server.protocol.fields import parse_object
from unicorn_async.server.reply import Reply, encode_chunk, encode_response_event, probe
from unicorn_async.server.request_context import current

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request

    from unicorn_async.ray.calls import HttpPiece
    from unicorn_async.ray.dispatch import Dispatch
    from unicorn_async.server.access import Access
    from unicorn_async.server.connection import Outlet
    from unicorn_async.server.ledger import Ledger
    from unicorn_async.server.options import ServerOptions

OWN = frozenset({"/health", "/ready", "/metrics", "/openapi.json", "/asyncapi.json"})
# Prompts of these find what was computed for those that begin alike.
_PROMPTS = frozenset({"/v1/responses", "/v1/responses/input_tokens", "/v1/chat/completions", "/v1/completions"})
_RESPONSES = "/v1/responses"
# What is between two machines alone (RFC 9110, section 7.6.1), and what the gateway has answered itself.
_NOT_PASSED = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"expect", b"origin"}
    | {b"content-length", REQUEST_ID.encode()}
)
_NUMBER = re.compile(rb'"sequence_number":(\d{1,18})')


class Forwarding:
    """The routes of the API that replicas answer."""

    def __init__(self, dispatch: Dispatch, access: Access, input_bytes: Ledger, options: ServerOptions) -> None:
        self._dispatch = dispatch
        self._access = access
        self._input_bytes = input_bytes
        self._options = options

    def routes(self) -> list[Route]:
        """Return the routes: those of the description."""
        methods: dict[str, list[str]] = {}
        for operation in OPERATIONS:
            if operation.path not in OWN:
                methods.setdefault(operation.path, []).append(operation.method.upper())
        handler = guarded(self._access, self._forward, None)  # the replica sees to the rights
        return [Route(path, handler, methods=found) for path, found in methods.items()]

    async def _forward(self, request: Request) -> Reply:
        options = self._options
        body = await read_body(request, options, lease=hold_body(request, self._input_bytes))
        path, chosen = request.url.path, None
        session: str | None = None
        if "response_id" in request.path_params:
            session = await self._dispatch.place(request.path_params["response_id"])
        elif path in _PROMPTS:
            fields = parse_object(body).data
            session, chosen = await self._dispatch.session(fields), fields.get("response_id")
        accepted = partial(self._accepted, chosen)
        pieces = self._dispatch.http(_call(request, body), session, accepted)
        return ForwardedReply(pieces, numbered=path.startswith(_RESPONSES), send_timeout_s=options.send_timeout_s)

    def _accepted(self, response_id: object, replica: str) -> None:
        if isinstance(response_id, str):
            self._dispatch.note(response_id, replica)


def _call(request: Request, body: bytes) -> HttpCall:
    scope, context = request.scope, current.get()
    headers = [(name, value) for name, value in scope["headers"] if name.lower() not in _NOT_PASSED]
    headers.append((b"content-length", str(len(body)).encode()))
    if context is not None:
        headers.append((REQUEST_ID.encode(), context.request_id.encode()))
    host = host_of(scope)
    client = None if host is None else (host, scope["client"][1])
    return HttpCall(scope["method"], scope["path"], scope["query_string"], tuple(headers), client, body)


class ForwardedReply(Reply):
    """An answer from elsewhere: whole, where it is not a stream of events."""

    def __init__(self, pieces: AsyncGenerator[HttpPiece, None], *, numbered: bool, send_timeout_s: float) -> None:
        """`numbered`: its events are those of the Responses API."""
        super().__init__(pieces.aclose, send_timeout_s=send_timeout_s)
        self._pieces = pieces
        self._is_numbered = numbered
        self._streams = asyncio.Event()

    async def _respond(self, outlet: Outlet) -> None:
        try:
            head = await anext(self._pieces, None)
            if not isinstance(head, Head):
                raise replica_failed()
            if _is_stream(head):
                await self._stream(outlet, head)
                return
            body = b"".join([piece async for piece in self._pieces if isinstance(piece, bytes)])
        except ApiError as exc:
            refused = error_response(exc)
            head, body = Head(refused.status_code, tuple(refused.raw_headers)), bytes(refused.body)
        await outlet.send(_start(head))
        await outlet.send({"type": "http.response.body", "body": body})

    async def _stream(self, outlet: Outlet, head: Head) -> None:
        """Pass events on; a stream whose replica ends has an event that says so as its last."""
        await outlet.send(_start(head))
        self._streams.set()
        numbered = b""
        try:
            async for piece in self._pieces:
                if isinstance(piece, bytes):
                    await outlet.send({"type": "http.response.body", "body": piece, "more_body": True})
                    numbered = piece if b'"sequence_number":' in piece else numbered
        except ApiError as exc:
            last = self._last_words(exc, numbered)
            await outlet.send({"type": "http.response.body", "body": last, "more_body": True})
        await outlet.send({"type": "http.response.body", "body": b""})

    def _last_words(self, exc: ApiError, numbered: bytes) -> bytes:
        if not self._is_numbered:
            return encode_chunk(encode_object({"error": describe_error(exc).to_json()}))
        numbers = _NUMBER.findall(numbered)
        return encode_response_event(error_event(exc, int(numbers[-1]) + 1 if numbers else 0))

    async def _when_half_closed(self, half_closed: asyncio.Event, outlet: Outlet) -> None:
        """Go on; a client that is gone shows it among the events of a stream."""
        await half_closed.wait()
        await self._streams.wait()
        await probe(outlet)

    async def _end_half_closed(self, outlet: Outlet) -> None:
        """Say nothing: it goes on."""


def _is_stream(head: Head) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream") for name, value in head.headers
    )


def _start(head: Head) -> dict[str, object]:
    return {"type": "http.response.start", "status": head.status, "headers": list(head.headers)}
