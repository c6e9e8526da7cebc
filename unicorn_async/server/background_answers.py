"""Answers that go on without a listener: their events are kept for a while, for whoever takes them up again."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.server.ledger import Lease, Ledger
from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

    from unicorn_async.server.active_response import ActiveResponse
    from unicorn_async.server.options import ServerOptions
    from unicorn_async.server.protocol.responses_request import ResponsesRequest
    from unicorn_async.server.protocol.retrieval import Retrieval

logger = logging.getLogger(__name__)

_TURN = 32  # kept events that a listener gets before others have their turn
_EVENT_CHARS = 64  # what an event takes beside its text, about
_MAX_REPEATED_CHARS = 64 << 10  # of what a request has in each Response object


class EventsGoneError(ApiError):
    """Events that are wanted are no longer kept; `number` is the first of them."""

    def __init__(self, number: int, first: int) -> None:
        message = f"starting_after: events up to {first - 1} are no longer kept, got {number - 1}"
        message += "; skip_missing begins with those that are"
        super().__init__(message, code="events_not_kept", param="starting_after")
        self.number = number


class EventLog:
    """The events of one answer, numbered from 0 as their `sequence_number`; the oldest go where there is no room.

    Listeners read from it, each at its own pace: a slow one holds nothing.
    """

    def __init__(self, max_chars: Callable[[], int]) -> None:
        """`max_chars` is asked at each event: the room may be shared."""
        self.chars = 0
        self._max_chars = max_chars
        self._events: deque[str] = deque()
        self._first = 0  # number of the oldest one that is there
        self._has_ended = False
        self._changed = asyncio.Event()

    async def append(self, event: str) -> None:
        """Keep an event, and wake the listeners."""
        self._events.append(event)
        self.chars += len(event) + _EVENT_CHARS
        while self.chars > self._max_chars() and len(self._events) > 1:
            self.chars -= len(self._events.popleft()) + _EVENT_CHARS
            self._first += 1
        self._wake()
        await asyncio.sleep(0)  # who waits for it gets it, before it may go for the next one's room

    def end(self) -> None:
        """Say that no event will follow."""
        self._has_ended = True
        self._wake()

    async def ended(self) -> None:
        """Wait until the last event is there."""
        while not self._has_ended:
            await self._changed.wait()

    def forget(self) -> None:
        """Keep no event any more, not for listeners either that have not come to the end."""
        self._first += len(self._events)
        self._events.clear()
        self.chars = 0
        self._wake()

    def check(self, place: Retrieval) -> None:
        """See whether all the events that are wanted are there, or will be.

        Raises:
            ApiError: 400, some are no longer kept, or there is no event of this number.
        """
        after, end = place.after, self._first + len(self._events)
        if after + 1 < self._first and not (place.skip_missing and self._events):
            raise EventsGoneError(after + 1, self._first)
        if after >= end:
            message = f"starting_after: expected the number of an event, at most {end - 1}, got {after}"
            raise ApiError(message, code="invalid_value", param="starting_after")

    async def follow(self, after: int, emit: Callable[[str], Awaitable[None]], *, skip_missing: bool = False) -> None:
        """Send the events after the one of this number, to the last that there will be.

        Raises:
            EventsGoneError: some are no longer kept, and are not to be skipped; or there are none any more.
        """
        number = after + 1
        while True:
            if number < self._first:
                if not (skip_missing and self._events):
                    raise EventsGoneError(number, self._first)
                number = self._first
            changed = self._changed
            if number < self._first + len(self._events):
                await emit(self._events[number - self._first])
                number += 1
                if number % _TURN == 0:
                    await asyncio.sleep(0)  # what is kept may be long, and a connection that takes it all does not wait
            elif self._has_ended:
                return
            else:
                await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass(slots=True)
class BackgroundAnswer:
    """A response and its events; of one that has ended there is only its object as JSON, not what it was made of."""

    id: str
    log: EventLog
    active: ActiveResponse | None  # None when it has ended
    owner: str  # name of the client whose it is
    _ended_body: str = ""

    @property
    def body(self) -> str:
        """The response's object as JSON."""
        return self._ended_body if self.active is None else encode_object(self.active.answer.state.to_json())

    @property
    def chars(self) -> int:
        """What is held of one that has ended."""
        return self.log.chars + len(self._ended_body)

    def end(self) -> None:
        """Let go of the request and of what made the answer, and say that no event will follow."""
        self._ended_body, self.active = self.body, None
        self.log.end()


