"""The end of what requests wait in, a server or a model: whoever waits then, or is going to, is told why."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unicorn_async.errors import UnicornError


class Ending:
    """The end of something, which comes once, and those who wait for its work; used in one event loop alone."""

    def __init__(self) -> None:
        self.cause: UnicornError | None = None  # once it has come
        self._waits: set[asyncio.Timeout] = set()  # one for each block under way

    def come(self, cause: UnicornError) -> None:
        """End every block under way, and those to come, with an error. A second call does nothing."""
        if self.cause is None:
            self.cause = cause
            for wait in self._waits:
                wait.reschedule(0.0)

    def check(self) -> None:
        """Raise the cause of the end, if that has come."""
        if self.cause is not None:
            raise self.cause

    @asynccontextmanager
    async def cuts_short(self) -> AsyncIterator[None]:
        """Have the end cut the block short, which waits for something.

        Raises:
            UnicornError: the cause of the end.
        """
        self.check()
        wait = asyncio.timeout(None)
        try:
            async with wait:
                self._waits.add(wait)
                yield
        except TimeoutError:
            if self.cause is None or not wait.expired():
                raise
            raise self.cause from None
        finally:
            self._waits.discard(wait)
