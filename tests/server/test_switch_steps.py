"""A switch of models that something comes between, at each of its steps."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.server.fake_library import FakeLibrary, prepared
from tests.server.hosted import MOST_TURNS, generating, serves, turns, until
from unicorn_async.errors import UnicornError
from unicorn_async.server.model_host import ModelHost
from unicorn_async.server.model_state import ModelStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.server.model_change import Change


async def ignoring(change: Change) -> None:
    with suppress(UnicornError):
        await change.done()


@pytest.mark.parametrize("when_idle", [False, True])
@pytest.mark.parametrize("count", range(MOST_TURNS))
async def test_a_server_that_ends_at_any_step_of_a_switch_leaves_nothing_open(
    library: FakeLibrary, count: int, when_idle: bool
) -> None:
    async def own() -> None:
        async with ModelHost(library) as host:
            await host.begin(prepared("a")).done()
            generation = await generating(host)
            try:
                host.begin(prepared("b"), when_idle=when_idle)
                await turns(3)
            finally:
                await generation.close()
            await asyncio.Event().wait()

    owner = asyncio.create_task(own())
    await turns(count)
    owner.cancel()
    await turns(count % 5)
    owner.cancel()  # a second time, wherever it is now
    with pytest.raises(asyncio.CancelledError):
        await owner
    assert library.num_open == 0
    async with ModelHost(library) as host:
        await serves(host, "c")
    await turns(2)
    assert len(asyncio.all_tasks()) == 1


ACTIONS: dict[str, Callable[[ModelHost], Change]] = {
    "a newer load": lambda host: host.begin(prepared("c")),
    "a newer load when idle": lambda host: host.begin(prepared("c"), when_idle=True),
    "the old model again": lambda host: host.begin(prepared("a")),
    "the same load": lambda host: host.begin(prepared("b")),
    "an unload": lambda host: host.unload(),
    "an unload when idle": lambda host: host.unload(when_idle=True),
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("when_idle", [False, True])
async def test_the_newest_request_decides_at_whatever_step_of_a_switch_it_comes(
    library: FakeLibrary, action: str, when_idle: bool
) -> None:
    for count in range(MOST_TURNS):
        async with ModelHost(library, idle_timeout_s=600) as host:
            await serves(host, "a")
            generation = await generating(host)
            asker = asyncio.create_task(ignoring(host.begin(prepared("b"), when_idle=when_idle)))
            if count % 2:
                await generation.close()
            await turns(count)
            newest = ACTIONS[action](host)
            asyncio.get_running_loop().call_soon(asyncio.create_task, generation.close())
            await newest.done()
            await asker
            assert host.state.name == newest.name
            wanted = ModelStatus.EMPTY if newest.model is None else ModelStatus.READY
            assert host.state.status is wanted
            assert library.num_open == (newest.model is not None)
        assert library.num_open == 0


async def test_an_asker_who_goes_at_any_step_changes_nothing(library: FakeLibrary) -> None:
    for count in range(MOST_TURNS):
        async with ModelHost(library) as host:
            await serves(host, "a")
            asker = asyncio.create_task(ignoring(host.begin(prepared("b"))))
            await turns(count)
            asker.cancel()
            await asyncio.wait((asker,))
            await until(host, ModelStatus.READY)
            assert host.state.name == "b"
