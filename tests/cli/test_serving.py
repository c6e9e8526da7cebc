from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING, cast

import pytest

from tests.server.fake_engine import FakeEngine
from unicorn_async.cli.progress import ProgressLine
from unicorn_async.cli.serving import while_loading
from unicorn_async.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from unicorn_async.engine.engine import Engine


class Server:
    """Serves until it is told to end."""

    def __init__(self) -> None:
        self.end = asyncio.Event()
        self.ended_in_order = False

    async def serve(self) -> None:
        try:
            await self.end.wait()
        finally:
            self.ended_in_order = True


def loading_engine() -> FakeEngine:
    engine = FakeEngine()
    engine.loaded.clear()
    return engine


async def test_a_load_that_fails_ends_the_server_with_its_error() -> None:
    engine, server = loading_engine(), Server()
    serving = asyncio.create_task(while_loading(cast("Engine", engine), ProgressLine(io.StringIO()), server.serve()))
    await asyncio.sleep(0)
    await engine.fail_load(CheckpointError("model.safetensors: ends too early"))
    with pytest.raises(CheckpointError, match="ends too early"):
        await serving
    assert server.ended_in_order


async def test_a_server_that_ends_while_the_model_loads_ends_the_command() -> None:
    engine, server = loading_engine(), Server()
    server.end.set()
    await while_loading(cast("Engine", engine), ProgressLine(io.StringIO()), server.serve())
    assert server.ended_in_order


async def test_a_server_that_cannot_start_ends_the_command_with_its_error() -> None:
    async def refuse() -> None:
        raise ConfigError("can't listen on port 80")

    with pytest.raises(ConfigError, match="port 80"):
        await while_loading(cast("Engine", loading_engine()), ProgressLine(io.StringIO()), refuse())
