"""A real server on a free port around a fake engine."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.patience import PATIENCE_S
from tests.server.fake_engine import FakeEngine
from tests.server.fake_library import FakeLibrary
from unicorn_async.server import ModelHost, ServerOptions, archive, serve, service, tracing
from unicorn_async.server.disk_store import DiskStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from unicorn_async.engine.types import EngineAPI
    from unicorn_async.server.store import StoredResponse


@dataclass(frozen=True, slots=True)
class Served:
    """A running server."""

    url: str
    task: asyncio.Task[None]

    @property
    def ws_url(self) -> str:
        return self.url.replace("http://", "ws://") + "/v1/responses"


if TYPE_CHECKING:
    ServeWith = Callable[[ServerOptions], AbstractAsyncContextManager[Served]]

FAR = {
    **dict.fromkeys(("header_timeout_s", "idle_timeout_s", "send_timeout_s", "receive_timeout_s"), PATIENCE_S),
    **dict.fromkeys(("keepalive_s", "shutdown_timeout_s"), PATIENCE_S),
}


def patient(options: ServerOptions) -> ServerOptions:
    """Put those deadlines far away that a test does not set: a busy machine takes seconds for any step."""
    usual = ServerOptions()
    left = {name: far for name, far in FAR.items() if getattr(options, name) == getattr(usual, name)}
    return replace(options, **left)  # type: ignore[arg-type]


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> range:
    """Seeds of answers that a model draws: the short run has one."""
    return range(4 if request.config.getoption("whole") else 1)


@pytest.fixture(autouse=True)
def far_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server has for its end and for its disk is far away, unless a test sets it."""
    monkeypatch.setattr(archive, "END_S", PATIENCE_S)
    monkeypatch.setattr(archive, "DISK_TIMEOUT_S", 2 * PATIENCE_S)
    monkeypatch.setattr(service, "TELL_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(tracing, "SEND_TIMEOUT_S", PATIENCE_S)


@contextlib.asynccontextmanager
async def serving(
    models: EngineAPI | ModelHost, options: ServerOptions | None = None, *, port: int = 0
) -> AsyncIterator[Served]:
    """Serve as long as the block lasts, on a free port unless one is given."""
    options = patient(options or ServerOptions())
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(models, port=port, options=options, on_ready=ready.set_result))
    await asyncio.wait((ready, task), return_when=asyncio.FIRST_COMPLETED)
    if not ready.done():
        task.result()
    try:
        yield Served(ready.result(), task)
    finally:
        task.cancel()
        await asyncio.wait((task,))


@pytest.fixture
async def engine() -> FakeEngine:
    """An engine that answers "Hello there, friend"."""
    return FakeEngine()


@pytest.fixture
def serve_with(engine: FakeEngine) -> ServeWith:
    """Serve the fake engine with options of one's own."""
    return lambda options: serving(engine, options)


@pytest.fixture
async def served(engine: FakeEngine) -> AsyncIterator[Served]:
    """The fake engine, served."""
    async with serving(engine) as found:
        yield found


@pytest.fixture
async def client(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    """A client of HTTP of the served engine."""
    async with httpx.AsyncClient(base_url=served.url) as made:
        yield made


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A disk that takes nothing before the event is set."""
    goes_on, put = threading.Event(), DiskStore._put

    def slow_put(store: DiskStore, entry: StoredResponse) -> None:
        assert goes_on.wait(2 * PATIENCE_S)
        put(store, entry)

    monkeypatch.setattr(DiskStore, "_put", slow_put)
    return goes_on


@pytest.fixture
def library() -> FakeLibrary:
    """Models that a host may open."""
    return FakeLibrary()


@pytest.fixture
async def host(library: FakeLibrary) -> AsyncIterator[ModelHost]:
    """A host of the library's models, which has to leave none open."""
    async with ModelHost(library, idle_timeout_s=600) as entered:
        yield entered
    assert library.num_open == 0
