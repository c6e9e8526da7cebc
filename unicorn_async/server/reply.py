"""Answers over HTTP: whole, or as server-sent events; either way a client that goes away ends its generation."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from unicorn_async.server.connection import Outlet
from unicorn_async.server.generation import ClientGoneError
from unicorn_async.server.protocol.encoding import encode_object

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any

    from starlette.types import Receive, Scope, Send

    from unicorn_async.server.protocol.answer import Answer
    from unicorn_async.server.protocol.completion_object import CompletionObject

SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies that would collect the events before they pass them on
]


def encode_response_event(text: str) -> bytes:
    """Return an event of the Responses API as a server-sent event, which carries the type's name beside the data."""
    name = text[9 : text.index('"', 9)]  # every event's JSON begins with {"type":"
    return f"event: {name}\ndata: {text}\n\n".encode()


def encode_chunk(text: str) -> bytes:
    """Return a chat completion's chunk as a server-sent event."""
    return f"data: {text}\n\n".encode()


class Reply(ABC):
    """An ASGI response that generates while it is sent.

    `run` takes the function that sends one JSON text; `close` is called at the end, whatever happened.
    """

    def __init__(
        self,
        run: Callable[[Callable[[str], Awaitable[None]]], Coroutine[object, object, None]],
        close: Callable[[], Awaitable[None]],
        *,
        send_timeout_s: float,
    ) -> None:
        self._run = run
        self._close = close
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generate and send, unless the client goes first."""
        outlet = Outlet(scope, send, timeout_s=self._send_timeout_s)
        try:
            work = asyncio.create_task(self._respond(outlet))
            watcher = asyncio.create_task(_disconnected(receive))
            try:
                await asyncio.wait((work, watcher), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (work, watcher):
                    task.cancel()
                await asyncio.wait((work, watcher))
            if not work.cancelled():
                work.result()
        except ClientGoneError:
            return
        finally:
            await self._close()

    @abstractmethod
    async def _respond(self, outlet: Outlet) -> None:
        """Generate and send the response."""


class EventStreamReply(Reply):
    """Server-sent events."""

    def __init__(
        self,
        run: Callable[[Callable[[str], Awaitable[None]]], Coroutine[object, object, None]],
        close: Callable[[], Awaitable[None]],
        *,
        send_timeout_s: float,
        encode: Callable[[str], bytes],
        tail: bytes = b"",
    ) -> None:
        super().__init__(run, close, send_timeout_s=send_timeout_s)
        self._encode = encode
        self._tail = tail

    async def _respond(self, outlet: Outlet) -> None:
        encode = self._encode

        async def emit(text: str) -> None:
            await outlet.send({"type": "http.response.body", "body": encode(text), "more_body": True})

        await outlet.send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
        await self._run(emit)
        await outlet.send({"type": "http.response.body", "body": self._tail})


class WholeReply(Reply):
    """One JSON object at the end; its status tells whether the generation failed."""

    def __init__(
        self,
        run: Callable[[Callable[[str], Awaitable[None]]], Coroutine[object, object, None]],
        close: Callable[[], Awaitable[None]],
        *,
        send_timeout_s: float,
        answer: Answer | CompletionObject[Any],
        to_json: Callable[[], dict[str, object]],
    ) -> None:
        super().__init__(run, close, send_timeout_s=send_timeout_s)
        self._answer = answer
        self._to_json = to_json

    async def _respond(self, outlet: Outlet) -> None:
        await self._run(_nowhere)
        error = self._answer.error
        body = encode_object({"error": error.to_json()} if error else self._to_json()).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        status = error.status if error else 200
        await outlet.send({"type": "http.response.start", "status": status, "headers": headers})
        await outlet.send({"type": "http.response.body", "body": body})


async def _nowhere(text: str) -> None:
    """Take an event that nobody waits for."""


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
