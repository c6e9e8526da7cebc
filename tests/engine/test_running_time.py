from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from unicorn_async.engine import running_time
from unicorn_async.engine.running_time import RunningTime


class Clock:
    """A clock that only goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(running_time, "time", SimpleNamespace(perf_counter=made.perf_counter))
    return made


async def test_what_a_coroutine_waits_for_is_not_counted(clock: Clock) -> None:
    gate = asyncio.Event()

    async def work() -> str:
        clock.now += 1.0
        await gate.wait()
        clock.now += 2.0
        return "done"

    def end_wait() -> None:
        clock.now += 100.0
        gate.set()

    timed = RunningTime(work())
    asyncio.get_running_loop().call_soon(end_wait)
    assert await timed == "done"
    assert timed.seconds == 3.0


async def test_a_cancellation_reaches_the_coroutine_and_its_end_is_counted(clock: Clock) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            clock.now += 5.0

    timed = RunningTime(work())

    async def wait() -> None:
        await timed

    task = asyncio.create_task(wait())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert timed.seconds == 5.0


async def test_an_error_of_what_is_awaited_reaches_the_coroutine_and_its_own_reaches_who_waits(clock: Clock) -> None:
    failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        try:
            await failing
        except ValueError as exc:
            clock.now += 1.0
            raise KeyError("of its own") from exc

    asyncio.get_running_loop().call_soon(failing.set_exception, ValueError("awaited"))
    timed = RunningTime(work())
    with pytest.raises(KeyError, match="of its own"):
        await timed
    assert timed.seconds == 1.0
