"""Which model is served, whatever is asked for in between, and that never two are open."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from tests.server.fake_library import FakeLibrary, prepared
from tests.server.hosted import MOST_TURNS, generating, serves, turns, until
from unicorn_async.engine.model_library import ModelChoice
from unicorn_async.errors import CheckpointError, EngineClosedError, OutOfMemoryError
from unicorn_async.server.model_host import ModelHost
from unicorn_async.server.model_state import ModelStatus
from unicorn_async.server.protocol.errors import ApiError

if TYPE_CHECKING:
    from unicorn_async.server.model_state import ModelState


async def test_a_model_is_served_once_it_is_open_and_ready_once_it_is_loaded(
    host: ModelHost, library: FakeLibrary
) -> None:
    library.hold_load.add("a")
    change = host.begin(prepared("a"))
    waiting = asyncio.create_task(host.model("a"))
    await change.opened()
    assert (await waiting).engine is library.engines[0]
    assert host.state.status is ModelStatus.LOADING
    assert not change.is_done
    await library.engines[0].set_loaded(100)
    await change.done()
    assert host.state.status is ModelStatus.READY


async def test_a_switch_closes_the_old_model_before_it_opens_the_new_one(host: ModelHost, library: FakeLibrary) -> None:
    for name in ("a", "b", "a"):
        await serves(host, name)
    assert library.num_open == 1


async def test_the_model_that_is_served_is_not_loaded_again(host: ModelHost, library: FakeLibrary) -> None:
    await serves(host, "a")
    await serves(host, "a")
    assert len(library.engines) == 1
    await host.begin(prepared("a", 5)).done()
    assert len(library.engines) == 2


async def test_a_load_under_way_is_joined_by_the_same_request(host: ModelHost, library: FakeLibrary) -> None:
    library.hold_open["a"] = asyncio.Event()
    first, second = host.begin(prepared("a")), host.begin(prepared("a"))
    library.hold_open["a"].set()
    await asyncio.gather(first.done(), second.done())
    assert len(library.engines) == 1


async def test_what_is_refused_leaves_the_model_and_a_load_under_way_alone(
    host: ModelHost, library: FakeLibrary
) -> None:
    await serves(host, "a")
    for name, status, code in (("unknown", 404, "model_not_found"), ("damaged", 400, "model_unusable")):
        with pytest.raises(ApiError) as caught:
            await host.load(ModelChoice(name))
        assert (caught.value.status, caught.value.code) == (status, code)
    assert host.state.status is ModelStatus.READY
    library.hold_open["b"] = asyncio.Event()
    change = host.begin(prepared("b"))
    with pytest.raises(ApiError):
        await host.load(ModelChoice("unknown"))
    library.hold_open["b"].set()
    await change.done()


async def test_the_newest_of_two_loads_wins_and_the_other_is_told(host: ModelHost, library: FakeLibrary) -> None:
    library.hold_open["a"] = asyncio.Event()
    first = host.begin(prepared("a"))
    await turns(10)
    second = host.begin(prepared("b"))
    with pytest.raises(ApiError, match="newer request") as caught:
        await first.done()
    assert caught.value.status == 409
    await second.done()
    assert host.state.name == "b"


async def test_of_two_loads_that_are_checked_together_the_newest_wins(host: ModelHost, library: FakeLibrary) -> None:
    library.hold_open["a"] = asyncio.Event()
    changes = await asyncio.gather(host.load(ModelChoice("a")), host.load(ModelChoice("b")))
    with pytest.raises(ApiError, match="newer request"):
        await changes[0].done()
    await changes[1].done()
    assert host.state.name == "b"


async def test_an_unload_overtakes_a_load_that_is_still_checked(host: ModelHost) -> None:
    loading = asyncio.create_task(host.load(ModelChoice("a")))
    await turns(1)
    change = host.unload()
    with pytest.raises(ApiError, match="newer request"):
        await loading
    await change.done()
    assert host.state.status is ModelStatus.EMPTY


async def test_who_waits_for_a_slow_check_is_told_at_once_of_an_unload(host: ModelHost, library: FakeLibrary) -> None:
    library.hold_prepare = threading.Event()
    try:
        loads = [asyncio.create_task(host.load(ModelChoice(name))) for name in ("a", "b")]
        await asyncio.to_thread(library.preparing.wait)
        library.preparing.clear()
        host.unload()
        for load in loads:
            with pytest.raises(ApiError, match="newer request"):
                await load
        later = asyncio.create_task(host.load(ModelChoice("c")))
        await turns(10)
        assert not library.preparing.is_set(), "one thread at a time, and one that nobody waits for has its turn"
    finally:
        library.hold_prepare.set()
    await (await later).done()
    assert host.state.name == "c"


@pytest.mark.parametrize("name", ["a", "damaged"])
async def test_who_waits_for_a_slow_check_is_told_at_once_that_the_server_stops(
    name: str, library: FakeLibrary
) -> None:
    library.hold_prepare = threading.Event()
    async with ModelHost(library) as host:
        try:
            loads = [asyncio.create_task(host.load(ModelChoice(name))) for _ in range(2)]
            await asyncio.to_thread(library.preparing.wait)
            await host.stop(EngineClosedError("the server is shutting down"))
            for load in loads:
                with pytest.raises(EngineClosedError, match="shutting down"):
                    await load
        finally:
            library.hold_prepare.set()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "check a model"]


async def test_an_unload_ends_when_its_memory_is_free_and_a_load_need_not_wait_for_that(
    host: ModelHost, library: FakeLibrary
) -> None:
    await serves(host, "a")
    library.is_freed.clear()
    unloading = host.unload()
    await turns(MOST_TURNS)
    assert host.state.status is ModelStatus.CLOSING
    library.is_freed.set()
    await unloading.opened()
    assert host.state.status is ModelStatus.EMPTY

    await serves(host, "a")
    library.is_freed.clear()
    unloading = host.unload()
    await turns(MOST_TURNS)
    await serves(host, "b")
    with pytest.raises(ApiError, match="a newer request"):
        await unloading.opened()


async def test_an_unload_cancels_a_load(host: ModelHost, library: FakeLibrary) -> None:
    library.hold_load.add("a")
    loading = host.begin(prepared("a"))
    await loading.opened()
    await host.unload().done()
    with pytest.raises(ApiError, match="newer request"):
        await loading.done()
    assert library.num_open == 0
    with pytest.raises(ApiError, match="no model is loaded") as caught:
        await host.model()
    assert caught.value.status == 503


async def test_answers_under_way_end_with_an_error_that_says_why(host: ModelHost) -> None:
    await serves(host, "a")
    model, generation = await host.model(), await generating(host)
    host.begin(prepared("b"))
    await until(host, ModelStatus.READY)
    assert generation.cancelled
    with pytest.raises(EngineClosedError, match="'a' is being switched to 'b'"):
        await model.generate(model.engine.stream([1]), keepalive_s=5)
    await generation.close()


async def test_a_switch_when_idle_waits_for_the_answers_under_way(host: ModelHost, library: FakeLibrary) -> None:
    await serves(host, "a")
    generation = await generating(host)
    change = host.begin(prepared("b"), when_idle=True)
    waiting = asyncio.create_task(host.model("b"))
    await turns(MOST_TURNS)
    assert host.state.status is ModelStatus.WAITING
    assert not generation.cancelled
    await generation.close()
    await change.done()
    assert (await waiting).engine is library.engines[1]


async def test_the_wait_for_answers_under_way_is_bounded(library: FakeLibrary) -> None:
    async with ModelHost(library, idle_timeout_s=0.05) as host:
        await serves(host, "a")
        generation = await generating(host)
        await host.begin(prepared("b"), when_idle=True).done()
        assert generation.cancelled
        await generation.close()


async def test_a_newer_request_ends_the_wait_for_answers(host: ModelHost) -> None:
    await serves(host, "a")
    generation = await generating(host)
    waiting = host.begin(prepared("b"), when_idle=True)
    await turns(5)
    await host.begin(prepared("c")).done()
    with pytest.raises(ApiError, match="newer request"):
        await waiting.done()
    assert host.state.name == "c"
    await generation.close()


async def test_a_request_for_another_model_is_refused_also_during_a_switch(
    host: ModelHost, library: FakeLibrary
) -> None:
    await serves(host, "a")
    library.hold_open["b"] = asyncio.Event()
    host.begin(prepared("b"))
    with pytest.raises(ApiError, match="this server has 'b'") as caught:
        await host.model("a")
    assert caught.value.status == 404
    library.hold_open["b"].set()
    assert (await host.model("b")).engine.model_name == "b"


async def test_a_model_that_can_not_be_opened_leaves_none_and_the_reason(host: ModelHost, library: FakeLibrary) -> None:
    await serves(host, "a")
    library.fail_open["b"] = OutOfMemoryError("2 GiB needed")
    change = host.begin(prepared("b"))
    with pytest.raises(OutOfMemoryError):
        await change.done()
    assert (host.state.status, host.state.error) == (ModelStatus.FAILED, "2 GiB needed")
    with pytest.raises(ApiError, match="could not be loaded: 2 GiB needed") as caught:
        await host.model()
    assert caught.value.status == 503
    assert library.num_open == 0
    await serves(host, "a")


async def test_a_load_that_fails_half_way_closes_the_model(host: ModelHost, library: FakeLibrary) -> None:
    library.hold_load.add("a")
    change = host.begin(prepared("a"))
    await change.opened()
    generation = await generating(host)
    await library.engines[0].fail_load(CheckpointError("ends too early"))
    with pytest.raises(CheckpointError):
        await change.done()
    await until(host, ModelStatus.FAILED)
    assert library.num_open == 0
    assert generation.cancelled
    await generation.close()
    await serves(host, "b")


async def test_a_fault_in_opening_tells_nothing_of_the_inside(host: ModelHost, library: FakeLibrary) -> None:
    library.fail_open["a"] = ZeroDivisionError("secret")
    with pytest.raises(ZeroDivisionError):
        await host.begin(prepared("a")).done()
    assert "secret" not in str(host.state.error)
    await serves(host, "b")


async def test_a_request_that_waits_for_a_model_is_cancelled_alone(host: ModelHost, library: FakeLibrary) -> None:
    library.hold_open["a"] = asyncio.Event()
    change = host.begin(prepared("a"))
    waiting = [asyncio.create_task(work) for work in (host.model(), change.done())]
    await turns(5)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    library.hold_open["a"].set()
    await change.done()
    assert host.state.status is ModelStatus.READY


async def test_a_stopped_host_refuses_everything_and_tells_who_waits(host: ModelHost, library: FakeLibrary) -> None:
    library.hold_open["a"] = asyncio.Event()
    change = host.begin(prepared("a"))
    waiting = [asyncio.create_task(work) for work in (host.model(), change.done())]
    await turns(5)
    await host.stop(EngineClosedError("the server is shutting down"))
    for task in waiting:
        with pytest.raises(EngineClosedError, match="shutting down"):
            await task
    with pytest.raises(EngineClosedError):
        host.begin(prepared("b"))


async def test_watchers_see_the_last_state(host: ModelHost) -> None:
    seen: list[ModelState] = []

    async def watch() -> None:
        async for state in host.watch():
            seen.append(state)  # noqa: PERF401  (read while it grows)

    watcher = asyncio.create_task(watch())
    await serves(host, "a")
    await serves(host, "b")
    await turns(2)
    watcher.cancel()
    steps = [(state.status.value, state.name, state.waits_for) for state in seen]
    assert steps[-5:-2] == [("ready", "a", None), ("closing", "b", None), ("opening", "b", None)]
    assert steps[-2:] == [("opening", "b", "device"), ("ready", "b", None)]
