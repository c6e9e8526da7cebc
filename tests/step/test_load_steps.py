"""Steps behind layers that arrive, on a queue without a device."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from unicorn_async.errors import CheckpointError, DeviceError, EngineClosedError
from unicorn_async.step import load_steps as loading_steps
from unicorn_async.step.load_steps import LoadSteps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from unicorn_async.gpu.queue import CommandBuffer, Queue, Submission
    from unicorn_async.gpu.timeline import Timeline

NUM_LAYERS = 2
NUM_PARTS = NUM_LAYERS + 2


@dataclass
class Layers:
    """Layers that arrive when a test says so, or fail."""

    num_arrived: int = 0
    error: Exception | None = None
    all_active: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def arrive(self, count: int = 1) -> None:
        self.num_arrived += count
        self._changed.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self._changed.set()

    async def layer_submitted(self, layer: int) -> tuple[Timeline, int]:
        while self.num_arrived < layer + 2:
            if self.error is not None:
                raise self.error
            self._changed.clear()
            await self._changed.wait()
        return cast("Timeline", self), layer + 2

    async def checked(self) -> None:
        raise NotImplementedError


@dataclass
class FakeQueue:
    """Notes what is submitted, and the layer that it waits for; work is done as far as `done`, all of it if None."""

    parts: list[str] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    done: int | None = None
    num_calls: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def timeline(self) -> FakeQueue:
        return self

    def submit_each(self, submissions: Sequence[Submission]) -> list[int]:
        self.num_calls += 1
        values = []
        for submission in submissions:
            self.parts += cast("Sequence[str]", submission.commands)
            self.waits += [value for _, value in submission.waits]
            values.append(len(self.parts))
        return values

    def finish(self, done: int | None) -> None:
        self.done = done
        self._changed.set()

    async def reached(self, value: int) -> None:
        while self.done is not None and self.done < value:
            self._changed.clear()
            await self._changed.wait()


@pytest.fixture(autouse=True)
def submissions_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes to a thread otherwise is done where it is awaited, so that turns of the event loop are all there is."""

    async def run_at_once(work: Callable[[], int]) -> int:
        return work()

    monkeypatch.setattr(loading_steps, "run_to_end", run_at_once)
    monkeypatch.setattr(loading_steps, "_AHEAD_S", 0.0)  # one part at a time


def parts_of(name: str) -> Sequence[Callable[[], Sequence[CommandBuffer]]]:
    return [partial(part_of, name, part) for part in range(NUM_PARTS)]


def part_of(name: str, part: int) -> Sequence[CommandBuffer]:
    return cast("Any", [f"{name}{part}"])


@asynccontextmanager
async def following(layers: Layers, queue: FakeQueue) -> AsyncIterator[LoadSteps]:
    """Run the steps of a load for the length of the block, which lets all layers arrive."""
    steps = LoadSteps(cast("Queue", queue), layers, NUM_LAYERS)
    async with asyncio.TaskGroup() as group:
        group.create_task(steps.run(lambda: None))
        yield steps


async def let_others_run() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_all_steps_go_through_a_layer_before_the_next_one_arrives() -> None:
    layers, queue = Layers(), FakeQueue()
    async with following(layers, queue) as steps:
        added = [steps.add(parts_of(name)) for name in "abc"]
        for part in range(NUM_PARTS - 1):
            await let_others_run()
            assert queue.parts == [f"{name}{layer}" for layer in range(part) for name in "abc"]
            layers.arrive()
        await let_others_run()
        assert not steps.done
        layers.arrive()
        values = [await steps.submitted(step) for step in added]
        assert steps.done
    assert queue.parts[-3:] == ["a3", "b3", "c3"]
    assert values == [10, 11, 12]
    assert queue.waits == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]


async def test_a_step_that_comes_later_rides_along_as_far_as_the_layers_are_there() -> None:
    layers, queue = Layers(), FakeQueue()
    async with following(layers, queue) as steps:
        steps.add(parts_of("a"))
        layers.arrive(2)
        await let_others_run()
        steps.add(parts_of("b"))
        await let_others_run()
        assert queue.parts == ["a0", "a1", "b0", "b1"]
        layers.arrive()
        await let_others_run()
        assert queue.parts[4:] == ["a2", "b2"]
        layers.arrive()


async def test_a_step_that_comes_late_is_submitted_in_one_call_for_all_layers_that_are_there() -> None:
    layers, queue = Layers(), FakeQueue()
    async with following(layers, queue) as steps:
        layers.arrive(NUM_PARTS - 1)
        await let_others_run()
        step = steps.add(parts_of("a"))
        await let_others_run()
        assert (queue.num_calls, len(queue.parts)) == (1, NUM_PARTS - 1)
        layers.arrive()
        assert await steps.submitted(step) == NUM_PARTS
    assert queue.num_calls == 2
    assert queue.waits == [1, 2, 3, 4]


