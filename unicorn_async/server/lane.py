"""The requests of one `stream_id` of a websocket: they are answered one after the other, here or elsewhere."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.server.generation import ClientGoneError
from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.errors import ApiError, describe_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from unicorn_async.server.ledger import Lease
    from unicorn_async.server.protocol.client_event import ResumeEvent
    from unicorn_async.server.protocol.responses_request import ResponsesRequest

logger = logging.getLogger(__name__)


class Asked(NamedTuple):
    """A client's event that has an answer: what it means, and how it came if that is wanted."""

    request: ResponsesRequest | ResumeEvent
    text: str | bytes = ""


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


class Lane(ABC):
    """One request in flight, a bounded number waiting; a further one is refused."""

    wants_text = False  # of each event, as it came

    def __init__(self, emit: Callable[[str], Awaitable[None]], stream_id: str | None, *, max_queued: int) -> None:
        self.stream_id = stream_id
        self._emit = emit
        self._max_queued = max_queued
        self._waiting: deque[tuple[Asked, Input]] = deque()

    @property
    @abstractmethod
    def current_id(self) -> str | None:
        """Name of the response under way, None if none is, or it is not known yet."""

    @abstractmethod
    def cancel(self) -> bool:
        """End the request in flight; return whether there was one."""

    def put(self, request: ResponsesRequest | ResumeEvent, text: str | bytes, held: Input) -> None:
        """Queue a request, and give back what it holds when it is answered.

        Raises:
            ApiError: 429, the channel is full.
        """
        limit = self._max_queued
        if len(self._waiting) >= limit:
            raise ApiError(f"{limit} requests wait in this stream already", status=429, code="stream_full")
        self._waiting.append((Asked(request, text) if self.wants_text else Asked(request), held))

    async def run(self) -> None:
        """Answer until nothing waits; a lost client ends it too."""
        try:
            while self._waiting:
                asked, held = self._waiting.popleft()
                try:
                    await self._answer_or_tell(asked, held)
                finally:
                    held.release()
        except ClientGoneError:
            pass  # what waits is given back below
        finally:
            while self._waiting:
                self._waiting.popleft()[1].release()

    async def _answer_or_tell(self, asked: Asked, held: Input) -> None:
        try:
            await self._answer(asked, held)
        except ClientGoneError:
            raise
        except Exception as exc:
            if describe_error(exc).status == 500:
                logger.exception("request failed")
            await self._emit(error_event(exc, self.stream_id))

    @abstractmethod
    async def _answer(self, asked: Asked, held: Input) -> None:
        """Send the events of one answer; what is raised is told."""


def error_event(exc: BaseException, stream_id: str | None) -> str:
    """Return the websocket's `error` event for a request that got no response, or no end of one."""
    error = describe_error(exc)
    event: dict[str, object] = {"type": "error", "status": error.status, "error": error.to_json()}
    if stream_id is not None:
        event["stream_id"] = stream_id
    return encode_object(event)
