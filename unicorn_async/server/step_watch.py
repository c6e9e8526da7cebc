"""Tells a websocket client what the engine's steps do, as often as it asked for and as fast as it takes it."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.steps_event import CacheText, steps_event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from unicorn_async.engine.types import EngineAPI
    from unicorn_async.server.model_state import WatchedModels

MAX_WATCHERS = 16
_HEAPS_INTERVAL_S = 1.0  # a driver is asked for them


class StepWatchers:
    """How many watch, and what they share; made once a server."""

    def __init__(self) -> None:
        self.num_watching = 0
        self.cache = CacheText()

    def claim(self) -> None:
        """Count one more; `release` has to follow.

        Raises:
            ApiError: 429, enough watch already.
        """
        if self.num_watching >= MAX_WATCHERS:
            raise ApiError(f"{MAX_WATCHERS} clients watch the steps already", status=429, code="too_many_watchers")
        self.num_watching += 1

    def release(self) -> None:
        """Count one less."""
        self.num_watching -= 1


class StepWatch:
    """What one client is told, and how often: also one that changes its mind gets no more than it may."""

    def __init__(
        self,
        models: WatchedModels,
        own: Callable[[], Mapping[str, str | None]],
        cache: CacheText,
    ) -> None:
        """`own` says which responses are the client's; `cache` is shared by all that watch."""
        self._models = models
        self._own = own
        self._cache = cache
        self._interval_s = 0.0
        self._looked_s = -math.inf
        self._changed = asyncio.Event()

    def set_interval(self, interval_s: float) -> None:
        """Look as often as that from now on, without losing the place in what is noted."""
        self._interval_s = interval_s
        self._changed.set()

    async def run(self, emit: Callable[[str], Awaitable[None]]) -> None:
        """Send an event each interval in which something changed, and each second, of the open model, until cancelled.

        A client that takes its time gets fewer events, and is told how many steps it has missed.
        """
        watched: EngineAPI | None = None
        num_seen, last, heaps_s = 0, "", 0.0
        with ExitStack() as watching:
            while True:
                model = self._models.state.model
                engine = None if model is None else model.engine
                if engine is not watched:
                    watching.close()
                    watched, last, heaps_s = engine, "", 0.0
                    if engine is not None:
                        watching.enter_context(engine.steps.watching())
                        num_seen = engine.steps.num_noted
                await self._interval()
                if engine is None:
                    continue
                records, dropped = engine.steps.since(num_seen)
                num_seen += len(records) + dropped
                now_s = time.perf_counter()
                with_heaps = now_s - heaps_s >= _HEAPS_INTERVAL_S
                heaps_s = now_s if with_heaps else heaps_s
                event = steps_event(
                    engine, records, dropped, now_s=now_s, own=self._own(), with_heaps=with_heaps, cache=self._cache
                )
                if records or with_heaps or event != last:
                    await emit(event)
                    last = event

    async def _interval(self) -> None:
        """Wait until the client may be told something again."""
        while (left_s := self._looked_s + self._interval_s - time.perf_counter()) > 0:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
        self._looked_s = time.perf_counter()
