"""One channel of a websocket: its requests are answered one after the other."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from unicorn_async.server.generation import ClientGoneError
from unicorn_async.server.protocol.client_event import ResumeEvent
from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.errors import ApiError, describe_error
from unicorn_async.server.protocol.retrieval import Retrieval

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from unicorn_async.server.active_response import ActiveResponse
    from unicorn_async.server.background_answers import BackgroundAnswer
    from unicorn_async.server.ledger import Lease
    from unicorn_async.server.protocol.responses_request import ResponsesRequest
    from unicorn_async.server.service import Service
    from unicorn_async.server.store import ResponseStore

logger = logging.getLogger(__name__)


class Input:
    """The bytes of a request that waits or is answered, as its connection and its client hold them."""

    def __init__(self, connection: Lease, client: Lease) -> None:
        self.client = client  # of one that is handed over somebody else gives it back
        self._connection = connection

    def release(self) -> None:
        """Give back what is held; a second call does nothing."""
        self._connection.release()
        if not self.client.is_handed_over:
            self.client.release()


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
        self._waiting: deque[tuple[ResponsesRequest | ResumeEvent, Input]] = deque()
        self._cancels_next = False  # asked for before the request had a response

    def put(self, request: ResponsesRequest | ResumeEvent, held: Input) -> None:
        """Queue a request, and give back what it holds when it is answered.

        Raises:
            ApiError: 429, the channel is full.
        """
        limit = self._service.options.max_queued
        if len(self._waiting) >= limit:
            raise ApiError(f"{limit} requests wait in this stream already", status=429, code="stream_full")
        self._waiting.append((request, held))

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
                request, held = self._waiting.popleft()
                try:
                    await self._answer(request, held)
                finally:
                    held.release()
        except ClientGoneError:
            pass  # what waits is given back below
        finally:
            while self._waiting:
                self._waiting.popleft()[1].release()

    async def _answer(self, request: ResponsesRequest | ResumeEvent, held: Input) -> None:
        try:
            if isinstance(request, ResumeEvent):
                answer = await self._service.resume(request.response_id, request.place)
                await self._follow(answer, request.place)
            elif request.background:
                held.client.is_handed_over = True
                answer = await self._service.open_background(request, held.client)
                await self._follow(answer, Retrieval())
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

    async def _follow(self, answer: BackgroundAnswer, place: Retrieval) -> None:
        """Send a background answer's events, with this channel's name on each."""
        if answer.active is not None:
            self._begin(answer.active)
        name = encode_object({} if self.stream_id is None else {"stream_id": self.stream_id})[1:]
        tail = name if name == "}" else f",{name}"

        async def emit(event: str) -> None:
            await self._emit(event[:-1] + tail)

        await answer.log.follow(place.after, emit, skip_missing=place.skip_missing)

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
