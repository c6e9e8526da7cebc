"""Steps that go through the layers while these arrive."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from unicorn_async.background import run_to_end
from unicorn_async.errors import EngineClosedError
from unicorn_async.gpu.queue import Submission

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unicorn_async.gpu.queue import CommandBuffer, Queue
    from unicorn_async.gpu.timeline import Timeline

_MOST_AT_ONCE = 8  # parts: the device begins with the first ones while the next are recorded
_AHEAD_S = 0.01  # of the device's work in a submission, where several steps take turns


class LayerReadiness(Protocol):
    """When layers may be used; layer -1 is the embeddings, layer `num_layers` the final norm and the head."""

    @property
    def all_active(self) -> bool:
        """Whether nothing has to be waited for any more."""

    async def layer_submitted(self, layer: int) -> tuple[Timeline, int]:
        """Wait until what loads the layer is submitted; return the value at which the device may use it."""

    async def checked(self) -> None:
        """Wait until all layers are active and nothing was wrong with their values."""


@dataclass(eq=False, slots=True)
class LoadingStep:
    """What records a step's commands, or has them: those before the first layer, of each layer, behind the last one.

    Each is called in a thread, one at a time, once its layer has memory. `num_submitted` of these parts went to the
    queue, `value` is that of the queue's timeline at their end.
    """

    parts: Sequence[Callable[[], Sequence[CommandBuffer]]]
    num_submitted: int = 0
    value: int = 0


class _Submitted(NamedTuple):
    value: int  # of the queue's timeline
    num_parts: int
    at: float  # by time.monotonic


class LoadSteps:
    """Submits steps part by part, as what loads the layers is submitted: a queue must not wait for a later one.

    The oldest step goes first wherever its next layer is there; while it waits for one, the steps behind it go as far
    as it went. So no step overtakes an older one at any layer, and the device has work as long as there is any. Of
    several steps few parts are submitted ahead of the device, for a layer that arrives may give an older one the next
    turn: one, or as many as it computes in a few milliseconds. A step that is alone goes as far as it can, or the
    load's own work on the same queue would hold it up. A step may be added at any time before `done`; `wants_more` says
    when it would keep the device from waiting. No step may need what another one computes behind its last layer.

    What is recorded needs the layer's memory, which may just have been allocated, and a driver holds submissions up
    while it allocates more. So both happen in a thread, where the event loop is not held up.
    """

    def __init__(self, queue: Queue, readiness: LayerReadiness, num_layers: int) -> None:
        self._queue = queue
        self._readiness = readiness
        self._layers = range(-1, num_layers + 1)
        self._ready: list[tuple[Timeline, int]] = []  # of the layers that arrived, in order
        self._steps: list[LoadingStep] = []
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self._error: BaseException | None = None
        self.done = False

    @property
    def waits(self) -> tuple[tuple[Timeline, int], ...]:
        """What a step that was not added, because all are `done`, has to wait for on the device."""
        return () if self._readiness.all_active else (self._ready[-1],)

    @property
    def wants_more(self) -> bool:
        """Whether a layer is there that all steps but the newest went through, so that the device soon waits for more.

        Making a step takes about as long as the newest one takes to catch up.
        """
        num_ready = len(self._ready)
        return num_ready > 1 and all(step.num_submitted == num_ready for step in self._steps[:-1])

    def add(self, parts: Sequence[Callable[[], Sequence[CommandBuffer]]]) -> LoadingStep:
        """Add a step behind all others; none may be added once all are `done`.

        Raises:
            UnicornError: what made the load fail.
        """
        assert not self.done
        assert len(parts) == len(self._layers)
        self._raise_error()
        step = LoadingStep(parts)
        self._steps.append(step)
        self._changed.set()
        return step

    async def submitted(self, step: LoadingStep) -> int:
        """Return the value of the queue's timeline at the step's end, once all of the step is submitted.

        Raises:
            UnicornError: what made the load fail.
        """
        await self.followed()
        return step.value

    async def followed(self) -> None:
        """Wait until `run` has ended.

        Raises:
            UnicornError: what made the load fail.
        """
        await self._ended.wait()
        self._raise_error()

    def abandon(self) -> None:
        """Let who waits know that `run` has ended, or never will begin."""
        if not self._ended.is_set():
            self._error = asyncio.CancelledError()
            self._ended.set()

    async def run(self, on_change: Callable[[], None]) -> None:
        """Submit until every layer has arrived and every step is submitted to its end; called once.

        `on_change` is called whenever it comes to wait for a layer or a step, and when `wants_more`.

        Raises:
            UnicornError: what made the load fail.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_layers(), name="follow layers")
                group.create_task(self._submit_behind_layers(on_change), name="submit behind layers")
        except BaseExceptionGroup as failed:
            self._error = failed.exceptions[0]
            raise self._error from None
        except BaseException as exc:
            self._error = exc
            raise
        finally:
            self._ended.set()

    async def _follow_layers(self) -> None:
        for layer in self._layers:
            self._ready.append(await self._readiness.layer_submitted(layer))
            self._changed.set()

    async def _submit_behind_layers(self, on_change: Callable[[], None]) -> None:
        before, most, ended = _Submitted(0, 0, 0.0), 1, 0.0
        while len(self._ready) < len(self._layers):
            turns = self._next_turns(most if len(self._steps) > 1 else _MOST_AT_ONCE)
            if not turns:
                on_change()
                self._changed.clear()
                await self._changed.wait()
                continue
            last = await self._submit(turns)
            if self.wants_more:
                on_change()
            if len(self._steps) > 1:
                await self._queue.timeline.reached(before.value)
                started, ended = max(before.at, ended), time.monotonic()
                part_s = max(ended - started, 1e-6) / max(before.num_parts, 1)
                most = min(max(int(_AHEAD_S / part_s), 1), _MOST_AT_ONCE)
            before = last
        while self._steps:  # nothing that arrives can change their order now
            if turns := self._next_turns(_MOST_AT_ONCE):
                await self._submit(turns)
            self._steps = [step for step in self._steps if step.num_submitted < len(self._layers)]
        self.done = True

    def _next_turns(self, most: int) -> list[tuple[LoadingStep, int]]:
        """Return the parts that are submitted next, in their order, as far as their layers are there."""
        turns: list[tuple[LoadingStep, int]] = []
        for step in self._steps:
            stop = min(len(self._ready), step.num_submitted + most - len(turns))
            turns += [(step, part) for part in range(step.num_submitted, stop)]
        return turns

    async def _submit(self, turns: Sequence[tuple[LoadingStep, int]]) -> _Submitted:
        """Record parts, unless they are, and submit them in one call of the driver."""

        def submit() -> list[int]:
            submissions = [Submission(step.parts[part](), waits=[self._ready[part]]) for step, part in turns]
            return self._queue.submit_each(submissions)

        values = await run_to_end(submit)
        for (step, part), value in zip(turns, values, strict=True):
            step.num_submitted, step.value = part + 1, value
        return _Submitted(values[-1], len(turns), time.monotonic())

    def _raise_error(self) -> None:
        if isinstance(self._error, asyncio.CancelledError):
            raise EngineClosedError("the engine no longer follows the load")
        if self._error is not None:
            raise self._error
