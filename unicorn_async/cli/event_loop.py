"""The event loop of a command, and how signals end it."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import uvloop

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import FrameType


def run_async(main: Coroutine[None, None, int]) -> int:
    """Run a command on uvloop and return its exit status; SIGTERM ends it in order, as Ctrl-C does.

    Raises:
        KeyboardInterrupt: Ctrl-C ended it.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(_cancelled_by_sigterm(main))
        except asyncio.CancelledError:
            return 128 + signal.SIGTERM


async def _cancelled_by_sigterm(main: Coroutine[None, None, int]) -> int:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "a coroutine that a Runner runs is a task"

    def stop(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(task.cancel)

    # Not loop.add_signal_handler: a server puts its own there, and gives back what signal.getsignal saw before.
    earlier = signal.signal(signal.SIGTERM, stop)
    try:
        return await main
    finally:
        signal.signal(signal.SIGTERM, earlier)
