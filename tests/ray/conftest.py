"""A gateway on a free port, in front of replicas in this process."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.ray.near_engines import gateway_before, replicas_of
from tests.server.conftest import far_ends, patient
from tests.server.fake_engine import FakeEngine
from unicorn_async.server import ServerOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from tests.server.conftest import Served

__all__ = ["far_ends"]  # a fixture


@pytest.fixture
async def engine() -> FakeEngine:
    """An engine that answers "Hello there, friend"."""
    return FakeEngine()


@pytest.fixture
def serve_with(engine: FakeEngine) -> Callable[[ServerOptions], AbstractAsyncContextManager[Served]]:
    """Serve a gateway, and the fake engine behind it, with options of one's own."""

    @contextlib.asynccontextmanager
    async def serving(options: ServerOptions) -> AsyncIterator[Served]:
        options = patient(options)
        async with replicas_of({"one": engine}, options) as engines, gateway_before(engines, options) as served:
            yield served

    return serving


@pytest.fixture
async def served(serve_with: Callable[[ServerOptions], AbstractAsyncContextManager[Served]]) -> AsyncIterator[Served]:
    """The fake engine, served by a gateway."""
    async with serve_with(ServerOptions()) as found:
        yield found
