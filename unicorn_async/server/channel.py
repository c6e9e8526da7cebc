"""One channel of a websocket: its requests are answered one after the other."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from unicorn_async.server.generation import ClientGoneError
from unicorn_async.server.protocol.client_event import ResumeEvent
from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.errors import ApiError, describe_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from unicorn_async.server.active_response import ActiveResponse
    from unicorn_async.server.background_answers import BackgroundAnswer
    from unicorn_async.server.protocol.responses_request import ResponsesRequest
    from unicorn_async.server.service import Service
    from unicorn_async.server.store import ResponseStore

logger = logging.getLogger(__name__)


class Channel:
    """The requests of one `stream_id`: one in flight, a bounded number waiting; a further one is refused."""

    def __init__(
        self,
        service: Service,
        store: ResponseStore,
        emit: Callable[[str], Awaitable[None]],
        stream_id: str | None,
        began: deque[tuple[str, str | None]],
    ) -> None:
        """`began` gets the name of each response, with this channel's."""
        self.stream_id = stream_id
        self.current: ActiveResponse | None = None
        self._service = service
        self._store = store
        self._emit = emit
        self._began = began
        self._waiting: deque[ResponsesRequest | ResumeEvent] = deque()
        self._cancels_next = False  # asked for before the request had a response

    def put(self, request: ResponsesRequest | ResumeEvent) -> None:
        """Queue a request.

        Raises:
            ApiError: 429, the channel is full.
        """
        limit = self._service.options.max_queued
        if len(self._waiting) >= limit:
            raise ApiError(f"{limit} requests wait in this stream already", status=429, code="stream_full")
        self._waiting.append(request)

    def cancel(self) -> bool:
        """End the request in flight; return whether there was one."""
        if self.current is None:
            self._cancels_next = True
            return True
        if self.current.generation is None:
            return False
        self.current.generation.cancel()
        return True

    async def run(self) -> None:
        """Answer until nothing waits; a lost client ends it too."""
        try:
            while self._waiting:
                await self._answer(self._waiting.popleft())
        except ClientGoneError:
            self._waiting.clear()

    async def _answer(self, request: ResponsesRequest | ResumeEvent) -> None:
        try:
            if isinstance(request, ResumeEvent):
                answer = await self._service.resume(request.response_id, request.starting_after)
                await self._follow(answer, request.starting_after)
            elif request.background:
                await self._follow(await self._service.open_background(request), -1)
            else:
                await self._run(request)
        except ClientGoneError:
            raise
        except Exception as exc:
            if describe_error(exc).status == 500:
                logger.exception("request failed")
            await self._emit(error_event(exc, self.stream_id))
        finally:
            self.current = None
            self._cancels_next = False

    async def _run(self, request: ResponsesRequest) -> None:
        active = await self._service.open_response(request, stream_id=self.stream_id, local=self._store)
        self._begin(active)
        try:
            await self._service.run_response(active, self._emit)
        finally:
            await self._service.close_response(active, local=self._store)

    async def _follow(self, answer: BackgroundAnswer, after: int) -> None:
        """Send a background answer's events, with this channel's name on each."""
        if answer.active is not None:
            self._begin(answer.active)
        name = encode_object({} if self.stream_id is None else {"stream_id": self.stream_id})[1:]
        tail = name if name == "}" else f",{name}"

        async def emit(event: str) -> None:
            await self._emit(event[:-1] + tail)

        await answer.log.follow(after, emit)

    def _begin(self, active: ActiveResponse) -> None:
        self.current = active
        self._began.append((active.id, self.stream_id))
        if self._cancels_next:
            self._cancels_next = False
            self.cancel()


def error_event(exc: BaseException, stream_id: str | None) -> str:
    """Return the websocket's `error` event for a request that got no response."""
    error = describe_error(exc)
    event: dict[str, object] = {"type": "error", "status": error.status, "error": error.to_json()}
    if stream_id is not None:
        event["stream_id"] = stream_id
    return encode_object(event)
