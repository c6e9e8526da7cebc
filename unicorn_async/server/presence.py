"""Who waits for the answer to an HTTP request: what the server waits for on its behalf ends when it goes."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from unicorn_async.server.connection import HALF_CLOSED
from unicorn_async.server.generation import ClientGoneError
from unicorn_async.server.protocol.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from starlette.types import Receive, Scope

T = TypeVar("T")


class Presence:
    """The client of a request whose body has been read."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        self._half_closed: asyncio.Event | None = scope.get("state", {}).get(HALF_CLOSED)

    async def during(self, work: Coroutine[object, object, T]) -> T:
        """Return what comes of work, which is cancelled if the client goes.

        Raises:
            ClientGoneError: it is gone.
            ApiError: it sends nothing more; nothing can be written yet, so that nobody could tell whether it is there.
        """
        waiting = asyncio.create_task(work)
        tasks: list[asyncio.Task[object]] = [waiting, asyncio.create_task(disconnected(self._receive))]
        if self._half_closed is not None:
            tasks.append(asyncio.create_task(self._half_closed.wait()))
        try:
            await first_done(tasks)
            if not waiting.cancelled():
                return waiting.result()
            if self._half_closed is not None and self._half_closed.is_set():
                raise half_closed("keep it open, a stream too until it has begun")
            raise ClientGoneError
        finally:
            del waiting, tasks  # an error of theirs has this frame in its traceback


present: ContextVar[Presence | None] = ContextVar("unicorn_present", default=None)  # None: nobody has to be there


async def while_present(work: Coroutine[object, object, T]) -> T:
    """Return what comes of work, as `Presence.during` does where somebody has to be there for it."""
    presence = present.get()
    return await (work if presence is None else presence.during(work))


async def first_done(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Return when one of the tasks has ended, and the others that are cancelled then; a cancellation ends them, too."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def disconnected(receive: Receive) -> None:
    """Return when the connection of a request is lost; its body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def half_closed(advice: str) -> ApiError:
    """Return the error of a request whose client has closed its side, where that can't be told from its going."""
    message = f"the client closed its side of the connection before the answer was there; {advice}"
    return ApiError(message, code="half_closed")
