"""Answers over HTTP: whole, or as server-sent events; either way a client that goes away ends its generation."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from unicorn_async.server.connection import HALF_CLOSED, Outlet
from unicorn_async.server.generation import ClientGoneError
from unicorn_async.server.presence import disconnected, first_done, half_closed
from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.errors import describe_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any

    from starlette.types import Receive, Scope, Send

    from unicorn_async.server.options import ServerOptions
    from unicorn_async.server.protocol.answer import Answer
    from unicorn_async.server.protocol.completion_object import CompletionObject
    from unicorn_async.server.protocol.errors import ErrorInfo

PROBE_INTERVAL_S = 0.5
_COMMENT = {"type": "http.response.body", "body": b": still here\n\n", "more_body": True}
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
    """An ASGI response that comes into being while it is sent; `close` is called at the end, whatever happened."""

    def __init__(self, close: Callable[[], Awaitable[None]], *, send_timeout_s: float) -> None:
        self._close = close
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generate and send, unless the client goes first."""
        outlet = Outlet(scope, send, timeout_s=self._send_timeout_s)
        half_closed: asyncio.Event | None = scope.get("state", {}).get(HALF_CLOSED)
        try:
            work = asyncio.create_task(self._respond(outlet))
            tasks = [work, asyncio.create_task(disconnected(receive))]
            if half_closed is not None:
                tasks.append(asyncio.create_task(self._when_half_closed(half_closed, outlet)))
            try:
                await first_done(tasks)
            finally:
                for watcher in tasks[1:]:
                    watcher.cancelled() or watcher.exception()  # that the client is gone: then the work has ended, too
            if not work.cancelled():
                error = work.exception()  # not raised anew: its traceback would have the task, and that the error
                if error is not None and not isinstance(error, ClientGoneError):
                    raise error
            elif half_closed is not None and half_closed.is_set():
                await self._end_half_closed(outlet)
        except ClientGoneError:
            return
        finally:
            await self._close()

    @abstractmethod
    async def _when_half_closed(self, half_closed: asyncio.Event, outlet: Outlet) -> None:
        """Wait until the client sends nothing more, and return if the answer is to end then."""

    @abstractmethod
    async def _end_half_closed(self, outlet: Outlet) -> None:
        """Say, if it can be said, why the answer has ended."""

    @abstractmethod
    async def _respond(self, outlet: Outlet) -> None:
        """Generate and send the response."""


class EventStreamReply(Reply):
    """Server-sent events; `run` takes the function that sends one JSON text."""

    def __init__(
        self,
        run: Callable[[Callable[[str], Awaitable[None]]], Coroutine[object, object, None]],
        close: Callable[[], Awaitable[None]],
        *,
        send_timeout_s: float,
        keepalive_s: float,
        encode: Callable[[str], bytes],
        tail: bytes = b"",
    ) -> None:
        """A comment is sent where there was nothing else for `keepalive_s`."""
        super().__init__(close, send_timeout_s=send_timeout_s)
        self._run = run
        self._keepalive_s = keepalive_s
        self._encode = encode
        self._tail = tail

    @classmethod
    def of(
        cls,
        options: ServerOptions,
        run: Callable[[Callable[[str], Awaitable[None]]], Coroutine[object, object, None]],
        close: Callable[[], Awaitable[None]],
        *,
        encode: Callable[[str], bytes],
        tail: bytes = b"",
    ) -> Self:
        """Return a reply with a server's deadlines."""
        timeout_s, keepalive_s = options.send_timeout_s, options.keepalive_s
        return cls(run, close, send_timeout_s=timeout_s, keepalive_s=keepalive_s, encode=encode, tail=tail)

    async def _respond(self, outlet: Outlet) -> None:
        encode = self._encode

        async def emit(text: str) -> None:
            await outlet.send({"type": "http.response.body", "body": encode(text), "more_body": True})

        await outlet.send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
        signs = asyncio.create_task(self._show_life(outlet))
        try:
            await self._run(emit)
        finally:
            signs.cancel()
            await asyncio.wait((signs,))
        await outlet.send({"type": "http.response.body", "body": self._tail})

    async def _show_life(self, outlet: Outlet) -> None:
        """Send comments where nothing else is sent: proxies and clients give up on a connection that says nothing."""
        with suppress(ClientGoneError):
            while True:
                num_sent = outlet.num_sent
                await asyncio.sleep(self._keepalive_s)
                if outlet.num_sent == num_sent and not outlet.is_sending:
                    await outlet.send(_COMMENT)

    async def _when_half_closed(self, half_closed: asyncio.Event, outlet: Outlet) -> None:
        """Go on: an answer to the first of these comments, or to a token, tells if nobody is there any more."""
        await half_closed.wait()
        await probe(outlet)

    async def _end_half_closed(self, outlet: Outlet) -> None:
        """Say nothing: the client is gone."""


class WholeReply(Reply):
    """One JSON object at the end; its status tells whether the generation failed. `run` is as above."""

    def __init__(
        self,
        run: Callable[[Callable[[str], Awaitable[None]]], Coroutine[object, object, None]],
        close: Callable[[], Awaitable[None]],
        *,
        send_timeout_s: float,
        answer: Answer | CompletionObject[Any],
        text: Callable[[], str],
    ) -> None:
        super().__init__(close, send_timeout_s=send_timeout_s)
        self._run = run
        self._answer = answer
        self._text = text

    async def _respond(self, outlet: Outlet) -> None:
        await self._run(_nowhere)
        if self._answer.error is not None:
            await self._refuse(outlet, self._answer.error)
        else:
            await self._send(outlet, 200, self._text(), {})

    async def _when_half_closed(self, half_closed: asyncio.Event, outlet: Outlet) -> None:
        """End: nothing is written until the whole answer is there, so that nobody could tell if it has a reader."""
        await half_closed.wait()

    async def _end_half_closed(self, outlet: Outlet) -> None:
        await self._refuse(outlet, describe_error(half_closed("keep it open, or stream")))

    async def _refuse(self, outlet: Outlet, error: ErrorInfo) -> None:
        await self._send(outlet, error.status, encode_object({"error": error.to_json()}), error.retry_after)

    async def _send(self, outlet: Outlet, status: int, text: str, more: dict[str, str]) -> None:
        body = text.encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **more}
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await outlet.send({"type": "http.response.start", "status": status, "headers": encoded})
        await outlet.send({"type": "http.response.body", "body": body})


async def probe(outlet: Outlet) -> None:
    """Send comments among the events, until a client that is gone shows it."""
    while True:
        if outlet.num_sent and not outlet.is_sending:
            await outlet.send(_COMMENT)
        await asyncio.sleep(PROBE_INTERVAL_S)


async def _nowhere(text: str) -> None:
    """Take an event that nobody waits for."""
