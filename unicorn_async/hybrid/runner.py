"""Runs steps whose attention is on another device: two halves of a batch alternate between both.

Each half goes through the layers by itself: its segment on the near device, its attention on the far one, the next
segment. A submission is made when what it needs is done, so that neither queue ever waits for the other device, and
whichever half is ready goes first. Nothing holds a step together: a half of the next one begins when the halves that it
needs have ended (`order`), whatever the others do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.background import run_to_end, wait_to_end
from unicorn_async.errors import ConfigError, EngineClosedError
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.hybrid.batch_split import num_keys, split_batch
from unicorn_async.hybrid.busy import BusyTrack
from unicorn_async.hybrid.counters import HybridCounters
from unicorn_async.hybrid.interface import NUM_HALVES
from unicorn_async.hybrid.order import HalfOrder
from unicorn_async.hybrid.report import AttentionStats
from unicorn_async.hybrid.seam_recording import SeamRecording
from unicorn_async.hybrid.split_policy import SplitPolicy, StepKind
from unicorn_async.step.batch_writer import BatchWriter
from unicorn_async.step.buckets import bucket_for
from unicorn_async.step.frame import Frame
from unicorn_async.step.logits_copy import LogitsCopy
from unicorn_async.step.mapped_arrays import Field, made_block
from unicorn_async.step.result import StepResult
from unicorn_async.step.result_reader import read_logits, read_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.timeline import Timeline
    from unicorn_async.hybrid.busy import Span
    from unicorn_async.hybrid.interface import AttentionPass, FarAttention
    from unicorn_async.hybrid.order import HalfTurn
    from unicorn_async.hybrid.step_trace import StepTrace
    from unicorn_async.memory.model import ModelMemory
    from unicorn_async.models.decoder import Decoder
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.scheduler.batch import Batch
    from unicorn_async.step.frame import FrameLimits, StepShape
    from unicorn_async.step.load_steps import LayerReadiness

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Place:
    """What one half of one step in flight has for itself on the near device."""

    frame: Frame
    recording: SeamRecording
    copy: LogitsCopy


@dataclass(slots=True)
class _RecordedFrames:
    index: int
    places: tuple[_Place, ...]
    busy: bool = False


@dataclass(frozen=True, slots=True)
class _Half:
    """A half of a step in flight; it may be all of it.

    `number` is that of the residual stream and of the exchange that it has.
    """

    number: int
    batch: Batch
    place: _Place
    shape: StepShape
    attention: AttentionPass


class HybridRunner:
    """A `StepRunner` on a near device that runs the model and a far one that attends.

    `stop` it before it is closed. While the model loads, each half waits for each layer in turn.
    """

    def __init__(
        self,
        device: Device,
        model: ModelSpec,
        options: EngineConfig,
        memory: ModelMemory,
        limits: FrameLimits,
        decoder: Decoder,
        attention: FarAttention,
        far: BusyTrack,
        readiness: LayerReadiness,
        trace: StepTrace | None,
    ) -> None:
        """Allocate the frames; `far` is where the attention notes its spans.

        Raises:
            OutOfMemoryError: they do not fit.
        """
        self.counters = HybridCounters()
        self.policy = SplitPolicy(options.attention_split)
        self._device = device
        self._num_layers, self._hidden_size = model.num_layers, model.hidden_size
        self._attention = attention
        self._readiness = readiness
        self._trace = trace
        self._near, self._far = BusyTrack(), far
        self._limits = limits
        self._writer = BatchWriter(limits)
        self._turns = HalfOrder(model.num_layers)
        self._device_stop_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._loaded = asyncio.Event()
        with contextlib.ExitStack() as made:
            numbers = made_block(
                made, device, {"rows": Field(np.uint32, (limits.tokens,))}, MemoryKind.ARGUMENTS, "row numbers"
            )
            numbers.arrays["rows"][:] = np.arange(limits.tokens)
            rows = numbers.address["rows"]

            def place(turn: int, half: int) -> _Place:
                frame = Frame(device, limits, memory.residuals[half].addresses, NUM_HALVES * turn + half)
                made.callback(frame.close)
                exchange = attention.exchanges[half]
                recording = SeamRecording(device, decoder, model, memory, frame, limits, exchange, rows, turn)
                made.callback(recording.close)
                copy = LogitsCopy(device, memory.logits, model.vocab_size)
                made.callback(copy.close)
                return _Place(frame, recording, copy)

            self._recorded = [
                _RecordedFrames(index, tuple(place(index, half) for half in range(NUM_HALVES)))
                for index in range(options.num_frames)
            ]
            self._made = made.pop_all()

    @property
    def nbytes(self) -> int:
        """Size of the frames, of what evaluations have their logits copied to, and of the exchanges."""
        frames = sum(place.frame.nbytes + place.copy.nbytes for recorded in self._recorded for place in recorded.places)
        return frames + sum(exchange.nbytes for exchange in self._attention.exchanges)

    @property
    def max_logit_rows(self) -> int:
        """Rows of logits that one step may compute."""
        return self._limits.logit_rows

    @property
    def is_loading(self) -> bool:
        """False: a half waits for those that sample for it, so that steps may have tokens that earlier ones sample."""
        return False

    @property
    def max_in_flight(self) -> int:
        """Steps that may be submitted before the oldest of them is collected."""
        return len(self._recorded)

    async def follow_load(self, on_change: Callable[[], None]) -> None:
        """Wait until all layers are there.

        Raises:
            UnicornError: what made the load fail.
        """
        del on_change  # nothing changes for who makes steps
        try:
            for layer in range(-1, self._num_layers + 1):
                await self._readiness.layer_submitted(layer)
            await self._readiness.checked()
        finally:
            self._loaded.set()

    async def free_spare_frames(self) -> None:
        """Do nothing: steps of the load have no frames of their own."""

    async def load_followed(self) -> None:
        """Wait until `follow_load` has ended; what made it fail is for others to say."""
        await self._loaded.wait()

    def abandon_load(self) -> None:
        """Let who waits in `load_followed` know that `follow_load` has ended, or never will begin."""
        self._loaded.set()

    async def submit(self, batch: Batch) -> HybridStep:
        """Prepare a step, and begin it as soon as those before it allow; waits for kernels alone.

        Raises:
            DeviceError: a device is lost, or lacks what a kernel needs.
        """
        recorded = next(recorded for recorded in self._recorded if not recorded.busy)
        kind = StepKind.of(bucket_for(batch.num_tokens, self._writer.token_buckets), num_keys(batch))
        parts = split_batch(batch)
        can_split = len(parts) > 1
        if can_split and not self.policy.choose(kind):
            parts = (batch,)
        # Whole steps take turns too: prompts that go on in the next step may be in both devices' hands.
        first = recorded.index % NUM_HALVES if len(parts) == 1 else 0
        halves = [await self._prepare(recorded, number, part) for number, part in enumerate(parts, first)]
        recorded.busy = True
        turns = [self._turns.enter(half.number, half.batch) for half in halves]
        step = HybridStep(self, recorded, batch, kind, halves, turns, can_split)
        step.task = asyncio.create_task(self._run(step), name=f"hybrid step {batch.step}")
        self._tasks.add(step.task)
        step.task.add_done_callback(lambda task: self._ended(step, task))
        return step

    async def _prepare(self, recorded: _RecordedFrames, number: int, batch: Batch) -> _Half:
        place = recorded.places[number]
        await place.frame.prepare(batch, self._hidden_size)
        shape = self._writer.write(batch, place.frame)
        attention = await self._attention.begin(recorded.index, number, batch, shape.tokens)
        if not place.recording.has(shape):
            await run_to_end(lambda: place.recording.record(shape))
        if any(item.sequence.want_logits for item in batch.scheduled):
            await place.copy.prepare()
        return _Half(number, batch, place, shape, attention)

    def _ended(self, step: HybridStep, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error: BaseException | None = EngineClosedError("the engine was closed while a step ran")
        if not task.cancelled():
            error = task.exception()  # a step that nobody waits for any more has nobody to tell
        if error is not None:
            for turn in step.turns:
                turn.failed(error)

    async def _run(self, step: HybridStep) -> None:
        step.waited, step.recoveries = not self._readiness.all_active, self._attention.recoveries
        try:
            async with asyncio.TaskGroup() as group:
                for half, turn in zip(step.halves, step.turns, strict=True):
                    group.create_task(self._run_half(step, half, turn))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        await self._readiness.checked()  # the host looks at a layer's values after the device may use them

    async def _run_half(self, step: HybridStep, half: _Half, turn: HalfTurn) -> None:
        """Take a half from its prologue through all layers to its end, in turn with others."""
        queue, number = self._device.compute, step.batch.step
        await turn.may_begin()
        queue.submit([half.place.recording.prologue(half.shape)], waits=await self._waits(-1))
        turn.begun()
        for layer in range(self._num_layers):
            waits = await self._waits(layer)
            submitted_s = time.perf_counter()
            value = queue.submit([half.place.recording.segment(half.shape, layer)], waits=waits)
            await queue.timeline.reached(value)
            self._near.ended(number, half.number, layer, submitted_s)
            await turn.may_attend(layer)
            await half.attention.attend(layer)
            turn.attended(layer)
        waits = await self._waits(self._num_layers)
        submitted_s = time.perf_counter()
        value = self._submit_end(half, waits)
        turn.ended()
        await queue.timeline.reached(value)
        self._near.ended(number, half.number, self._num_layers, submitted_s)

    def _submit_end(self, half: _Half, waits: Sequence[tuple[Timeline, int]]) -> int:
        place, shape = half.place, half.shape
        commands = [place.recording.segment(shape, self._num_layers), place.recording.tail(shape)]
        evaluated = sum(item.num_tokens for item in half.batch.scheduled if item.sequence.want_logits)
        if evaluated:
            commands.append(place.copy.commands(half.batch.num_samples, evaluated))
        return self._device.compute.submit(commands, waits=waits)

    async def _waits(self, layer: int) -> Sequence[tuple[Timeline, int]]:
        return () if self._readiness.all_active else (await self._readiness.layer_submitted(layer),)

    def _note(self, step: HybridStep, near: Sequence[Span], far: Sequence[Span]) -> tuple[float, float]:
        """Count a step, and learn from what it took; returns its seconds on the device, and when they began there.

        What a step has of the time of the one before it is left out.
        """
        times = [half.place.recording.device_seconds() for half in step.halves]
        start_s = max(self._device_stop_s, min(start_s for _, start_s in times))
        stop_s = max(start_s, *(start_s + device_s for device_s, start_s in times))
        self._device_stop_s = stop_s
        is_split = len(step.halves) > 1
        added_s = self.counters.note(near, far, is_split=is_split)
        if self._trace is not None:
            self._trace.step(near, far)
        if step.can_split and not step.waited and step.recoveries == self._attention.recoveries:
            self.policy.observe(step.kind, added_s, split=is_split)
        return stop_s - start_s, start_s

    def stats(self) -> AttentionStats:
        """Return what was done so far."""
        counters = self.counters
        return AttentionStats(
            counters.split_steps,
            counters.whole_steps,
            counters.step_s,
            counters.near_s,
            counters.far_s,
            counters.both_s,
            tuple(self.policy.preferences()),
            self._attention.recoveries,
            self._attention.run_s,
        )

    def collect(self, step: HybridStep) -> StepResult:
        """Read the results of a step that is done, in the order of steps."""
        near, far = (track.take(step.batch.step) for track in (self._near, self._far))
        device_s, start_s = self._note(step, near, far)
        results = [
            (read_tokens(half.place.frame, half.shape, half.batch), read_logits(half.place.copy, half.batch))
            for half in step.halves
        ]
        pooled = tuple(found for half in step.halves for found in half.place.frame.pooled.read(half.batch))
        step.recorded.busy = False
        tokens = tuple(token for tokens, _ in results for token in tokens)
        logits = tuple(rows for _, of_half in results for rows in of_half)
        return StepResult(
            step.batch, tokens, logits, device_s, start_s, waited=step.waited, spans=(near, far), pooled=pooled
        )

    async def stop(self) -> None:
        """End the steps under way, and wait until no device has work of them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await wait_to_end(*tasks)
        await run_to_end(self._device.wait_idle)
        await self._attention.drain()
        if self._trace is not None:
            try:
                await self._trace.write()
            except ConfigError as exc:
                _log.warning("%s; the steps themselves are not affected", exc)

    def close(self) -> None:
        """Free frames and commands, after `stop`."""
        self._recorded.clear()
        self._made.close()


@dataclass(eq=False, slots=True)
class HybridStep:
    """A step in flight; `can_split` says that there were two ways for it."""

    runner: HybridRunner
    recorded: _RecordedFrames
    batch: Batch
    kind: StepKind
    halves: list[_Half]
    turns: list[HalfTurn]
    can_split: bool
    recoveries: int = 0  # of the far device, before the step
    waited: bool = False
    task: asyncio.Task[None] | None = None

    @property
    def layers_followed(self) -> int | None:
        """None: how far it follows a load is for its halves to know."""
        return None

    async def result(self) -> StepResult:
        """Wait until both devices have done the step.

        Raises:
            DeviceError: one of them failed.
            EngineClosedError: the runner was stopped.
        """
        assert self.task is not None
        await asyncio.wait([self.task])
        if self.task.cancelled():
            raise EngineClosedError("the engine was closed while a step ran")
        self.task.result()
        return self.runner.collect(self)
