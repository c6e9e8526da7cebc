"""Watching the engine's steps over the websocket."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.server.conftest import serving
from tests.server.ws_client import connected
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.batch import Batch, ScheduledSequence
from unicorn_async.scheduler.sequence import Sequence
from unicorn_async.server.step_watch import MAX_WATCHERS
from unicorn_async.step.result import StepResult

if TYPE_CHECKING:
    from tests.server.conftest import Served
    from tests.server.fake_engine import FakeEngine
    from tests.server.ws_client import JsonSocket


class Span:
    def __init__(self, start_s: float, stop_s: float) -> None:
        self.start_s, self.stop_s = start_s, stop_s


def note_step(engine: FakeEngine, number: int, *names: str, hybrid: bool = False) -> None:
    """Have the engine do a step: a token of each request, and part of a prompt of the last one."""
    items = []
    for index, name in enumerate(names):
        sequence = Sequence(name, (1, 2, 3), SamplingParams(), 0, arrival=index)
        last = index == len(names) - 1
        items.append(ScheduledSequence(sequence, 0, 3 if last else 1, (1,), samples=True, is_decode=not last))
    spans = ((Span(0.001, 0.002),), (Span(0.002, 0.004),)) if hybrid else ((), ())
    batch = Batch(tuple(items), len(names) + 2, number)
    engine.steps.note(0.0, 0.0001, StepResult(batch, (), (), 0.004, 1.0, spans=spans))


async def steps_of(client: JsonSocket) -> dict[str, Any]:
    """Receive up to an event that has steps."""
    while True:
        event = (await client.until("unicorn.steps"))[-1]
        if event["steps"]:
            return event


async def watched(served: Served, engine: FakeEngine, *, wanted: bool = True) -> None:
    async with asyncio.timeout(120), httpx.AsyncClient(base_url=served.url) as client:
        while engine.steps.is_watched is not wanted:
            await client.get("/health")


async def test_nothing_is_noted_or_sent_before_somebody_watches(served: Served, engine: FakeEngine) -> None:
    async with connected(served.ws_url) as client:
        await client.create()
        await client.answer()
        assert not engine.steps.is_watched
        await client.send({"type": "unicorn.watch"})
        await client.until("unicorn.steps")
        assert engine.steps.is_watched
        await client.send({"type": "unicorn.watch", "interval_ms": 0})
        await watched(served, engine, wanted=False)
        await client.send({"type": "unicorn.nothing"})
        await client.until("error")  # behind what was sent before
        await client.create()
        assert "unicorn.steps" not in {event["type"] for event in await client.answer()}
    assert not engine.steps.is_watched


async def test_a_watcher_is_told_of_steps_and_of_which_requests_are_its_own(served: Served, engine: FakeEngine) -> None:
    engine.hold[1] = asyncio.Event()
    async with connected(served.ws_url) as client, connected(served.ws_url) as other:
        await client.create(stream_id="mine")
        await other.create("theirs", stream_id="secret")
        await client.until("response.output_text.delta")
        await other.until("response.output_text.delta")
        await client.send({"type": "unicorn.watch"})
        await watched(served, engine)
        mine, theirs = (call.request_id or "" for call in engine.calls)
        note_step(engine, 3, theirs, mine)
        event = await steps_of(client)
        assert event["own"] == {"1": "mine"}
        (step,) = event["steps"]
        assert (step["number"], step["decodes"], step["prompts"]) == (3, [0], [[1, 3]])
        assert step["begun"] >= step["ended"] >= 0
        assert step["device"][1] == 4.0
        assert event["model"] == "fake-model"
        assert event["cache"] == [{"window": 0, "blocks": 8, "planned": 8, "used": 0, "owners": {}}]
        assert theirs not in str(event) and "secret" not in str(event)
        note_step(engine, 4, mine, hybrid=True)
        (step,) = (await steps_of(client))["steps"]
        assert "device" not in step
        assert ([span[1] for span in step["model_device"]], [span[1] for span in step["attention_device"]]) == (
            [1.0],
            [2.0],
        )


async def test_blocks_are_told_by_owner_as_runs(served: Served, engine: FakeEngine) -> None:
    engine.scheduler.add(Sequence("somebody", tuple(range(9)), SamplingParams(max_tokens=4), 0))
    engine.scheduler.schedule()
    async with connected(served.ws_url) as client:
        await client.send({"type": "unicorn.watch"})
        event = (await client.until("unicorn.steps"))[-1]
        (group,) = event["cache"]
        assert (group["used"], group["owners"]) == (3, {"0": [0, 3]})
        assert event["heaps"] == [{"heap": "VRAM", "planned": 1000, "allocated": 1100}]
        assert event["own"] == {}


async def test_who_watched_and_went_is_not_counted(served: Served, engine: FakeEngine) -> None:
    for _ in range(MAX_WATCHERS + 1):
        async with connected(served.ws_url) as client:
            await client.send({"type": "unicorn.watch"})
            await client.until("unicorn.steps")
            await client.send({"type": "unicorn.watch", "interval_ms": 200})
            await client.send({"type": "unicorn.watch", "interval_ms": 300})
        await watched(served, engine, wanted=False)


async def test_only_so_many_watch(served: Served) -> None:
    async with asyncio.TaskGroup() as group:
        done = asyncio.Event()

        async def watch() -> None:
            async with connected(served.ws_url) as client:
                await client.send({"type": "unicorn.watch"})
                await client.until("unicorn.steps")
                ready.release()
                await done.wait()

        ready = asyncio.Semaphore(0)
        for _ in range(MAX_WATCHERS):
            group.create_task(watch())
        for _ in range(MAX_WATCHERS):
            await ready.acquire()
        async with connected(served.ws_url) as client:
            await client.send({"type": "unicorn.watch"})
            refused = await client.receive()
            assert (refused["status"], refused["error"]["code"]) == (429, "too_many_watchers")
        done.set()


@pytest.mark.parametrize("interval", [1, 99, -1, 60_001, "100", 1.5, True])
async def test_another_interval_is_refused(served: Served, engine: FakeEngine, interval: object) -> None:
    async with connected(served.ws_url) as client:
        await client.send({"type": "unicorn.watch", "interval_ms": interval})
        refused = await client.receive()
        assert (refused["type"], refused["error"]["param"]) == ("error", "interval_ms")
        assert not engine.steps.is_watched


async def test_the_end_of_the_server_ends_the_watch(engine: FakeEngine) -> None:
    async with serving(engine) as served, connected(served.ws_url) as client:
        await client.send({"type": "unicorn.watch"})
        await client.until("unicorn.steps")
    assert not engine.steps.is_watched


async def test_another_interval_keeps_the_place(served: Served, engine: FakeEngine) -> None:
    async with connected(served.ws_url) as client:
        await client.send({"type": "unicorn.watch", "interval_ms": 60_000})
        await client.until("unicorn.steps")
        for number in range(3):
            note_step(engine, number, "somebody")
        await client.send({"type": "unicorn.watch", "interval_ms": 100})
        event = await steps_of(client)
        assert [step["number"] for step in event["steps"]] == [0, 1, 2]


async def test_asking_often_brings_no_more_events(served: Served, engine: FakeEngine) -> None:
    async with connected(served.ws_url) as client:
        num_events, started_s = 0, asyncio.get_running_loop().time()
        for number in range(30):
            note_step(engine, number, "somebody")
            await client.send({"type": "unicorn.watch", "interval_ms": 100 + number % 2})
            if number % 3 == 0:
                await client.send({"type": "unicorn.watch", "interval_ms": 0})
        await client.send({"type": "unicorn.nothing"})
        num_events = [event["type"] for event in await client.until("error")].count("unicorn.steps")
        assert num_events <= 1 + (asyncio.get_running_loop().time() - started_s) / 0.1
