"""Which replica a request is for, and its answer from there."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

from unicorn_async.ray.affinity import Places, at_replica, beginning, was_chosen
from unicorn_async.ray.calls import Accepted
from unicorn_async.ray.engines import replica_failed
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.request_context import asking

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from unicorn_async.ray.calls import HttpCall, HttpPiece, LaneCall, LanePiece
    from unicorn_async.ray.engines import Engines

T = TypeVar("T")


class Dispatch:
    """Asks replicas for what one gateway's clients want."""

    def __init__(self, engines: Engines, *, queue_timeout_s: float, beginning_chars: int) -> None:
        """A request that gets no replica's place in `queue_timeout_s` is refused."""
        self.engines = engines
        self._places = Places()
        self._queue_timeout_s = queue_timeout_s
        self._beginning_chars = beginning_chars

    async def session(self, body: Mapping[str, object]) -> str | None:
        """Return where a request with this body belongs: what it goes on from goes before how it begins."""
        for name in ("previous_response_id", "response_id"):
            response_id = body.get(name)
            if isinstance(response_id, str) and (place := await self.place(response_id)) is not None:
                return place
        return beginning(body, asking.get().cache_salt, self._beginning_chars)

    async def place(self, response_id: str) -> str | None:
        """Return where a response is, None if nobody knows it; its own name tells it, unless a client chose that."""
        replica = self._places.replica(response_id)
        if replica is None and was_chosen(response_id):
            replica = await self.engines.holder(response_id)
            if replica is not None:
                self.note(response_id, replica)
        return None if replica is None else at_replica(replica)

    def note(self, response_id: str, replica: str) -> None:
        """Remember where a response is whose name does not tell it."""
        self._places.note(response_id, replica)

    def http(
        self, call: HttpCall, session: str | None, accepted: Callable[[str], None]
    ) -> AsyncGenerator[HttpPiece, None]:
        """Yield an HTTP answer's head and body; `accepted` gets the replica's name first."""
        return self._placed(self.engines.http(call, session), accepted)

    def lane(
        self, call: LaneCall, session: str | None, accepted: Callable[[str], None]
    ) -> AsyncGenerator[LanePiece, None]:
        """Yield the answer to a websocket's event; `accepted` gets the replica's name first."""
        return self._placed(self.engines.lane(call, session), accepted)

    async def _placed(
        self, pieces: AsyncGenerator[T, None], accepted: Callable[[str], None]
    ) -> AsyncGenerator[T, None]:
        async with aclosing(pieces):
            try:
                async with asyncio.timeout(self._queue_timeout_s):
                    first = await anext(pieces, None)
            except TimeoutError as exc:
                message = f"the request has waited {self._queue_timeout_s:g} s for a replica, and got no place"
                raise ApiError(message, status=503, code="queue_timeout") from exc
            if not isinstance(first, Accepted):
                raise replica_failed()
            accepted(first.replica)
            async for piece in pieces:
                yield piece
