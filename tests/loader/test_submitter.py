"""Submissions of a load from a thread: order, what goes together, errors, cancellation."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from unicorn_async.errors import DeviceLostError
from unicorn_async.gpu.queue import CommandBuffer
from unicorn_async.loader.submitter import Submitter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from unicorn_async.gpu.queue import Submission


class HeldQueue:
    """Notes the calls, each of which waits until all are let through."""

    def __init__(self, name: str, calls: list[tuple[str, list[Submission]]]) -> None:
        self.timeline: Any = SimpleNamespace(name=name)
        self.entered, self.may_end = threading.Event(), threading.Event()
        self.is_lost = False
        self._name, self._calls, self._value = name, calls, 0

    def submit_each(self, submissions: Sequence[Submission]) -> list[int]:
        self.entered.set()
        assert self.may_end.wait(120)
        if self.is_lost:
            raise DeviceLostError(f"{self._name} is lost")
        self._calls.append((self._name, list(submissions)))
        self._value += len(submissions)
        return list(range(self._value - len(submissions) + 1, self._value + 1))


class Queues:
    """A copy queue, a queue for conversions and a submitter to them; its first submission is held by the driver."""

    def __init__(self, *, num_queues: int) -> None:
        self.calls: list[tuple[str, list[Submission]]] = []
        self.copy: Any = HeldQueue("copy", self.calls)
        self.convert: Any = HeldQueue("convert", self.calls) if num_queues == 2 else self.copy
        self.layers: Any = SimpleNamespace(name="layers")
        self.submitter = Submitter(self.copy, self.convert, self.layers)

    async def begin(self, *work: str) -> list[asyncio.Task[Any]]:
        """Start a copy that is held, and then others, each named by its queue or "activate"."""
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(self.submitter.submit(self.copy, commands("first")))]
        await asyncio.to_thread(self.copy.entered.wait, 120)
        for number, name in enumerate(work):
            if name == "activate":
                tasks.append(asyncio.create_task(self.submitter.activate_next()))
            else:
                queue = {"copy": self.copy, "convert": self.convert}[name]
                tasks.append(asyncio.create_task(self.submitter.submit(queue, commands(f"{name} {number}"))))
        await asyncio.sleep(0)
        return tasks

    def let_through(self) -> None:
        self.copy.may_end.set()
        self.convert.may_end.set()

    def submitted(self) -> list[tuple[str, list[object]]]:
        """The calls, with the names of their commands."""
        return [(name, [one.commands[0].handle for one in call if one.commands]) for name, call in self.calls]


def commands(name: str) -> CommandBuffer:
    return CommandBuffer(name)  # type: ignore[arg-type]


@pytest.fixture(params=[1, 2], ids=["one queue", "two queues"])
def queues(request: pytest.FixtureRequest) -> Iterator[Queues]:
    made = Queues(num_queues=request.param)
    yield made
    made.let_through()
    made.submitter.close()
    assert not submitter_threads()


def submitter_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("unicorn-submitter")]


async def test_what_comes_while_the_driver_holds_a_submission_up_goes_in_one_call(queues: Queues) -> None:
    tasks = await queues.begin("copy", "copy", "copy")
    assert not any(task.done() for task in tasks)
    queues.let_through()
    assert await asyncio.gather(*tasks) == [1, 2, 3, 4]
    assert queues.submitted() == [("copy", ["first"]), ("copy", ["copy 0", "copy 1", "copy 2"])]
    assert await queues.submitter.submit(queues.copy, commands("later")) == 5
    assert queues.submitter.pending == ((queues.copy.timeline, 5),)


async def test_a_layers_activation_waits_for_the_conversions_before_it_and_for_no_others() -> None:
    queues = Queues(num_queues=2)
    tasks = await queues.begin("activate", "convert", "copy", "activate", "convert", "activate")
    queues.let_through()
    await asyncio.gather(*tasks)
    assert queues.submitted() == [("copy", ["first"]), ("convert", ["convert 1", "convert 4"]), ("copy", ["copy 2"])]
    copied, layers, converted = queues.calls[-1][1], queues.layers, queues.convert.timeline
    assert [one.signals for one in copied] == [[(layers, 1)], (), [(layers, 2)], [(layers, 3)]]
    assert [one.waits for one in copied] == [[], (), [(converted, 1)], [(converted, 2)]]
    assert queues.submitter.num_activated == 3
    queues.submitter.close()


async def test_an_activation_on_the_only_queue_follows_the_conversions_there() -> None:
    queues = Queues(num_queues=1)
    tasks = await queues.begin("convert", "activate", "copy")
    queues.let_through()
    await asyncio.gather(*tasks)
    assert [one.signals for one in queues.calls[-1][1]] == [(), [(queues.layers, 1)], ()]
    assert not any(one.waits for one in queues.calls[-1][1])
    queues.submitter.close()


async def test_a_lost_device_is_everybodys_error(queues: Queues) -> None:
    tasks = await queues.begin("copy", "convert", "activate")
    queues.copy.is_lost = queues.convert.is_lost = True
    queues.let_through()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in found] == [DeviceLostError] * 4
    assert queues.submitter.num_activated == 0
    assert not queues.submitter.pending


async def test_nothing_is_submitted_any_more_once_it_is_closed(queues: Queues) -> None:
    tasks = await queues.begin("copy", "activate")
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    closing = asyncio.create_task(asyncio.to_thread(queues.submitter.close))
    await asyncio.sleep(0)
    assert not closing.done()
    queues.let_through()
    await closing
    assert queues.submitted() == [("copy", ["first"])]
    assert queues.submitter.pending == ((queues.copy.timeline, 1),)
    assert queues.submitter.num_activated == 0
    assert not submitter_threads()
    assert await queues.submitter.submit(queues.copy, commands("of the next source")) == 2
