"""A replica: an engine and what answers gateways, in a process that Ray Serve starts, looks after and ends."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from ray import serve

from unicorn_async.engine.engine import Engine
from unicorn_async.ray.affinity import response_names
from unicorn_async.ray.answers import Answers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from unicorn_async.ray.arguments import Arguments
    from unicorn_async.ray.calls import HttpCall, HttpPiece, LaneCall, LanePiece, Report
    from unicorn_async.server.client import Client


class Replica:
    """What Ray Serve makes the engines' deployment of; it owns the engine. Its methods are what gateways call."""

    async def __init__(self, arguments: Arguments) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        """Open the engine; the model loads behind that."""
        name = serve.get_replica_context().replica_id.unique_id
        options = replace(arguments.options, response_names=response_names(name))
        self._held = AsyncExitStack()
        self._engine = await self._held.enter_async_context(Engine.open(arguments.model, config=arguments.config))
        self._answers = Answers(self._engine, options, name)
        await self._held.enter_async_context(self._answers.app.router.lifespan_context(self._answers.app))

    async def http(self, call: HttpCall) -> AsyncGenerator[HttpPiece, None]:
        """As `Answers.http`."""
        async with aclosing(self._answers.http(call)) as pieces:
            async for piece in pieces:
                yield piece

    async def lane(self, call: LaneCall) -> AsyncGenerator[LanePiece, None]:
        """As `Answers.lane`."""
        async with aclosing(self._answers.lane(call)) as pieces:
            async for piece in pieces:
                yield piece

    async def cancel_lane(self, lane: str) -> bool:
        """As `Answers.cancel_lane`."""
        return self._answers.cancel_lane(lane)

    async def cancel_background(self, response_id: str, client: Client) -> bool:
        """As `Answers.cancel_background`."""
        return await self._answers.cancel_background(response_id, client)

    async def holder(self, response_id: str) -> str | None:
        """As `Answers.holder`."""
        return await self._answers.holder(response_id)

    async def report(self) -> Report:
        """As `Answers.report`."""
        return self._answers.report()

    def check_health(self) -> None:
        """Raise if requests can't be taken, and will not be: Ray Serve then starts another replica in this one's place.

        It asks some times before it does, in which a process that is lost comes back by itself.
        """
        if self._engine.has_failed:
            raise RuntimeError("the engine has failed")
        report = self._answers.report()
        if not report.is_well:
            raise RuntimeError(f"requests can't be taken: {report.health.get('error') or report.health.get('outages')}")

    async def __del__(self) -> None:  # Ray Serve awaits it at the replica's end
        await self._held.aclose()
