"""Tells a websocket client what the engine's steps do, as often as it asked for and as fast as it takes it."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.steps_event import steps_event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from unicorn_async.engine.types import EngineAPI
    from unicorn_async.server.model_host import ModelHost

MAX_WATCHERS = 16
_HEAPS_INTERVAL_S = 1.0  # a driver is asked for them


class StepWatchers:
    """How many watch; made once a server."""

    def __init__(self) -> None:
        self.num_watching = 0

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


async def watch_steps(
    models: ModelHost,
    interval_s: float,
    own: Callable[[], Mapping[str, str | None]],
    emit: Callable[[str], Awaitable[None]],
) -> None:
    """Send an event each `interval_s` in which something changed, and each second, of the open model, until cancelled.

    `own` says which responses are the client's. A client that takes its time gets fewer events, and is told how many
    steps it has missed.
    """
    watched: EngineAPI | None = None
    num_seen, last, heaps_s = 0, "", 0.0
    with ExitStack() as watching:
        while True:
            model = models.state.model
            engine = None if model is None else model.engine
            if engine is not watched:
                watching.close()
                watched, last, heaps_s = engine, "", 0.0
                if engine is not None:
                    watching.enter_context(engine.steps.watching())
                    num_seen = engine.steps.num_noted
            if engine is not None:
                records, dropped = engine.steps.since(num_seen)
                num_seen += len(records) + dropped
                now_s = time.perf_counter()
                with_heaps = now_s - heaps_s >= _HEAPS_INTERVAL_S
                heaps_s = now_s if with_heaps else heaps_s
                event = steps_event(engine, records, dropped, now_s=now_s, own=own(), with_heaps=with_heaps)
                if records or with_heaps or event != last:
                    await emit(event)
                    last = event
            await asyncio.sleep(interval_s)
