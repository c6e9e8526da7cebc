"""Calls in threads that step back."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from unicorn_async.errors import OutOfMemoryError
from unicorn_async.gpu.background_calls import BackgroundCalls


def niceness(*_: object) -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_every_caller_gets_its_own_result() -> None:
    with BackgroundCalls(2, name="calls") as calls, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda value: calls.call(pow, value, 2), range(200)))
    assert found == [value * value for value in range(200)]


def test_calls_step_back_and_their_callers_do_not() -> None:
    before = niceness()
    with BackgroundCalls(1, name="calls") as calls:
        assert calls.call(niceness) > before
    assert niceness() == before


def test_the_threads_end_with_the_block() -> None:
    with BackgroundCalls(3, name="ending"):
        pass
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ending")]


def test_a_system_without_more_threads_is_an_error_that_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    started, start = list[threading.Thread](), threading.Thread.start

    def refuses_the_second(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuses_the_second)
    with pytest.raises(OutOfMemoryError, match="3 more threads"), BackgroundCalls(3, name="few"):
        pass
    assert not started[0].is_alive()
