from __future__ import annotations

import asyncio
import copy
import threading
from typing import TYPE_CHECKING, Any

import pytest

from unicorn_async.errors import DeviceError, DeviceLostError
from unicorn_async.gpu.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unicorn_async.gpu.device import Device


@pytest.fixture
def timeline(toy: Device) -> Iterator[Timeline]:
    """A timeline that the host signals."""
    made = Timeline(toy, name="probe")
    yield made
    made.close()


async def started(timeline: Timeline, value: int) -> asyncio.Task[None]:
    """Start a task that waits, and let it join."""
    task = asyncio.create_task(timeline.reached(value))
    await asyncio.sleep(0)
    return task


async def test_a_value_that_has_passed_needs_no_thread(timeline: Timeline) -> None:
    timeline.signal(5)
    await timeline.reached(5)
    await timeline.reached(2)
    assert not [thread for thread in threading.enumerate() if thread.name == "unicorn-probe"]


async def test_waiters_wake_in_the_order_of_their_values_whatever_order_they_came_in(timeline: Timeline) -> None:
    late, early = await started(timeline, 3), await started(timeline, 1)
    timeline.signal(1)
    await early
    assert not late.done()
    timeline.signal(2)
    same = await started(timeline, 3)
    timeline.signal(3)
    await asyncio.gather(late, same)
    assert timeline.completed() == 3


async def test_a_jump_wakes_all_that_it_passes(timeline: Timeline) -> None:
    tasks = [await started(timeline, value) for value in (1, 5, 9)]
    timeline.signal(9)
    await asyncio.wait_for(asyncio.gather(*tasks), 120)


async def test_one_named_thread_serves_all_waiters(timeline: Timeline) -> None:
    tasks = [await started(timeline, value) for value in range(1, 20)]
    assert len([thread for thread in threading.enumerate() if thread.name == "unicorn-probe"]) == 1
    timeline.signal(20)
    await asyncio.gather(*tasks)


async def test_cancelling_a_waiter_leaves_nothing_and_the_others_go_on(timeline: Timeline) -> None:
    cancelled, other = await started(timeline, 1), await started(timeline, 1)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert [waiter.value for waiter in timeline._waiters] == [1]
    timeline.signal(1)
    await asyncio.wait_for(other, 120)
    assert timeline._waiters == []


async def test_cancelling_after_the_value_has_passed_is_safe(timeline: Timeline) -> None:
    task = await started(timeline, 1)
    timeline.signal(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await timeline.reached(1)


async def test_many_values_racing_with_the_thread_are_all_seen(timeline: Timeline) -> None:
    def signal_all() -> None:
        for value in range(1, 500):
            timeline.signal(value)

    signaller = threading.Thread(target=signal_all)
    signaller.start()
    for value in range(1, 500):
        await asyncio.wait_for(timeline.reached(value), 120)
    signaller.join()


def test_a_closed_loop_does_not_stop_the_others(timeline: Timeline) -> None:
    loop = asyncio.new_event_loop()
    task = loop.create_task(timeline.reached(1))
    loop.run_until_complete(asyncio.sleep(0))
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()

    async def go_on() -> None:
        other = await started(timeline, 1)
        timeline.signal(1)
        await asyncio.wait_for(other, 120)

    asyncio.run(go_on())


async def test_closing_ends_the_wait_of_those_who_still_wait(toy: Device) -> None:
    timeline = Timeline(toy, name="closing")
    task = await started(timeline, 7)
    timeline.close()
    with pytest.raises(DeviceError, match="closing: closed while a coroutine waited"):
        await task
    with pytest.raises(DeviceError, match="closing: waited for 8 after it was closed"):
        await timeline.reached(8)
    timeline.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "unicorn-closing"]


class Lost:
    """Raw calls of a device that is lost when somebody waits."""

    def __init__(self, step: Any, lost: threading.Event) -> None:
        self.step = step
        self.lost = lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self.step, name)

    def vkWaitSemaphores(self, *arguments: object) -> int:
        self.lost.wait()
        return -4


async def test_a_lost_device_fails_every_waiter_and_every_later_one(toy: Device) -> None:
    timeline = Timeline(toy, name="losing")
    real, lost = timeline._api, threading.Event()
    timeline._api = copy.copy(real)
    timeline._api.step = Lost(real.step, lost)
    tasks = [await started(timeline, value) for value in (1, 2)]
    lost.set()
    for task in tasks:
        with pytest.raises(DeviceLostError, match="VK_ERROR_DEVICE_LOST"):
            await task
    with pytest.raises(DeviceLostError):
        await timeline.reached(1)
    timeline.close()


def test_wait_gives_up_after_its_timeout(timeline: Timeline) -> None:
    with pytest.raises(TimeoutError, match=r"probe: at 0 after 0.01 s, waited for 1"):
        timeline.wait(1, timeout_s=0.01)


def test_a_timeline_that_is_not_closed_warns(toy: Device) -> None:
    timeline = Timeline(toy, name="forgotten")
    with pytest.warns(ResourceWarning, match="'forgotten' was not closed"):
        timeline.__del__()
    timeline.close()
