"""One HTTP request to an ASGI application in this process, its answer in pieces as they come."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING
from urllib.parse import quote

from unicorn_async.ray.calls import Head

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.types import ASGIApp, Message, Scope

    from unicorn_async.ray.calls import HttpCall

logger = logging.getLogger(__name__)

_WAITING = 16  # messages that the application is ahead of who takes them
_MAX_PIECE_BYTES = 64 << 10  # of what has come meanwhile, joined


async def exchange(app: ASGIApp, call: HttpCall) -> AsyncGenerator[Head | bytes, None]:
    """Yield the head of an answer, then its body; closing this ends the request as a client does that goes away."""
    messages: asyncio.Queue[Message | None] = asyncio.Queue(_WAITING)
    request: list[Message] = [{"type": "http.request", "body": call.body, "more_body": False}]

    async def receive() -> Message:
        if not request:
            await asyncio.Event().wait()  # a client that goes away has the task cancelled
        return request.pop()

    async def run() -> None:
        try:
            await app(_scope(call), receive, messages.put)
        except Exception:  # the application has told the client, where it still could
            logger.exception("%s %s failed", call.method, call.path[:200])
        await messages.put(None)

    task = asyncio.create_task(run())
    try:
        while (message := await messages.get()) is not None:
            if message["type"] == "http.response.start":
                yield Head(message["status"], tuple(message.get("headers", ())))
                continue
            piece = bytearray(message.get("body", b""))
            has_ended = False
            while not (has_ended or messages.empty()) and len(piece) < _MAX_PIECE_BYTES:
                more = messages.get_nowait()
                has_ended = more is None
                piece += b"" if more is None else more.get("body", b"")
            if piece:
                yield bytes(piece)
            if has_ended:
                break
    finally:
        task.cancel()
        await asyncio.wait((task,))


def _scope(call: HttpCall) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": call.method,
        "scheme": "http",
        "path": call.path,
        "raw_path": quote(call.path).encode(),
        "query_string": call.query,
        "root_path": "",
        "headers": list(call.headers),
        "client": call.client,
        "server": None,
        "state": {},
        "extensions": {},
    }
