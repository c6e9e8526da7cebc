"""A replica: an engine and the whole server around it, in a process that Ray Serve starts, looks after and ends."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from unicorn_async.engine.engine import Engine
from unicorn_async.server.app import create_app

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from unicorn_async.ray.arguments import Arguments


class Replica:
    """What Ray Serve makes a deployment of; it owns the engine."""

    async def __init__(self, arguments: Arguments) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        """Open the engine; the model loads behind that."""
        self._options = arguments.options
        self._held = AsyncExitStack()
        self._engine = await self._held.enter_async_context(Engine.open(arguments.model, config=arguments.config))

    def __serve_build_asgi_app__(self) -> Starlette:
        return create_app(self._engine, self._options)

    def check_health(self) -> None:
        """Raise if the engine has failed: Ray Serve then starts another replica in this one's place."""
        if self._engine.has_failed:
            raise RuntimeError("the engine has failed")

    async def __del__(self) -> None:  # Ray Serve awaits it at the replica's end
        await self._held.aclose()
