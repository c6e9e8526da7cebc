"""What runs beside an engine's user, from its opening to its end, and why it takes no requests any more."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from unicorn_async.background import wait_to_end
from unicorn_async.errors import EngineClosedError, EngineFailedError, UnicornError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from unicorn_async.engine.drafter import Drafter
    from unicorn_async.engine.engine_loop import EngineLoop
    from unicorn_async.engine.opened_model import OpenedModel


class Lifetime:
    """The load and the loop of one engine, and its draft model.

    What fails there first is the answer to every request from then on.
    """

    def __init__(self, model: OpenedModel, loop: EngineLoop, drafter: Drafter | None = None) -> None:
        self._model = model
        self._loop = loop
        self._drafter = drafter
        self._failure: UnicornError | None = None
        self._has_ended = asyncio.Event()

    @asynccontextmanager
    async def running(self, stop_waiting: Callable[[], None]) -> AsyncIterator[None]:
        """Run both for the block's time; at its end `stop_waiting` comes first, and nothing runs any more behind it."""
        tasks = [
            asyncio.create_task(self._guarded(lambda: self._model.load), name="load"),
            asyncio.create_task(self._guarded(self._run), name="engine loop"),
        ]
        drafting = []
        if self._drafter is not None:
            drafting.append(asyncio.create_task(self._guarded(self._drafter.run), name="draft model"))
        try:
            yield
        finally:
            stop_waiting()
            try:
                # The loop may be amid a draft, of which the model is closed behind it.
                await wait_to_end(asyncio.create_task(_end_in_turn(tasks, drafting), name="end of an engine"))
            finally:
                self._fail(EngineClosedError("the engine is closed"))

    @property
    def has_ended(self) -> bool:
        """Whether something has failed, or the engine is closed."""
        return self._has_ended.is_set()

    async def ended(self) -> UnicornError:
        """Wait for that, and return why."""
        await self._has_ended.wait()
        assert self._failure is not None
        return self._failure

    def check(self) -> None:
        """Raise why it has ended, if it has."""
        if self._failure is not None:
            raise self._failure

    async def _run(self) -> None:
        try:
            await self._loop.run()
        except EngineClosedError:  # the load was cancelled, perhaps because something beside it failed
            await asyncio.wait([self._model.load])
            if not self._model.load.cancelled():
                self._model.load.result()
            raise

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a background task; its failure becomes the answer to every request."""
        try:
            await work()
        except BaseExceptionGroup as group:
            self._fail(group.exceptions[0])
        except Exception as exc:
            self._fail(exc)

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, UnicornError):
            cause, error = error, EngineFailedError(f"{type(error).__name__}: {error}")
            error.__cause__ = cause
        if self._failure is None:
            self._failure = error
        self._loop.fail(self._failure)
        self._has_ended.set()


async def _end_in_turn(*groups: list[asyncio.Task[None]]) -> None:
    for tasks in groups:
        for task in tasks:
            task.cancel()
        await wait_to_end(*tasks)
