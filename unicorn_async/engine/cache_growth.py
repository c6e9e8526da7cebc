"""The growth of the KV cache beside serving: at once where requests wait for it, else so that no step feels it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Protocol

from unicorn_async.background import run_to_end
from unicorn_async.errors import OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.memory.kv_pool import NewBlocks

_PAUSES = 4  # times as long as the last allocation, between steps: drivers hold submissions up for as long as one takes

_log = logging.getLogger(__name__)


class GrowingCache(Protocol):
    """Memory that grows; `KVPool` is it."""

    @property
    def num_first(self) -> int:
        """Pieces that the first requests need."""

    @property
    def is_complete(self) -> bool:
        """Whether all pieces are there."""

    def grow(self) -> NewBlocks:
        """Allocate the next piece, which blocks."""

    def give_up(self) -> None:
        """Plan no more pieces than there are."""


class CacheGrowth:
    """Allocates a cache's pieces in a thread: the first ones at once, and all others when `go_on` was called."""

    def __init__(self, cache: GrowingCache) -> None:
        self._cache = cache
        self._wanted = asyncio.Event()
        self._goes_on = False

    def hurry(self) -> None:
        """Allocate the next piece without waiting for anything: somebody needs it."""
        self._wanted.set()

    def go_on(self) -> None:
        """Allocate what is left, piece by piece: the load, which would wait for it, is done."""
        if not self._goes_on:
            self._goes_on = True
            self._wanted.set()

    async def run(self, add: Callable[[NewBlocks], None], is_busy: Callable[[], bool]) -> OutOfMemoryError | None:
        """Allocate everything, and have it added; pauses while `is_busy`.

        Returns why it ends early, if another process was faster: what was added stays.

        Raises:
            OutOfMemoryError: the first pieces do not fit.
            DeviceLostError: the device was lost.
        """
        number, pause_s = 0, 0.0
        while not self._cache.is_complete:
            if number >= self._cache.num_first:
                await self._next(pause_s if is_busy() else 0)
            self._wanted.clear()
            started = time.perf_counter()
            try:
                blocks = await run_to_end(self._cache.grow)
            except OutOfMemoryError as exc:
                if number < self._cache.num_first:
                    raise
                _log.warning("%s; the KV cache stays as it is", exc)
                self._cache.give_up()
                return exc
            pause_s = _PAUSES * (time.perf_counter() - started)
            number += 1
            add(blocks)
        return None

    async def _next(self, pause_s: float) -> None:
        """Wait until the next piece is wanted, or is due."""
        while not self._goes_on and not self._wanted.is_set():
            await self._wanted.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._wanted.wait()
