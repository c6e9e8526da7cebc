"""What a replica answers its gateways: HTTP through the server's own application, websockets' events in lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.ray.calls import Accepted, Report
from unicorn_async.ray.far_channel import FarChannels
from unicorn_async.ray.inside import exchange
from unicorn_async.server.app import application
from unicorn_async.server.health import health, is_ready, is_well
from unicorn_async.server.metrics_text import metrics_text
from unicorn_async.server.model_host import ModelHost
from unicorn_async.server.request_context import asking
from unicorn_async.server.service import Service

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from unicorn_async.engine.types import EngineAPI
    from unicorn_async.ray.calls import HttpCall, HttpPiece, LaneCall, LanePiece
    from unicorn_async.server.client import Client
    from unicorn_async.server.options import ServerOptions


class Answers:
    """One replica's; `app` has to run, by its lifespan, while they are asked for."""

    def __init__(self, engine: EngineAPI, options: ServerOptions, replica: str) -> None:
        """`replica` is its name; the engine stays its owner's."""
        host = ModelHost.around(engine)
        self._replica = replica
        self._service = Service(host, options)
        self._channels = FarChannels(self._service)
        self.app = application(self._service, host)

    async def http(self, call: HttpCall) -> AsyncGenerator[HttpPiece, None]:
        """Answer an HTTP request; closing this ends it as a client does that goes away."""
        yield Accepted(self._replica)
        pieces = exchange(self.app, call)
        try:
            async for piece in pieces:
                yield piece
        finally:
            await pieces.aclose()

    async def lane(self, call: LaneCall) -> AsyncGenerator[LanePiece, None]:
        """Answer a websocket's event; closing this ends the answer, unless it runs in the background."""
        yield Accepted(self._replica)
        pieces = self._channels.answer(call)
        try:
            async for piece in pieces:
                yield piece
        finally:
            await pieces.aclose()

    def cancel_lane(self, lane: str) -> bool:
        """End what is answered in a lane with its last events; return whether it is one of this replica's."""
        return self._channels.cancel(lane)

    async def cancel_background(self, response_id: str, client: Client) -> bool:
        """End a client's background answer; return whether it is one of this replica's, and under way."""
        token = asking.set(client)
        try:
            return await self._service.cancel_background(response_id)
        finally:
            asking.reset(token)

    async def holder(self, response_id: str) -> str | None:
        """Return this replica's name if it holds the response, or is about to."""
        return self._replica if await self._service.responses.holds(response_id) else None

    def report(self) -> Report:
        """Say how this replica is."""
        service, state = self._service, self._service.models.state
        body = health(state, service.responses.archive.state, can_switch=False)
        counted = metrics_text(service.metrics, state, service.responses.archive.state)
        return Report(self._replica, is_well(state), is_ready(state), body, counted)
