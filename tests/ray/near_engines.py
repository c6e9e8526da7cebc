"""Replicas in this process, in the place of Ray's: a gateway in front of them is what it is in front of those."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.server.conftest import Served
from unicorn_async.ray.affinity import response_names, wanted_replica
from unicorn_async.ray.answers import Answers
from unicorn_async.ray.engines import replica_lost
from unicorn_async.ray.gateway import Gateway
from unicorn_async.server.app import _Server, _uvicorn_config
from unicorn_async.server.listener import bind

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    from unicorn_async.engine.types import EngineAPI
    from unicorn_async.ray.calls import HttpCall, HttpPiece, LaneCall, LanePiece, Report
    from unicorn_async.server import ServerOptions
    from unicorn_async.server.client import Client


class NearEngines:
    """`Engines` of this process: sessions have replicas by a plain hash."""

    def __init__(self, replicas: Mapping[str, Answers]) -> None:
        self.replicas = dict(replicas)
        self.sessions: list[str | None] = []
        self.num_asked_all = 0
        self._deaths = {name: asyncio.Event() for name in replicas}

    def kill(self, name: str) -> None:
        """End a replica as a killed process does: its streams are lost, and it is asked no more."""
        del self.replicas[name]
        self._deaths[name].set()

    def http(self, call: HttpCall, session: str | None) -> AsyncGenerator[HttpPiece, None]:
        name = self._choose(session)
        return self._living(name, self.replicas[name].http(call))

    def lane(self, call: LaneCall, session: str | None) -> AsyncGenerator[LanePiece, None]:
        name = self._choose(session)
        return self._living(name, self.replicas[name].lane(call))

    async def cancel_lane(self, lane: str) -> bool:
        return any([replica.cancel_lane(lane) for replica in self._all()])

    async def cancel_background(self, response_id: str, client: Client) -> bool:
        return any([await replica.cancel_background(response_id, client) for replica in self._all()])

    async def holder(self, response_id: str) -> str | None:
        found = [await replica.holder(response_id) for replica in self._all()]
        return next((name for name in found if name is not None), None)

    async def reports(self) -> list[Report]:
        return [replica.report() for replica in self._all()]

    def _all(self) -> list[Answers]:
        self.num_asked_all += 1
        return list(self.replicas.values())

    def _choose(self, session: str | None) -> str:
        self.sessions.append(session)
        named, names = wanted_replica(session or ""), sorted(self.replicas)
        return named if named in self.replicas else names[sum((session or "").encode()) % len(names)]

    async def _living(self, name: str, pieces: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        async with aclosing(pieces):
            death = asyncio.create_task(self._deaths[name].wait())
            try:
                while True:
                    piece = asyncio.ensure_future(anext(pieces, None))
                    try:
                        await asyncio.wait((piece, death), return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        if not piece.done():
                            piece.cancel()
                            await asyncio.wait((piece,))
                    if death.done():
                        raise replica_lost()
                    if piece.result() is None:
                        return
                    yield piece.result()
            finally:
                death.cancel()


@contextlib.asynccontextmanager
async def replicas_of(engines: Mapping[str, EngineAPI], options: ServerOptions) -> AsyncIterator[NearEngines]:
    """Open a replica around each engine."""
    async with AsyncExitStack() as held:
        found: dict[str, Answers] = {}
        for name, engine in engines.items():
            found[name] = Answers(engine, replace(options, response_names=response_names(name)), name)
            await held.enter_async_context(found[name].app.router.lifespan_context(found[name].app))
        yield NearEngines(found)


@contextlib.asynccontextmanager
async def gateway_before(engines: NearEngines, options: ServerOptions) -> AsyncIterator[Served]:
    """Serve a gateway on a free port, by the server's own protocols."""
    ready = asyncio.Event()

    async def stop() -> None:
        """There is nothing to stop."""

    with bind("127.0.0.1", 0) as sock, _uvicorn_config(Gateway(engines, options, "front").app(), options) as config:
        server = _Server(config, on_ready=ready.set, on_stop=stop, shutdown_timeout_s=options.shutdown_timeout_s)
        task = asyncio.create_task(server.serve(sockets=[sock]))
        await ready.wait()
        try:
            yield Served(f"http://127.0.0.1:{sock.getsockname()[1]}", task)
        finally:
            server.should_exit = True
            await asyncio.wait((task,))
