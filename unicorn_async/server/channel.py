"""One channel of a websocket whose requests are answered here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.server.lane import Lane
from unicorn_async.server.protocol.client_event import ResumeEvent
from unicorn_async.server.protocol.encoding import encode_text
from unicorn_async.server.protocol.retrieval import Retrieval
from unicorn_async.server.store import ResponseStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from unicorn_async.server.active_response import ActiveResponse
    from unicorn_async.server.background_answers import BackgroundAnswer
    from unicorn_async.server.fronted import Began
    from unicorn_async.server.lane import Asked, Input
    from unicorn_async.server.protocol.responses_request import ResponsesRequest
    from unicorn_async.server.service import Service
    from unicorn_async.server.store import LocalStore

LOCAL_RESPONSES = 16  # responses with `store` false that a connection can go on from


class Channels:
    """Makes the channels of one connection."""

    def __init__(self, service: Service, began: Began) -> None:
        """`began` gets the name of each response and of its lane."""
        self._service = service
        self._began = began
        self._store = ResponseStore(LOCAL_RESPONSES, service.options.max_stored_chars // LOCAL_RESPONSES)

    def lane(self, emit: Callable[[str], Awaitable[None]], stream_id: str | None) -> Channel:
        """Return a channel."""
        return Channel(self._service, self._store, emit, stream_id, self._began)


class Channel(Lane):
    """A lane of one service."""

    def __init__(
        self,
        service: Service,
        store: LocalStore,
        emit: Callable[[str], Awaitable[None]],
        stream_id: str | None,
        began: Began,
    ) -> None:
        """`began` gets the name of each response, with this channel's."""
        super().__init__(emit, stream_id, max_queued=service.options.max_queued)
        self._service = service
        self._store = store
        self._began = began
        self._current: ActiveResponse | None = None
        self._cancels_next = False  # asked for before the request had a response

    @property
    def current_id(self) -> str | None:
        """Name of the response under way."""
        return None if self._current is None else self._current.id

    def cancel(self) -> bool:
        """End the request in flight; return whether there was one."""
        if self._current is None:
            self._cancels_next = True
            return True
        if self._current.generation is None:
            return False
        self._current.generation.cancel()
        return True

    async def run(self) -> None:
        """Answer until nothing waits; a lost client ends it too. The server's end waits for what is told of its end."""
        with self._service.telling():
            await super().run()

    async def _answer(self, asked: Asked, held: Input) -> None:
        request = asked.request
        try:
            if isinstance(request, ResumeEvent):
                found = await self._service.responses.resume(request.response_id, request.place)
                if isinstance(found, list):
                    for event in found:
                        await self._emit(self._named(event))
                else:
                    await self._follow(found, request.place)
            elif request.background:
                held.client.is_handed_over = True
                answer = await self._service.open_background(request, held.client)
                await self._follow(answer, Retrieval())
            else:
                await self._run(request)
        finally:
            self._current = None
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

        async def emit(event: str) -> None:
            await self._emit(self._named(event))

        await answer.log.follow(place.after, emit, skip_missing=place.skip_missing)

    def _named(self, event: str) -> str:
        """Return an event with this channel's name on it."""
        return event if self.stream_id is None else f'{event[:-1]},"stream_id":{encode_text(self.stream_id)}}}'

    def _begin(self, active: ActiveResponse) -> None:
        self._current = active
        self._began(active.id, self.stream_id)
        if self._cancels_next:
            self._cancels_next = False
            self.cancel()
