"""Runs steps whose attention is on another device: two halves of a batch alternate between both.

Each half goes through the layers by itself: its segment on the near device, its attention on the far one, the next
segment. A submission is made when what it needs is done, so that neither queue ever waits for the other device, and
whichever half is ready goes first.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.background import run_to_end, wait_to_end
from unicorn_async.engine.batch_writer import BatchWriter
from unicorn_async.engine.buckets import bucket_for
from unicorn_async.engine.evaluation_copy import EvaluationCopy
from unicorn_async.engine.frame import Frame
from unicorn_async.engine.frame_layout import Field, made_block
from unicorn_async.engine.hybrid.batch_split import is_cut, num_keys, split_batch
from unicorn_async.engine.hybrid.remote_attention import NUM_HALVES
from unicorn_async.engine.hybrid.seam_recording import SeamRecording
from unicorn_async.engine.hybrid.spans import BusyTrack, both_busy_s, busy_s
from unicorn_async.engine.hybrid.split_policy import SplitPolicy, StepKind
from unicorn_async.engine.step import StepResult
from unicorn_async.engine.step_results import read_logits, read_tokens
from unicorn_async.engine.types import AttentionStats
from unicorn_async.errors import EngineClosedError
from unicorn_async.gpu.memory import MemoryKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unicorn_async.config import EngineConfig, ModelConfig
    from unicorn_async.engine.batch_writer import StepShape
    from unicorn_async.engine.frame import FrameLimits
    from unicorn_async.engine.hybrid.remote_attention import AttentionPass, RemoteAttention
    from unicorn_async.engine.hybrid.step_trace import StepTrace
    from unicorn_async.engine.loading_steps import LayerReadiness
    from unicorn_async.engine.model_memory import ModelMemory
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.timeline import Timeline
    from unicorn_async.models.decoder import Decoder
    from unicorn_async.scheduler.batch import Batch


@dataclass(slots=True)
class HybridCounters:
    """What was done so far; `step_s` is the time from each step's first work to its last, `both_s` that of both."""

    split_steps: int = 0
    whole_steps: int = 0
    step_s: float = 0.0
    near_s: float = 0.0
    far_s: float = 0.0
    both_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Place:
    """What one half of one step in flight has for itself on the near device."""

    frame: Frame
    recording: SeamRecording
    copy: EvaluationCopy


@dataclass(slots=True)
class _Slot:
    index: int
    places: tuple[_Place, ...]
    busy: bool = False


@dataclass(frozen=True, slots=True)
class _Half:
    """A half of a step in flight; it may be all of it."""

    number: int
    batch: Batch
    place: _Place
    shape: StepShape
    attention: AttentionPass


