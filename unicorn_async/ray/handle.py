"""The replicas through Ray Serve's handle: Ray's own router chooses by the session, and knows who is busy."""

from __future__ import annotations

import logging
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeVar

from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError

from unicorn_async.ray.calls import Report
from unicorn_async.ray.engines import replica_failed, replica_lost, too_many_waiting

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ray.serve.handle import DeploymentHandle

    from unicorn_async.ray.calls import HttpCall, HttpPiece, LaneCall, LanePiece
    from unicorn_async.server.client import Client

logger = logging.getLogger(__name__)

T = TypeVar("T")
_ASK_ALL_S = 5.0
_LOST = (RayActorError, ReplicaUnavailableError, DeploymentUnavailableError)


class HandleEngines:
    """`Engines` of one deployment of `Replica`."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle
        self._reports: list[Report] = []

    def http(self, call: HttpCall, session: str | None) -> AsyncGenerator[HttpPiece, None]:
        """Have an HTTP request answered."""
        return self._stream("http", call, session)

    def lane(self, call: LaneCall, session: str | None) -> AsyncGenerator[LanePiece, None]:
        """Have a websocket's event answered."""
        return self._stream("lane", call, session)

    async def cancel_lane(self, lane: str) -> bool:
        """End what is answered in a lane, wherever that is; return whether it is."""
        return True in await self._all("cancel_lane", lane)

    async def cancel_background(self, response_id: str, client: Client) -> bool:
        """End a client's background answer, wherever it is; return whether it is under way."""
        return True in await self._all("cancel_background", response_id, client)

    async def holder(self, response_id: str) -> str | None:
        """Return the replica that holds a response, None if none does."""
        return next((name for name in await self._all("holder", response_id) if isinstance(name, str)), None)

    async def reports(self) -> list[Report]:
        """Return how each replica is, of those that tell."""
        return [one for one in await self._all("report") if isinstance(one, Report)]

    async def _all(self, method: str, *arguments: object) -> list[object]:
        """Ask all replicas at once, beside what waits for places."""
        try:
            asked = Context().run(self._handle.broadcast, method, *arguments)
            return list(await asked.results_async(timeout_s=_ASK_ALL_S, return_exceptions=True))
        except TimeoutError:
            logger.warning("not all replicas answered %s within %g s", method, _ASK_ALL_S)
            return []

    async def _stream(self, method: str, call: object, session: str | None) -> AsyncGenerator[Any, None]:
        handle = self._handle.options(method_name=method, stream=True, session_id=session or "")
        # Ray finds a waiting call by the name of the request that makes it, which all lanes of a websocket would
        # share: of several at a time all but one would wait for ever. Outside of that request each has its own.
        response = Context().run(handle.remote, call)
        has_ended = False
        try:
            async for piece in response:
                yield piece
            has_ended = True
        except _LOST as exc:
            has_ended = True
            logger.warning("a replica has ended with an answer under way: %s", str(exc).partition("\n")[0])
            raise replica_lost() from exc
        except BackPressureError as exc:
            has_ended = True
            raise too_many_waiting() from exc
        except Exception as exc:
            has_ended = True
            logger.exception("a replica has failed")
            raise replica_failed() from exc
        finally:
            if not has_ended:
                response.cancel()
