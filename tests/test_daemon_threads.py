"""Threads that a disk holds are left behind and named, and a system without threads is an error that says so."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from tests.threads import allow_threads
from unicorn_async.daemon_threads import DaemonThreads
from unicorn_async.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Held:
    """Work that goes on until `going_on` is set."""

    def __init__(self) -> None:
        self.begun, self.going_on, self.num_ends = threading.Event(), threading.Event(), 0
        self.thread: threading.Thread | None = None

    def __call__(self) -> None:
        self.thread = threading.current_thread()
        self.begun.set()
        self.going_on.wait()

    def end(self) -> None:
        self.num_ends += 1


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held()
    yield made
    made.going_on.set()


async def test_a_thread_that_does_not_end_is_named_with_what_it_does_and_left(held: Held) -> None:
    threads = DaemonThreads("stuck", 2, held.end)
    threads.start()
    threads.begin("reading", held)
    assert await asyncio.to_thread(held.begun.wait, 120)
    assert await threads.begin("adding", lambda: 1 + 1) == 2
    threads.close(0.0)
    [idle] = [thread for thread in threads._threads if thread is not held.thread]
    await asyncio.to_thread(idle.join, 120)
    (left,) = threads.close(0.1)
    assert left in ("stuck_0 (reading)", "stuck_1 (reading)")
    assert held.num_ends == 0
    held.going_on.set()
    assert threads.close(120) == []
    assert held.num_ends == 1
    assert all(thread.daemon for thread in threads._threads)


async def test_what_was_not_begun_by_the_end_is_left_out(held: Held) -> None:
    threads = DaemonThreads("stuck", 1)
    threads.start()
    threads.begin("reading", held)
    assert await asyncio.to_thread(held.begun.wait, 120)
    left_out = threads.begin("adding", lambda: 1 + 1)
    assert len(threads.close(0.0)) == 1
    held.going_on.set()
    assert threads.close(120) == []
    await asyncio.sleep(0)
    assert not left_out.done()


async def test_what_nobody_waits_for_any_more_is_not_begun(held: Held) -> None:
    threads, done = DaemonThreads("stuck", 1), list[str]()
    threads.start()
    threads.begin("waiting", held)
    threads.begin("adding", lambda: done.append("first")).cancel()
    last = threads.begin("adding", lambda: done.append("last"))
    held.going_on.set()
    await last
    assert done == ["last"]
    assert threads.close(120) == []


async def test_an_error_is_handed_on_and_the_thread_goes_on() -> None:
    threads = DaemonThreads("erring", 1)
    threads.start()
    with pytest.raises(ZeroDivisionError):
        await threads.begin("dividing", lambda: 1 // 0)
    assert await threads.begin("adding", lambda: 1 + 1) == 2
    assert threads.close(120) == []


def test_what_ends_behind_its_event_loop_is_nobodys(held: Held) -> None:
    threads = DaemonThreads("late", 1)

    async def begin() -> None:
        threads.start()
        threads.begin("reading", held)

    asyncio.run(begin())
    held.going_on.set()
    assert threads.close(120) == []


async def test_a_few_threads_do_the_work_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_threads(monkeypatch, 1)
    threads = DaemonThreads("few", 4)
    threads.start()
    assert await asyncio.gather(*(threads.begin("adding", lambda: 1 + 1) for _ in range(3))) == [2, 2, 2]
    assert len(threads._threads) == 1
    assert threads.close(120) == []


def test_a_system_without_threads_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_threads(monkeypatch, 0)
    threads = DaemonThreads("none", 4)
    with pytest.raises(CacheError, match="none: the system allows none of 4 threads"):
        threads.start()
    assert threads.close(0.0) == []
