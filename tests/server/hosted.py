"""A host of models in tests: its steps, and what it does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.server.fake_library import prepared
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.server.model_state import ModelStatus

if TYPE_CHECKING:
    from unicorn_async.server.generation import Generation
    from unicorn_async.server.model_host import ModelHost
    from unicorn_async.server.model_state import ModelState

MOST_TURNS = 40  # of the loop: a switch takes fewer


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(host: ModelHost, status: ModelStatus) -> ModelState:
    async for state in host.watch():
        if state.status is status:
            return state
    raise AssertionError


async def generating(host: ModelHost) -> Generation:
    """An answer that waits for its first token."""
    model = await host.model()
    model.engine.hold[0] = asyncio.Event()  # type: ignore[attr-defined]
    return await model.generate(model.engine.stream([1], SamplingParams()), keepalive_s=5)


async def serves(host: ModelHost, name: str) -> None:
    await host.begin(prepared(name)).done()
    assert (host.state.status, host.state.name) == (ModelStatus.READY, name)
    assert (await host.model(name)).engine.model_name == name
