"""A gateway's lanes: each event that has an answer goes to the replica it belongs to."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import aclosing
from typing import TYPE_CHECKING

from unicorn_async.ray.calls import Began, LaneCall
from unicorn_async.server.lane import Lane
from unicorn_async.server.protocol.client_event import ResumeEvent
from unicorn_async.server.protocol.fields import parse_object
from unicorn_async.server.request_context import asking

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from unicorn_async.ray.dispatch import Dispatch
    from unicorn_async.server.fronted import Began as NameTaker
    from unicorn_async.server.lane import Asked, Input


_FINAL = tuple(f'{{"type":"response.{end}"' for end in ("completed", "incomplete", "failed"))


class FarLanes:
    """Makes the lanes of one connection."""

    def __init__(self, dispatch: Dispatch, max_queued: int, began: NameTaker) -> None:
        """`began` gets the name of each response and of its lane."""
        self._dispatch = dispatch
        self._max_queued = max_queued
        self._began = began
        self._connection = secrets.token_hex(16)

    def lane(self, emit: Callable[[str], Awaitable[None]], stream_id: str | None) -> FarLane:
        """Return a lane."""
        return FarLane(self._dispatch, self._connection, emit, stream_id, self._began, max_queued=self._max_queued)


class FarLane(Lane):
    """One request at a time, each with a replica of its own."""

    wants_text = True

    def __init__(
        self,
        dispatch: Dispatch,
        connection: str,
        emit: Callable[[str], Awaitable[None]],
        stream_id: str | None,
        began: NameTaker,
        *,
        max_queued: int,
    ) -> None:
        super().__init__(emit, stream_id, max_queued=max_queued)
        self._dispatch = dispatch
        self._connection = connection
        self._began = began
        self._call: LaneCall | None = None
        self._has_begun = False  # only then the replica knows what to cancel
        self._cancels = False
        self._is_over = False  # its client has all of it, though the replica is not done
        self._canceling: asyncio.Task[bool] | None = None
        self._current_id: str | None = None
        self._replica = ""

    @property
    def current_id(self) -> str | None:
        """Name of the response under way."""
        return self._current_id

    def cancel(self) -> bool:
        """End the request in flight, with its last events; return whether there is one."""
        if self._is_over:
            return False
        self._cancels = True
        if self._has_begun and self._call is not None and self._canceling is None:
            self._canceling = asyncio.create_task(self._dispatch.engines.cancel_lane(self._call.lane))
        return True

    async def _answer(self, asked: Asked, held: Input) -> None:
        fields = parse_object(asked.text).data
        if isinstance(asked.request, ResumeEvent):
            session = await self._dispatch.place(asked.request.response_id)
        else:
            session = await self._dispatch.session(fields)
        self._call = LaneCall(self._connection, secrets.token_hex(16), asking.get(), asked.text)
        try:
            async with aclosing(self._dispatch.lane(self._call, session, self._accepted)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Began):
                        self._begin(piece.response_id)
                    elif isinstance(piece, str):
                        if piece.startswith(_FINAL):
                            self._is_over, self._current_id = True, None
                        await self._emit(piece)
        finally:
            self._call, self._current_id = None, None
            self._has_begun = self._cancels = self._is_over = False
            await self._end_canceling()

    def _accepted(self, replica: str) -> None:
        self._replica = replica

    def _begin(self, response_id: str) -> None:
        self._has_begun, self._current_id = True, response_id
        self._dispatch.note(response_id, self._replica)
        self._began(response_id, self.stream_id)
        if self._cancels:
            self.cancel()

    async def _end_canceling(self) -> None:
        task, self._canceling = self._canceling, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
