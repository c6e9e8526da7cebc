"""Blocking work in a thread that is never left behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def run_to_end(work: Callable[[], T]) -> T:
    """Run `work` in a thread; a cancellation is raised once the work is done, whose result is then lost.

    It is for work on things that are closed after a cancellation: a thread that is left behind would use them.
    """
    future = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        future.exception()  # seen, and of no use to a cancelled caller
        raise cancelled
    return future.result()
