"""What an engine leaves behind when it ends: closed beside whatever comes next."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from unicorn_async.background import run_to_end, wait_to_end
from unicorn_async.gpu.left_memory import LeftMemory

if TYPE_CHECKING:
    from contextlib import ExitStack
    from types import TracebackType

_log = logging.getLogger(__name__)


class Leftovers:
    """Closes in a thread of its own what was taken, in turn; the end of its block waits for all of it, in a hurry.

    `memory` is what of it is still to be freed.
    """

    def __init__(self) -> None:
        self.memory = LeftMemory()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="leftovers")
        self._closings: set[asyncio.Task[None]] = set()

    def take(self, stack: ExitStack) -> None:
        """Close a stack behind all that was taken before; nothing on a device uses what it closes any more."""
        closing = asyncio.create_task(self._close(stack), name="close leftovers")
        self._closings.add(closing)
        closing.add_done_callback(self._closings.discard)

    async def closed(self) -> None:
        """Wait until all that was taken so far is closed, which is hurried."""
        closings = set(self._closings)
        if closings:
            with self.memory.hurrying():
                await asyncio.wait(closings)

    async def _close(self, stack: ExitStack) -> None:
        try:
            await run_to_end(stack.close, self._thread)
        except Exception:
            _log.exception("a model that was closed could not be freed")

    async def __aenter__(self) -> Self:
        """Return it."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until everything is closed."""
        try:
            with self.memory.hurrying():
                await wait_to_end(*self._closings)
        finally:
            self._thread.shutdown(wait=False)
