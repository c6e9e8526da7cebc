"""The replicas as a gateway sees them; how they are reached is another file's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from unicorn_async.server.protocol.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from unicorn_async.ray.calls import HttpCall, HttpPiece, LaneCall, LanePiece, Report
    from unicorn_async.server.client import Client

RETRY_S = 1.0  # other replicas answer at once


class Engines(Protocol):
    """Calls go to a replica by a session's hash or name, without one to any; all of them begin with `Accepted`.

    Closing a stream ends what answers it. All raise ApiError: 503 where a replica has ended, or too many calls wait.
    """

    def http(self, call: HttpCall, session: str | None) -> AsyncGenerator[HttpPiece, None]:
        """Have an HTTP request answered."""

    def lane(self, call: LaneCall, session: str | None) -> AsyncGenerator[LanePiece, None]:
        """Have a websocket's event answered."""

    async def cancel_lane(self, lane: str) -> bool:
        """End what is answered in a lane, wherever that is; return whether it is."""

    async def cancel_background(self, response_id: str, client: Client) -> bool:
        """End a client's background answer, wherever it is; return whether it is under way."""

    async def holder(self, response_id: str) -> str | None:
        """Return the replica that holds a response, None if none does."""

    async def reports(self) -> list[Report]:
        """Return how each replica is, of those that tell."""


def replica_lost() -> ApiError:
    """Return the error of an answer whose replica has died."""
    message = "the replica that made this answer has ended; ask again, and another one answers"
    return ApiError(message, status=503, code="replica_lost", retry_s=RETRY_S)


def too_many_waiting() -> ApiError:
    """Return the error of a request that finds no place, nor one to wait in."""
    message = "all replicas are busy, and as many requests wait as may"
    return ApiError(message, status=503, code="too_many_waiting", retry_s=RETRY_S)


def replica_failed() -> ApiError:
    """Return the error of an answer that ended where it should not have."""
    return ApiError("a replica has failed; its log has the details", status=500, code="internal_error")
