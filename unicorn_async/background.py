"""Blocking work and tasks that are never left behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Executor

T = TypeVar("T")

THREAD_BYTES = 1 << 20  # copies of this size or more leave the event loop to others


async def run_to_end(work: Callable[[], T], executor: Executor | None = None) -> T:
    """Run `work` in a thread; a cancellation is raised once the work is done, whose result is then lost.

    It is for work on things that are closed after a cancellation: a thread that is left behind would use them.
    """
    future = asyncio.get_running_loop().run_in_executor(executor, work)
    try:
        await wait_to_end(future)
    except asyncio.CancelledError:
        future.exception()  # seen, and of no use to a cancelled caller
        raise
    return future.result()


async def run_task(work: Coroutine[object, object, T], *, on_cancel: Callable[[], None]) -> T:
    """Run a coroutine as a task, and tell its threads of a cancellation, for which it would wait to the end of them."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        on_cancel()
        await end_task(task)
        raise
    return task.result()


async def wait_to_end(*futures: asyncio.Future[T]) -> None:
    """Wait until all are done, however often the wait is cancelled; a cancellation is raised after it.

    What the futures end with is left to the caller.
    """
    cancelled: asyncio.CancelledError | None = None
    while not all(future.done() for future in futures):
        try:
            await asyncio.wait(futures)
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        raise cancelled


async def end_task(task: asyncio.Task[T]) -> None:
    """Cancel a task, and wait for it; what it ends with was handed on, or comes too late."""
    task.cancel()
    await wait_to_end(task)
    if not task.cancelled():
        task.exception()
