"""The event loop of a command, and how signals end it."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import uvloop

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def run_async(main: Coroutine[None, None, int], *, ended_status: int | None = None) -> int:
    """Run a command on uvloop and return its exit status; SIGTERM and SIGHUP end it in order, as Ctrl-C does.

    Its status is then `ended_status`, 128 and the signal's number where that is None.

    Raises:
        KeyboardInterrupt: Ctrl-C ended it.
    """
    ended_by: list[int] = []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(_cancelled_by_signals(main, ended_by))
        except asyncio.CancelledError:
            return ended_status if ended_status is not None else 128 + (ended_by or [signal.SIGTERM])[0]


async def _cancelled_by_signals(main: Coroutine[None, None, int], ended_by: list[int]) -> int:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "a coroutine that a Runner runs is a task"

    def stop(number: int, frame: FrameType | None) -> None:
        ended_by.append(number)
        loop.call_soon_threadsafe(task.cancel)

    # Not loop.add_signal_handler: a server puts its own there, and gives back what signal.getsignal saw before.
    numbers = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # as nohup has it
    earlier = {number: signal.signal(number, stop) for number in numbers}
    try:
        return await main
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
