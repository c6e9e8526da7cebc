"""The model that a server answers with: opened, switched and closed while it serves."""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from unicorn_async.background import run_to_end, wait_to_end
from unicorn_async.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    DownloadError,
    EngineClosedError,
    ModelNotFoundError,
    UnicornError,
)
from unicorn_async.server.library import OpenEngine
from unicorn_async.server.model_change import Change
from unicorn_async.server.model_state import ModelState, ModelStatus
from unicorn_async.server.protocol.errors import ApiError, describe_error
from unicorn_async.server.restarts import Restarts
from unicorn_async.server.served_model import ServedModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine
    from types import TracebackType

    from unicorn_async.engine.model_library import ModelChoice, PreparedModel
    from unicorn_async.engine.types import EngineAPI, LoadProgress
    from unicorn_async.server.library import Library

logger = logging.getLogger(__name__)

IDLE_TIMEOUT_S = 60.0


class ModelHost:
    """Owns one engine at most, and changes it by request: an asynchronous context manager, to be entered once.

    An engine is entered and left in one task of its own, the tenant. The supervisor alone starts tenants, and only
    after the one before has ended: so two models never share the device, but for memory of the last one that is being
    freed, for which an unload alone waits. A newer change takes the place of an older one that is not done; changes do
    not queue.
    """

    def __init__(
        self,
        library: Library,
        *,
        can_switch: bool = True,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        max_restarts: int | None = None,
    ) -> None:
        self.can_switch = can_switch  # whether clients may load and unload
        self.library = library
        self._idle_timeout_s = idle_timeout_s
        self._max_restarts = max_restarts  # of an engine that fails again and again, None = any number
        self._state = ModelState(ModelStatus.EMPTY)
        self._changed = asyncio.Event()  # another one after each change of the state
        self._change: Change | None = None  # the newest
        self._wake = asyncio.Event()
        self._tickets = itertools.count(1)
        self._newest_ticket = 0  # of those that were not refused
        self._preparing = asyncio.Lock()  # one at a time: each takes a thread
        self._preparations: set[asyncio.Task[PreparedModel]] = set()  # the one that has the lock, and who waits for it
        self._stopped: UnicornError | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._tenant: asyncio.Task[None] | None = None

    @classmethod
    def around(cls, engine: EngineAPI) -> Self:
        """Return a host of one open engine, which stays its owner's; clients can't change it."""
        library = OpenEngine(engine)
        host = cls(library, can_switch=False)
        host._change = Change(library.model, is_logged=True)
        host._state = ModelState(ModelStatus.OPENING, library.model.name)
        host._wake.set()
        return host

    async def __aenter__(self) -> Self:
        """Begin to serve models."""
        self._supervisor = asyncio.create_task(self._supervise(), name="model host")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close what is open; a cancellation meanwhile is raised after that."""
        self._refuse(EngineClosedError("the server is shutting down"))
        self._set(replace(self._state, model=None))
        tasks: list[asyncio.Task[object]]
        tasks = [task for task in (self._supervisor, self._tenant, *self._preparations) if task is not None]
        for task in tasks:
            _cancel_once(task)
        try:
            await wait_to_end(*tasks)
        finally:
            self._set(ModelState(ModelStatus.EMPTY))

    @property
    def state(self) -> ModelState:
        """What is served now."""
        return self._state

    @property
    def is_stopped(self) -> bool:
        """Whether the server is shutting down."""
        return self._stopped is not None

    async def watch(self) -> AsyncIterator[ModelState]:
        """Yield the state now and whenever it has changed; a slow watcher misses states, never the last one."""
        while True:
            changed = self._changed
            yield self._state
            await changed.wait()

    async def model(self, name: str | None = None) -> ServedModel:
        """Return the model to answer a request with, by the name that the request has; waits for one on its way.

        Raises:
            ApiError: 404, the name is another model's; 503, there is none.
            EngineClosedError: the server stops.
        """
        while True:
            changed, state = self._changed, self._state
            if self._stopped is not None:
                raise self._stopped
            if state.status is ModelStatus.EMPTY:
                message = "no model is loaded; load one with POST /v1/models/load"
                raise ApiError(message, status=503, code="no_model")
            if state.status is ModelStatus.FAILED:
                raise state.refusal()
            if name and state.name is not None and name != state.name:
                message = f"model: {name[:200]!r} is not served here; this server has {state.name!r}"
                raise ApiError(message, status=404, code="model_not_found", param="model")
            if state.model is not None and state.is_open:
                return state.model
            await changed.wait()

    async def load(self, choice: ModelChoice, *, when_idle: bool = False) -> Change:
        """Check a model and begin to serve it in place of the last one; what is refused leaves that alone.

        Raises:
            ApiError: the model can't work, this server keeps its model, or a newer request came.
            EngineClosedError: the server stops; it does not wait for the check.
        """
        self._check_can_switch()
        ticket = next(self._tickets)
        try:
            model = await self._prepared(choice, ticket)
        except (ModelNotFoundError, ConfigError, CheckpointError, DeviceError, DownloadError) as exc:
            logger.info("model %s is refused: %s", choice.name, exc)
            raise self.refusal(exc) from exc
        if ticket < self._newest_ticket:
            raise _superseded()
        self._take_over(ticket)
        return self.begin(model, when_idle=when_idle, is_logged=True)

    def refusal(self, error: UnicornError) -> ApiError:
        """Return an error of the library's as clients are to see it: the model that they ask for can't work."""
        if isinstance(error, ModelNotFoundError):
            return ApiError(str(error), status=404, code="model_not_found", param="model")
        message = self.library.public_text(str(error))
        if isinstance(error, ConfigError):
            return ApiError(message, code="invalid_value")
        return ApiError(message, code="model_unusable", param="model")

    def unload(self, *, when_idle: bool = False) -> Change:
        """Begin to close the model; a load under way is cancelled.

        Raises:
            ApiError: this server keeps its model.
        """
        self._check_can_switch()
        self._take_over(next(self._tickets))
        return self.begin(None, when_idle=when_idle)

    def begin(self, model: PreparedModel | None, *, when_idle: bool = False, is_logged: bool = False) -> Change:
        """Begin a change to a prepared model, or to none; the one that is under way for the same is returned.

        Who begins it tells why it fails, or has it `is_logged`.

        Raises:
            EngineClosedError: the server stops.
        """
        if self._stopped is not None:
            raise self._stopped
        change, last = Change(model, when_idle=when_idle, is_logged=is_logged), self._change
        if last is not None and self._is_under_way(last, change):
            return last
        if last is not None:
            last.finish(_superseded())
        self._change = change
        self._wake.set()
        served = self._state.model
        waits = when_idle and served is not None and served.is_loaded
        next_status = ModelStatus.WAITING if waits else ModelStatus.CLOSING if self._tenant else ModelStatus.OPENING
        self._set(ModelState(next_status, change.name, served))
        return change

    async def stop(self, cause: UnicornError) -> None:
        """End every answer under way with an error, and refuse further requests; what is open stays so."""
        self._refuse(cause)
        if self._state.model is not None:
            await self._state.model.end(cause)

    async def _prepared(self, choice: ModelChoice, ticket: int) -> PreparedModel:
        """Prepare a model, or say at once that the server stops or a newer request came.

        The thread then ends by itself, and the next one begins after it.
        """
        preparing = asyncio.create_task(self._prepare(choice), name="check a model")
        self._preparations.add(preparing)
        preparing.add_done_callback(self._forget)
        try:
            while not preparing.done() and self._stopped is None and ticket >= self._newest_ticket:
                changed = asyncio.create_task(self._changed.wait())
                try:
                    await asyncio.wait((preparing, changed), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
            if self._stopped is not None:
                raise self._stopped
            if not preparing.done():
                raise _superseded()
            return preparing.result()
        finally:
            _cancel_once(preparing)

    async def _prepare(self, choice: ModelChoice) -> PreparedModel:
        async with self._preparing:
            return await run_to_end(lambda: self.library.prepare(choice))

    def _forget(self, preparing: asyncio.Task[PreparedModel]) -> None:
        self._preparations.discard(preparing)
        if not preparing.cancelled():
            preparing.exception()  # seen: who asked may be gone

    def _take_over(self, ticket: int) -> None:
        """Let older requests know that this one came."""
        self._newest_ticket = ticket
        self._notify()

    def _check_can_switch(self) -> None:
        if not self.can_switch:
            raise ApiError("this server keeps its model", status=403, code="switching_is_off")

    def _is_under_way(self, last: Change, change: Change) -> bool:
        """Whether nothing is left to do for a change, since the last one does it or has done it."""
        if last.is_done:
            wanted = ModelStatus.EMPTY if change.model is None else ModelStatus.READY
            return self._state.status is wanted and last.model == change.model
        return last.is_same(change)

    def _refuse(self, cause: UnicornError) -> None:
        self._stopped = self._stopped or cause
        if self._change is not None:
            self._change.finish(cause)
        self._notify()

    async def _supervise(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            change = self._change
            assert change is not None, "who wakes the supervisor has set a change"
            if self._state.status is ModelStatus.WAITING:
                await self._wait_until_idle()
                if change is not self._change:
                    continue
                self._set(replace(self._state, status=ModelStatus.CLOSING))
            await self._leave(change)
            if change is not self._change:
                continue
            if change.model is None:
                await self._unless_newer(self.library.freed())
                if change is not self._change:
                    continue
                self._set(ModelState(ModelStatus.EMPTY))
                change.finish()
            else:
                self._set(ModelState(ModelStatus.OPENING, change.name))
                self._tenant = asyncio.create_task(self._occupy(change, change.model), name="served model")

    async def _wait_until_idle(self) -> None:
        """Wait for the answers under way, for some time at most, or for a newer change."""
        if self._state.model is not None:
            await self._unless_newer(self._state.model.idle(), self._idle_timeout_s)

    async def _unless_newer(self, work: Coroutine[object, object, None], timeout_s: float | None = None) -> None:
        """Wait for work, for some time at most, or for a newer change."""
        waits = [asyncio.create_task(work), asyncio.create_task(self._wake.wait())]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await wait_to_end(*waits)

    async def _leave(self, change: Change) -> None:
        """End the last tenant; it is gone when this returns."""
        tenant, model = self._tenant, self._state.model
        if tenant is None:
            return
        if model is not None:
            what = "is being unloaded" if change.model is None else f"is being switched to {change.name!r}"
            await model.end(EngineClosedError(f"the model {model.engine.model_name!r} {what}"))
        self._set(replace(self._state, model=None))  # nobody asks an engine that is being closed
        _cancel_once(tenant)
        await wait_to_end(tenant)
        self._tenant = None

    async def _occupy(self, change: Change, wanted: PreparedModel) -> None:
        """See a model opened, loaded and kept open, until cancelled; one that fails later is opened again."""
        restarts, error = Restarts(self._max_restarts if self.library.can_reopen else 0), None
        while True:
            try:
                await self._keep_open(change, wanted, restarts, error)
            except Exception as exc:
                failed = self._failed(change, wanted, exc, restarts)
                self._tell(change, failed)
                change.finish(exc)
                if failed.retry_s is None:
                    return
                await asyncio.sleep(failed.retry_s)
                error = failed.error

    async def _keep_open(self, change: Change, wanted: PreparedModel, restarts: Restarts, error: str | None) -> None:
        """Open a model, after a failure if there is an `error`, and see it loaded; raises what ends it."""

        def waits(what: str | None, download: LoadProgress | None = None) -> None:
            state = ModelState(ModelStatus.OPENING, wanted.name, error=error, waits_for=what, download=download)
            self._tell(change, state)

        waits(None)
        async with self.library.open(wanted, waits) as engine:
            model = ServedModel(engine, self.library.public_text)
            self._tell(change, ModelState(ModelStatus.LOADING, wanted.name, model, waits_for="weights"))
            change.note_opened()
            try:
                async for _ in engine.load_progress():
                    pass
                model.is_loaded = True
                restarts.note_ready()
                self._tell(change, ModelState(ModelStatus.READY, wanted.name, model))
                change.finish()
                raise await engine.failure()
            except UnicornError as exc:
                public = self.library.public_text(describe_error(exc).message)
                self._tell(change, ModelState(ModelStatus.CLOSING, wanted.name, error=public))
                await model.end(model.explained(exc))
                raise

    def _failed(self, change: Change, wanted: PreparedModel, error: Exception, restarts: Restarts) -> ModelState:
        """Return the state after a failure, and log it unless who began the change tells it."""
        has_served, retry_s = restarts.have_begun, None
        if has_served:
            retry_s = restarts.note_failure()
            outlook = "it is not opened again" if retry_s is None else f"it is opened again in {retry_s:g} s"
            logger.error("model %s: its engine has failed; %s", wanted.name, outlook, exc_info=error)
        elif not isinstance(error, UnicornError):
            logger.exception("model %s", wanted.name)
        elif change.is_logged:
            logger.info("model %s: %s", wanted.name, error)
        full = describe_error(error).message
        public = self.library.public_text(full)
        return ModelState(
            ModelStatus.FAILED, wanted.name, error=public, full_error=full, retry_s=retry_s, has_served=has_served
        )

    def _tell(self, change: Change, state: ModelState) -> None:
        """Set the state that a tenant is in, unless a newer change has it by now."""
        if change is self._change:
            self._set(state)

    def _set(self, state: ModelState) -> None:
        if state != self._state:
            self._state = state
            self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _superseded() -> ApiError:
    return ApiError("a newer request to load or unload a model came", status=409, code="superseded")


def _cancel_once(task: asyncio.Task[object]) -> None:
    """Cancel a task, unless that was done: a second cancellation would interrupt the closing that the first began."""
    if not task.cancelling():
        task.cancel()
