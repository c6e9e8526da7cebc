"""Completions of runs as asyncio futures.

pyxrt's `run.wait` holds the GIL, its callbacks do not work, and the driver has no file descriptor to wait for. So one
thread asks `run.state()` of every run under way, and sleeps in between: an eighth of the time that the youngest run has
taken so far, so a completion is seen late by an eighth of a run at most, and long runs cost little.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from unicorn_async.errors import NpuContextLostError, NpuError, NpuTimeoutError

if TYPE_CHECKING:
    import pyxrt

_SHORTEST_S, _LONGEST_S, _SHARE = 20e-6, 2e-3, 8
_log = logging.getLogger(__name__)
_RUNNING = 3  # a state of XRT's that pyxrt has no name for


class RunEnd(Enum):
    """How the driver says that a run ended."""

    COMPLETED = "completed"
    TIMEOUT = "timeout"
    LOST = "lost"


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[RunEnd]


@dataclass(frozen=True, slots=True, eq=False)
class _Watched:
    handle: pyxrt.run
    name: str
    started_s: float
    timeout_s: float
    waiter: _Waiter


class CompletionThread:
    """Watches runs; its thread starts with the first of them. The device owns it.

    If the thread ends by an error, every run is one whose state can't be read, those that are watched later included.
    """

    def __init__(self) -> None:
        self._watched: list[_Watched] = []
        self._wakeup = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._failure = ""

    def watch(self, handle: pyxrt.run, *, name: str, timeout_s: float) -> asyncio.Future[RunEnd]:
        """Return a future for the end of a run that was started.

        It raises NpuTimeoutError if the run has no end after `timeout_s`, and NpuContextLostError if its state can't be
        read: in both cases the NPU may still use its buffers, until the run's context is closed. A cancelled future is
        not waited for, but the run goes on.
        """
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop, loop.create_future())
        watched = _Watched(handle, name, time.monotonic(), timeout_s, waiter)
        with self._wakeup:
            if self._closed:
                raise NpuError(f"{name}: watched after the device was closed")
            if self._failure:
                waiter.future.set_exception(self._unwatched(watched))
                return waiter.future
            self._watched.append(watched)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="unicorn-npu-completion", daemon=True)
                self._thread.start()
            self._wakeup.notify()
        return waiter.future

    def close(self) -> None:
        """End the thread; futures that are left get NpuError."""
        with self._wakeup:
            self._closed = True
            self._wakeup.notify()
        if self._thread is not None:
            self._thread.join()
        for watched in self._watched:
            _resolve(watched.waiter, NpuError(f"{watched.name}: the device was closed while it ran"))
        self._watched.clear()

    def _run(self) -> None:
        try:
            self._watch_all()
        except BaseException as exc:
            _log.exception("the thread that watches the NPU's runs ended")
            with self._wakeup:
                self._failure = f"the thread that watches runs ended: {exc!r}"
                left = self._watched[:]
                self._watched.clear()
            for watched in left:
                _resolve(watched.waiter, self._unwatched(watched))

    def _unwatched(self, watched: _Watched) -> NpuContextLostError:
        return NpuContextLostError(f"{watched.name}: the state of the run can't be read: {self._failure}")

    def _watch_all(self) -> None:
        while True:
            with self._wakeup:
                while not self._watched and not self._closed:
                    self._wakeup.wait()
                if self._closed:
                    return
            self._look_at_all()
            with self._wakeup:
                if self._watched and not self._closed:
                    self._wakeup.wait(_interval(time.monotonic() - max(w.started_s for w in self._watched)))

    def _look_at_all(self) -> None:
        for waiter, end in self._take_ended():
            _resolve(waiter, end)

    def _take_ended(self) -> list[tuple[_Waiter, RunEnd | NpuError]]:
        """Look at each run once, and return who waits for those that have ended.

        Nothing else of them is kept, so that their buffers and their context can go as soon as anyone knows.
        """
        with self._wakeup:
            current = list(self._watched)
        ended = [(watched, end) for watched in current if (end := _look(watched)) is not None]
        with self._wakeup:
            for watched, _ in ended:
                self._watched.remove(watched)
        return [(watched.waiter, end) for watched, end in ended]


def _interval(elapsed_s: float) -> float:
    return min(max(elapsed_s / _SHARE, _SHORTEST_S), _LONGEST_S)


def _look(watched: _Watched) -> RunEnd | NpuError | None:
    try:
        return _end(watched)
    except Exception as exc:  # of another pyxrt, or of too little memory: whoever waits has to hear of any
        return NpuContextLostError(f"{watched.name}: the state of the run can't be read: {exc!r}")


def _end(watched: _Watched) -> RunEnd | NpuError | None:
    import pyxrt

    states = pyxrt.ert_cmd_state
    state = watched.handle.state()
    if state == states.ERT_CMD_STATE_COMPLETED:
        return RunEnd.COMPLETED
    if state == states.ERT_CMD_STATE_TIMEOUT:
        return RunEnd.TIMEOUT
    waiting = (states.ERT_CMD_STATE_NEW, states.ERT_CMD_STATE_QUEUED, states.ERT_CMD_STATE_SUBMITTED)
    if state in waiting or int(state) == _RUNNING:
        if time.monotonic() - watched.started_s <= watched.timeout_s:
            return None
        return NpuTimeoutError(f"{watched.name}: no end after {watched.timeout_s} s, nor has the driver ended it")
    return RunEnd.LOST


def _resolve(waiter: _Waiter, end: RunEnd | NpuError) -> None:
    try:
        waiter.loop.call_soon_threadsafe(_finish, waiter.future, end)
    except RuntimeError:  # its loop is closed, so nobody awaits it any more
        return


def _finish(future: asyncio.Future[RunEnd], end: RunEnd | NpuError) -> None:
    if future.done():
        return
    if isinstance(end, RunEnd):
        future.set_result(end)
    else:
        future.set_exception(end)
