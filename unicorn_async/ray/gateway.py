"""A gateway: the API at one address without an engine. Replicas answer, each request the one it belongs to."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from starlette.routing import WebSocketRoute

from unicorn_async.ray.affinity import BEGINNING_CHARS
from unicorn_async.ray.census import Census
from unicorn_async.ray.dispatch import Dispatch
from unicorn_async.ray.far_lane import FarLanes
from unicorn_async.ray.forwarding import Forwarding
from unicorn_async.ray.overview import OverviewEndpoints
from unicorn_async.resources import resource_dir
from unicorn_async.server.access import Access
from unicorn_async.server.app import layered
from unicorn_async.server.ledger import input_ledger
from unicorn_async.server.metrics import Metrics
from unicorn_async.server.operation import DescriptionEndpoints
from unicorn_async.server.page import page_routes
from unicorn_async.server.request_context import asking
from unicorn_async.server.step_watch import StepWatchers
from unicorn_async.server.websocket import WebSocketEndpoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.applications import Starlette

    from unicorn_async.ray.engines import Engines
    from unicorn_async.server.options import ServerOptions


class Gateway:
    """What a server is to its middlewares and websockets, in front of replicas."""

    tracing = None  # the replicas trace requests, as parts of their clients' traces

    def __init__(
        self, engines: Engines, options: ServerOptions, name: str, *, beginning_chars: int = BEGINNING_CHARS
    ) -> None:
        """`name` tells it from other gateways; `beginning_chars` of a prompt tell where it belongs."""
        self.options = options
        self.access = Access(options)
        self.metrics = Metrics()
        self.watchers = StepWatchers()
        self.models = Census(engines)
        self.input_bytes = input_ledger(options)
        self._engines = engines
        self._name = name
        self._dispatch = Dispatch(engines, queue_timeout_s=options.queue_timeout_s, beginning_chars=beginning_chars)

    def app(self) -> Starlette:
        """Return the ASGI application.

        Raises:
            ConfigError: the page's files are missing.
        """
        options, access = self.options, self.access
        routes = [
            *Forwarding(self._dispatch, access, self.input_bytes, options).routes(),
            *OverviewEndpoints(self.models, access, self.metrics, self._name).routes(),
            *DescriptionEndpoints(access).routes(),
            WebSocketRoute(
                "/v1/responses", WebSocketEndpoint(self, partial(FarLanes, self._dispatch, options.max_queued))
            ),
            *page_routes(options.web_dir or resource_dir("web") / "built"),
        ]
        return layered(routes, self, _lifespan)

    async def cancel_background(self, response_id: str) -> bool:
        """End who asks' background answer, wherever it is; return whether one of this name is under way."""
        return await self._engines.cancel_background(response_id, asking.get())


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    """There is nothing to begin, and nothing to end."""
    yield