async def test_an_older_step_goes_first_where_the_device_is_slower_than_the_load() -> None:
    layers, queue = Layers(), FakeQueue(done=0)
    async with following(layers, queue) as steps:
        for name in "ab":
            steps.add(parts_of(name))
        layers.arrive()
        await let_others_run()
        assert queue.parts == ["a0", "b0"]  # one that runs, one behind it
        layers.arrive()
        await let_others_run()
        assert queue.parts == ["a0", "b0"]
        queue.finish(1)
        await let_others_run()
        assert queue.parts == ["a0", "b0", "a1"]
        layers.arrive(2)
        queue.finish(2)
        await let_others_run()
        assert queue.parts == ["a0", "b0", "a1", "a2", "a3", "b1", "b2", "b3"]


async def test_more_steps_are_wanted_where_only_the_newest_has_layers_to_catch_up_with() -> None:
    layers, queue = Layers(), FakeQueue(done=0)
    told: list[bool] = []
    steps = LoadSteps(cast("Queue", queue), layers, NUM_LAYERS)
    running = asyncio.create_task(steps.run(lambda: told.append(steps.wants_more)))
    steps.add(parts_of("a"))
    layers.arrive()
    await let_others_run()
    assert told[-1] is False  # no layer is there, only the embeddings
    layers.arrive()
    await let_others_run()
    assert queue.parts == ["a0", "a1"]
    queue.finish(1)
    await let_others_run()
    assert told[-1] is True
    steps.add(parts_of("b"))
    assert steps.wants_more
    steps.add(parts_of("c"))
    assert not steps.wants_more
    await let_others_run()
    assert queue.parts == ["a0", "a1", "b0"]
    told.clear()
    queue.finish(2)
    await let_others_run()
    assert queue.parts == ["a0", "a1", "b0", "b1"]
    assert told == [True]
    queue.finish(None)
    await let_others_run()
    assert steps.wants_more
    layers.arrive(2)
    await running
    assert steps.done


async def test_parts_are_recorded_in_their_turn_once_their_layer_is_there() -> None:
    layers, queue = Layers(), FakeQueue()
    recorded: list[str] = []

    def record(name: str, part: int) -> Sequence[CommandBuffer]:
        recorded.append(f"{name}{part}")
        return part_of(name, part)

    async with following(layers, queue) as steps:
        for name in "ab":
            steps.add([partial(record, name, part) for part in range(NUM_PARTS)])
        await let_others_run()
        assert recorded == []
        layers.arrive()
        await let_others_run()
        assert recorded == queue.parts == ["a0", "b0"]
        layers.arrive(NUM_PARTS - 1)
    assert recorded == queue.parts


async def test_a_failure_to_record_is_told_to_who_waits_for_the_step() -> None:
    layers, queue = Layers(), FakeQueue()
    steps = LoadSteps(cast("Queue", queue), layers, NUM_LAYERS)

    def fail() -> Sequence[CommandBuffer]:
        raise DeviceError("no such kernel")

    waiting = asyncio.create_task(steps.submitted(steps.add([*parts_of("a")[:1], fail, *parts_of("a")[2:]])))
    running = asyncio.create_task(steps.run(lambda: None))
    layers.arrive(NUM_PARTS)
    for task in (running, waiting):
        with pytest.raises(DeviceError, match="no such kernel"):
            await task


async def test_what_a_fast_device_has_done_soon_is_submitted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading_steps, "_AHEAD_S", 1e9)
    layers, queue = Layers(), FakeQueue()
    async with following(layers, queue) as steps:
        for name in "abc":
            steps.add(parts_of(name))
        for _ in range(NUM_PARTS - 1):
            layers.arrive()
            await let_others_run()
        assert queue.parts == [f"{name}{layer}" for layer in range(NUM_PARTS - 1) for name in "abc"]
        assert queue.num_calls < len(queue.parts)  # one by one until it was seen how fast it is
        layers.arrive()


async def test_layers_that_arrive_without_a_step_leave_nothing_to_submit() -> None:
    layers, queue = Layers(), FakeQueue()
    async with following(layers, queue) as steps:
        layers.arrive(NUM_PARTS)
    assert steps.done
    assert [value for _, value in steps.waits] == [NUM_PARTS]
    layers.all_active = True
    assert steps.waits == ()


async def test_a_load_that_fails_is_told_to_every_step() -> None:
    layers = Layers()
    steps = LoadSteps(cast("Queue", FakeQueue()), layers, NUM_LAYERS)
    waiting = [asyncio.create_task(steps.submitted(steps.add(parts_of(name)))) for name in "ab"]
    running = asyncio.create_task(steps.run(lambda: None))
    layers.arrive(2)
    await let_others_run()
    layers.fail(CheckpointError("the file is gone"))
    for task in (running, *waiting):
        with pytest.raises(CheckpointError, match="the file is gone"):
            await task
    with pytest.raises(CheckpointError, match="the file is gone"):
        steps.add(parts_of("c"))


@pytest.mark.parametrize("done", [None, 0], ids=["waiting for a layer", "waiting for the device"])
async def test_a_cancellation_ends_it_and_who_waits_for_a_step(done: int | None) -> None:
    layers, queue = Layers(), FakeQueue(done=done)
    steps = LoadSteps(cast("Queue", queue), layers, NUM_LAYERS)
    waiting = [asyncio.create_task(steps.submitted(steps.add(parts_of(name)))) for name in "abc"]
    running = asyncio.create_task(steps.run(lambda: None))
    layers.arrive(2)
    await let_others_run()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    for task in waiting:
        with pytest.raises(EngineClosedError):
            await task
