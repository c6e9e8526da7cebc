"""Threads that work for an event loop: order, errors, cancellation, and an end that leaves nobody waiting."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from unicorn_async.errors import OutOfMemoryError
from unicorn_async.loader.reader_threads import ReaderThreads

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def one() -> Iterator[ReaderThreads]:
    threads = ReaderThreads(1, name="one")
    yield threads
    threads.close()


async def test_work_is_done_in_order_and_its_end_is_seen(one: ReaderThreads) -> None:
    done: list[int] = []
    one.submit(lambda: done.append(0))
    await asyncio.gather(*(one.run(lambda i=i: done.append(i)) for i in range(1, 100)))  # type: ignore[misc]
    assert done == list(range(100))


async def test_threads_work_side_by_side_under_their_name() -> None:
    threads, meeting = ReaderThreads(3, name="side"), threading.Barrier(3)
    names: list[str] = []

    def meet() -> None:
        meeting.wait(120)
        names.append(threading.current_thread().name)

    await asyncio.gather(*(threads.run(meet) for _ in range(3)))
    threads.close()
    assert sorted(names) == ["side_0", "side_1", "side_2"]


async def test_an_error_is_the_waiters_and_the_thread_goes_on(one: ReaderThreads) -> None:
    def fail() -> None:
        raise OSError(5, "broken")

    with pytest.raises(OSError, match="broken"):
        await one.run(fail)
    await one.run(lambda: None)


async def test_cancelled_work_that_has_not_begun_is_left_out(one: ReaderThreads) -> None:
    begin, done = threading.Event(), list[str]()
    first = asyncio.create_task(one.run(lambda: done.append("first") if begin.wait(120) else None))
    second = asyncio.create_task(one.run(lambda: done.append("second")))
    third = asyncio.create_task(one.run(lambda: done.append("third")))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    begin.set()
    await asyncio.gather(first, third)
    assert done == ["first", "third"]


async def test_who_waits_at_the_end_is_cancelled_unless_the_work_had_begun() -> None:
    threads, begun, go_on = ReaderThreads(1, name="end"), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(120)

    under_way, waiting = asyncio.create_task(threads.run(work)), asyncio.create_task(threads.run(work))
    await asyncio.to_thread(begun.wait, 120)
    go_on.set()
    threads.close()
    threads.close()
    await under_way
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("end_")]
    await asyncio.wait([waiting])
    assert waiting.done()


def test_the_end_of_the_loop_does_not_disturb_the_threads() -> None:
    threads, begun, go_on = ReaderThreads(1, name="loopless"), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(120)

    async def leave() -> None:
        task = asyncio.create_task(threads.run(work))
        await asyncio.to_thread(begun.wait, 120)
        task.cancel()

    asyncio.run(leave())
    go_on.set()
    threads.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("loopless")]


def test_a_system_without_more_threads_is_an_error_that_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    started, start = list[threading.Thread](), threading.Thread.start

    def refuses_the_third(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuses_the_third)
    with pytest.raises(OutOfMemoryError, match="only 2 of 4 threads"):
        ReaderThreads(4, name="few")
    assert not any(thread.is_alive() for thread in started)