class HybridRunner:
    """A `StepRunner` on a near device that runs the model and a far one that attends.

    `stop` it before it is closed. Steps follow each other: one may be prepared while another runs. While the model
    loads, a step waits for each layer in turn.
    """

    def __init__(
        self,
        device: Device,
        model: ModelConfig,
        options: EngineConfig,
        memory: ModelMemory,
        limits: FrameLimits,
        decoder: Decoder,
        attention: RemoteAttention,
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
        self._num_layers = model.num_layers
        self._attention = attention
        self._readiness = readiness
        self._trace = trace
        self._near, self._far = BusyTrack(), far
        self._limits = limits
        self._writer = BatchWriter(limits)
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loaded = asyncio.Event()
        with contextlib.ExitStack() as made:
            numbers = made_block(
                made, device, {"rows": Field(np.uint32, (limits.tokens,))}, MemoryKind.FRAME, "row numbers"
            )
            numbers.arrays["rows"][:] = np.arange(limits.tokens)
            rows = numbers.address["rows"]

            def place(slot: int, half: int) -> _Place:
                frame = Frame(device, limits, memory.residuals[half], NUM_HALVES * slot + half)
                made.callback(frame.close)
                exchange = attention.exchanges[half]
                recording = SeamRecording(device, decoder, model, memory, frame, limits, exchange, rows, slot)
                made.callback(recording.close)
                copy = EvaluationCopy(device, memory.logits, model.vocab_size)
                made.callback(copy.close)
                return _Place(frame, recording, copy)

            self._slots = [
                _Slot(index, tuple(place(index, half) for half in range(NUM_HALVES)))
                for index in range(options.num_frames)
            ]
            self._made = made.pop_all()

    @property
    def nbytes(self) -> int:
        """Size of the frames, of what evaluations have their logits copied to, and of the exchanges."""
        frames = sum(place.frame.nbytes + place.copy.nbytes for slot in self._slots for place in slot.places)
        return frames + sum(exchange.nbytes for exchange in self._attention.exchanges)

    @property
    def max_logit_rows(self) -> int:
        """Rows of logits that one step may compute."""
        return self._limits.logit_rows

    @property
    def is_loading(self) -> bool:
        """False: steps run one after another, so that a later one may have tokens that an earlier one samples."""
        return False

    @property
    def max_in_flight(self) -> int:
        """Steps that may be submitted before the oldest of them is collected."""
        return len(self._slots)

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

    async def load_followed(self) -> None:
        """Wait until `follow_load` has ended; what made it fail is for others to say."""
        await self._loaded.wait()

    async def submit(self, batch: Batch) -> HybridStep:
        """Prepare a step, which runs behind those before it; waits for kernels, not for layers and not for the step.

        Raises:
            DeviceError: a device is lost, or lacks what a kernel needs.
        """
        slot = next(slot for slot in self._slots if not slot.busy)
        kind = StepKind.of(bucket_for(batch.num_tokens, self._writer.token_buckets), num_keys(batch))
        parts = split_batch(batch)
        can_split = len(parts) > 1
        if can_split and not self.policy.choose(kind):
            parts = (batch,)
        halves = [await self._prepare(slot, number, part) for number, part in enumerate(parts)]
        slot.busy = True
        step = HybridStep(self, slot, batch, kind, halves, can_split, is_cut(parts))
        step.task = asyncio.create_task(self._run(step), name=f"hybrid step {batch.step}")
        self._tasks.add(step.task)
        step.task.add_done_callback(self._ended)
        return step

    async def _prepare(self, slot: _Slot, number: int, batch: Batch) -> _Half:
        place = slot.places[number]
        shape = self._writer.write(batch, place.frame)
        attention = await self._attention.begin(slot.index, number, batch, shape.tokens)
        if not place.recording.has(shape):
            await run_to_end(lambda: place.recording.record(shape))
        return _Half(number, batch, place, shape, attention)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a step that nobody waits for any more has nobody to tell

    async def _run(self, step: HybridStep) -> None:
        step.waited = not self._readiness.all_active
        try:
            async with self._turn:
                step.started_s, step.recoveries = time.perf_counter(), self._attention.recoveries
                waits = await self._waits(-1)
                for half in step.halves:  # what both write of one sequence is written in order
                    self._device.compute.submit([half.place.recording.prologue(half.shape)], waits=waits)
                attended = [asyncio.Event() for _ in range(self._num_layers)] if step.is_cut else []
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._run_layers(step, half, attended)) for half in step.halves]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        # The next step may go to the queue now, behind the ends of this one: they sample the tokens that it reads.
        for half, (value, submitted_s) in zip(step.halves, (task.result() for task in tasks), strict=True):
            await self._device.compute.timeline.reached(value)
            self._near.ended(step.batch.step, half.number, self._num_layers, submitted_s)
        await self._readiness.checked()  # the host looks at a layer's values after the device may use them
        self._note(step)

    async def _run_layers(self, step: HybridStep, half: _Half, attended: list[asyncio.Event]) -> tuple[int, float]:
        """Take a half through all layers; in a cut prompt the second half attends behind the first.

        Returns the value of the queue's timeline at its end, and when that was submitted.
        """
        queue, number = self._device.compute, step.batch.step
        for layer in range(self._num_layers):
            waits = await self._waits(layer)
            submitted_s = time.perf_counter()
            value = queue.submit([half.place.recording.segment(half.shape, layer)], waits=waits)
            await queue.timeline.reached(value)
            self._near.ended(number, half.number, layer, submitted_s)
            if attended and half.number:
                await attended[layer].wait()
            await half.attention.attend(layer)
            if attended and not half.number:
                attended[layer].set()
        return self._submit_end(half, await self._waits(self._num_layers))

    def _submit_end(self, half: _Half, waits: Sequence[tuple[Timeline, int]]) -> tuple[int, float]:
        place, shape = half.place, half.shape
        commands = [place.recording.segment(shape, self._num_layers), place.recording.tail(shape)]
        evaluated = sum(item.num_tokens for item in half.batch.scheduled if item.sequence.want_logits)
        if evaluated:
            commands.append(place.copy.commands(half.batch.num_samples, evaluated))
        submitted_s = time.perf_counter()
        return self._device.compute.submit(commands, waits=waits), submitted_s

    async def _waits(self, layer: int) -> Sequence[tuple[Timeline, int]]:
        return () if self._readiness.all_active else (await self._readiness.layer_submitted(layer),)

    def _note(self, step: HybridStep) -> None:
        """Count a step that is done, and learn from how long it took."""
        near, far = (track.take(step.batch.step) for track in (self._near, self._far))
        is_split = len(step.halves) > 1
        times = [half.place.recording.device_seconds() for half in step.halves]
        step.start_s = min(start_s for _, start_s in times)
        step.device_s = max(start_s + device_s for device_s, start_s in times) - step.start_s
        counters = self.counters
        counters.split_steps += is_split
        counters.whole_steps += not is_split
        counters.step_s += near[-1].stop_s - near[0].start_s
        counters.near_s += busy_s(near)
        counters.far_s += busy_s(far)
        counters.both_s += both_busy_s(near, far)
        if self._trace is not None:
            self._trace.step(near, far)
        if step.can_split and not step.waited and step.recoveries == self._attention.recoveries:
            self.policy.observe(step.kind, time.perf_counter() - step.started_s, split=is_split)

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
        )

    def collect(self, step: HybridStep) -> StepResult:
        """Read the results of a step that is done."""
        results = [
            (read_tokens(half.place.frame, half.shape, half.batch), read_logits(half.place.copy, half.batch))
            for half in step.halves
        ]
        step.slot.busy = False
        tokens = tuple(token for tokens, _ in results for token in tokens)
        logits = tuple(rows for _, of_half in results for rows in of_half)
        return StepResult(step.batch, tokens, logits, step.device_s, step.start_s, waited=step.waited)

    async def stop(self) -> None:
        """End the steps under way, and wait until no device has work of them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await wait_to_end(*tasks)
        await run_to_end(self._device.wait_idle)
        await self._attention.drain()
        if self._trace is not None:
            await run_to_end(self._trace.write)

    def close(self) -> None:
        """Free frames and commands, after `stop`."""
        self._slots.clear()
        self._made.close()


@dataclass(eq=False, slots=True)
class HybridStep:
    """A step in flight; `can_split` says that there were two ways for it, `is_cut` that a prompt is in both halves."""

    runner: HybridRunner
    slot: _Slot
    batch: Batch
    kind: StepKind
    halves: list[_Half]
    can_split: bool
    is_cut: bool
    started_s: float = 0.0
    start_s: float = 0.0
    device_s: float = 0.0
    recoveries: int = 0  # of the far device, before the step
    waited: bool = False
    task: asyncio.Task[None] | None = None

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