class BackgroundAnswers:
    """The background answers of one server: those under way, and for a while those that have ended.

    Bounded are the number under way, and the characters kept of each, of those under way and of the ended ones in all.
    """

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._answers: dict[str, BackgroundAnswer] = {}
        self._ended: OrderedDict[str, asyncio.TimerHandle] = OrderedDict()
        self._tasks: dict[asyncio.Task[None], Callable[[], Awaitable[None]]] = {}
        self._opening: dict[str, asyncio.Event] = {}  # those whose clients chose a name
        self._claimed = 0
        self._clients = Ledger(
            options.max_client_background, what="background answers under way", code="background_full"
        )

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, response_id: str) -> BackgroundAnswer | None:
        """Return an answer, None if there is none, or none any more."""
        return self._answers.get(response_id)

    @contextmanager
    def opening(self, request: ResponsesRequest, client: str) -> Iterator[Lease]:
        """Hold a place of a client for a request, and the name that it chose, if any; the block `start`s its answer.

        Raises:
            ApiError: 429, all are taken; 400, each of the answer's objects would be too large to be kept; 409, another
                answer that is kept, or about to begin, has this name.
        """
        repeated = len(encode_object({"instructions": request.instructions, "metadata": request.metadata}))
        if repeated > _MAX_REPEATED_CHARS:
            message = f"background: instructions and metadata may have {_MAX_REPEATED_CHARS} characters, got {repeated}"
            raise ApiError(message, code="invalid_value", param="instructions")
        limit = self._options.max_background
        if self._claimed >= limit:
            raise ApiError(f"{limit} background answers are under way already", status=429, code="background_full")
        name = request.response_id
        if name is not None and (name in self._opening or name in self._answers):
            raise name_taken(name)
        lease = self._clients.claim(client)
        self._claimed += 1
        if name is not None:
            self._opening[name] = asyncio.Event()
        try:
            yield lease
        except BaseException:
            self._release(lease)
            raise
        finally:
            if name is not None:
                self._opening.pop(name).set()

    async def opened(self, response_id: str) -> None:
        """Wait until the answer of this name is there, if it is about to begin."""
        opening = self._opening.get(response_id)
        if opening is not None:
            await opening.wait()

    def start(
        self,
        active: ActiveResponse,
        run: Callable[[Callable[[str], Awaitable[None]]], Coroutine[object, object, None]],
        close: Callable[[], Awaitable[None]],
        lease: Lease,
        owner: str,
    ) -> BackgroundAnswer:
        """Let an answer run by itself, in a place that is held, and give that back at its end."""
        answer = BackgroundAnswer(active.id, EventLog(self._room), active, owner)
        self._answers[active.id] = answer
        task = asyncio.create_task(self._run(answer, run, close, lease))
        self._tasks[task] = close
        task.add_done_callback(self._tasks.pop)
        return answer

    def _room(self) -> int:
        return min(self._options.max_event_chars, self._options.max_kept_event_chars // max(1, self._claimed))

    def forget(self, response_id: str) -> None:
        """Keep an answer that has ended no longer."""
        timer = self._ended.pop(response_id, None)
        if timer is not None:
            timer.cancel()
            self._answers.pop(response_id).log.forget()

    async def close(self) -> None:
        """End all."""
        tasks = dict(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for close in tasks.values():
            await close()  # a task that was cancelled before it began has not done it
        for response_id in tuple(self._ended):
            self.forget(response_id)

    async def _run(
        self,
        answer: BackgroundAnswer,
        run: Callable[[Callable[[str], Awaitable[None]]], Coroutine[object, object, None]],
        close: Callable[[], Awaitable[None]],
        lease: Lease,
    ) -> None:
        try:
            await run(answer.log.append)
        except Exception:
            logger.exception("background answer failed")
        finally:
            try:
                await close()
            finally:
                self._release(lease)
                answer.end()
                self._keep(answer)

    def _keep(self, answer: BackgroundAnswer) -> None:
        """Keep an answer that has just ended for a while; where there is no room, the oldest of who has most goes."""
        name = answer.id
        loop = asyncio.get_running_loop()
        self._ended[name] = loop.call_later(self._options.keep_events_s, self.forget, name)
        chars: dict[str, int] = {}
        for kept in map(self._answers.__getitem__, self._ended):
            chars[kept.owner] = chars.get(kept.owner, 0) + kept.chars
        while sum(chars.values()) > self._options.max_kept_event_chars:
            owner = max(chars, key=chars.__getitem__)
            oldest = next(kept for kept in map(self._answers.__getitem__, self._ended) if kept.owner == owner)
            chars[owner] -= oldest.chars
            self.forget(oldest.id)

    def _release(self, lease: Lease) -> None:
        lease.release()
        self._claimed -= 1


def name_taken(response_id: str) -> ApiError:
    """Return the error for a name that its client chose, and that another response has."""
    message = f"there is a response {response_id!r} already"
    return ApiError(message, status=409, code="response_exists", param="response_id")
