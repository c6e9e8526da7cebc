"""Runs batches on the GPU: writes a frame's arguments, records or replays its commands, submits, reads results."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from unicorn_async.background import run_to_end, wait_to_end
from unicorn_async.errors import OutOfMemoryError
from unicorn_async.gpu.arena import Arena
from unicorn_async.gpu.memory_types import MemoryKind
from unicorn_async.memory.model import ResidualPlaces
from unicorn_async.step.attention_arguments import AttentionArguments
from unicorn_async.step.attention_load import AttentionLoad, LayerCost
from unicorn_async.step.attention_writer import AttentionWriter, GroupCut
from unicorn_async.step.batch_writer import BatchWriter
from unicorn_async.step.frame import Frame, FrameLimits
from unicorn_async.step.further_tokens import FurtherTokens
from unicorn_async.step.kernel_times import KernelTimes
from unicorn_async.step.layer_cache import SharedRecordings, Turn
from unicorn_async.step.layer_recording import LayerRecording
from unicorn_async.step.load_steps import LoadSteps
from unicorn_async.step.logits_copy import LogitsCopy
from unicorn_async.step.result import StepResult
from unicorn_async.step.result_reader import read_logits, read_predictions, read_tokens
from unicorn_async.step.submission_plan import SubmissionPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.queue import CommandBuffer
    from unicorn_async.memory.kv_plan import KVPlan
    from unicorn_async.memory.model import ModelMemory
    from unicorn_async.models.decoder import Decoder
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.ops.attention import GpuAttention
    from unicorn_async.scheduler.batch import Batch
    from unicorn_async.step.attention_writer import AttentionParts
    from unicorn_async.step.frame import StepShape
    from unicorn_async.step.load_steps import LayerReadiness, LoadingStep


_log = logging.getLogger(__name__)


@dataclass(slots=True)
class RecordedFrame:
    """A frame with its commands; `busy` from when a step is written to it until that step's results are read."""

    frame: Frame
    residual: ResidualPlaces
    attention: AttentionArguments
    recording: LayerRecording
    copy: LogitsCopy
    further: FurtherTokens | None  # of a model that predicts
    made: contextlib.ExitStack
    spare: Arena | None  # what the residual stream lies in, where only a load needs it
    busy: bool = False

    @property
    def nbytes(self) -> int:
        spare = 0 if self.spare is None else self.spare.allocated_bytes
        further = 0 if self.further is None else self.further.nbytes
        return self.frame.nbytes + self.attention.nbytes + self.copy.nbytes + spare + further


class Runner:
    """Runs steps on one device, each in a free one of a few frames; close it when no step is in flight.

    `follow_load` has to run beside the first steps: it submits those that come while layers are missing. There are
    more frames for these, made when the ones before are in use, which `free_spare_frames` frees after them.

    Every layer takes the steps in the order in which they were submitted. `attention` is by block group.
    """

    def __init__(
        self,
        device: Device,
        model: ModelSpec,
        options: EngineConfig,
        memory: ModelMemory,
        kv_plan: KVPlan,
        decoder: Decoder,
        attention: Sequence[GpuAttention],
        readiness: LayerReadiness,
    ) -> None:
        rows = memory.logits.nbytes // (4 * model.vocab_size)
        plans = [each.plan for each in attention]
        self._limits = FrameLimits.of(
            options, kv_plan, plans, rows, has_runs=model.has_fixed_state, predicts=model.predicts
        )
        self._device = device
        self._model = model
        self._readiness = readiness
        groups = kv_plan.groups if model.attends else ()
        cuts = [GroupCut(group.window, plan) for group, plan in zip(groups, plans, strict=True)]
        self._writer = BatchWriter(self._limits)
        self._attention_writer = AttentionWriter(options.block_size, cuts)
        costs = [LayerCost.of(device.info, cut.plan.shape, cut.window) for cut in cuts]
        costs_of = [
            costs[kv_plan.group_of(model.kv_layer(layer))] if found.attends else None
            for layer, found in enumerate(model.layers[: model.num_layers])
        ]
        self._submissions = SubmissionPlan(costs_of, options.submission_budget_s)
        self.kernel_times = KernelTimes() if options.time_kernels else None
        self._loading = LoadSteps(device.compute, readiness, model.num_layers)
        self._num_frames, self._max_frames = options.num_frames, options.max_frames
        self._all_busy = asyncio.Event()

        def make_frame(index: int) -> RecordedFrame:
            with contextlib.ExitStack() as made:  # closes what there is of a frame that does not fit
                spare = None
                if index < self._num_frames:
                    residual = memory.residuals[index]
                else:
                    nbytes = memory.residuals[0].hidden.nbytes, memory.residuals[0].branch.nbytes
                    spare = Arena(device.memory, MemoryKind.DEVICE, sum(nbytes), name=f"residual stream {index}")
                    made.callback(spare.close)
                    residual = ResidualPlaces(*map(spare.allocate, nbytes))
                frame = Frame(device, self._limits, residual.addresses, index)
                made.callback(frame.close)
                attends = AttentionArguments(device, self._limits, memory.decode_scratch, f"attention frame {index}")
                made.callback(attends.close)
                further = None
                if model.predicts:
                    further = FurtherTokens(
                        device,
                        self._limits,
                        memory.decode_scratch,
                        residual.addresses,
                        group=kv_plan.group_of(model.num_layers),
                        block_size=options.block_size,
                        name=f"predictions {index}",
                    )
                    made.callback(further.close)
                recording = LayerRecording(
                    device,
                    decoder,
                    model,
                    memory,
                    frame,
                    self._limits,
                    attention,
                    attends,
                    kv_plan,
                    further,
                    time_kernels=options.time_kernels,
                )
                made.callback(recording.close)
                copy = LogitsCopy(device, memory.logits, model.vocab_size)
                made.callback(copy.close)
                return RecordedFrame(frame, residual, attends, recording, copy, further, made.pop_all(), spare)

        self._make_frame = make_frame
        self._recorded: list[RecordedFrame] = []
        with contextlib.ExitStack() as made:  # likewise of all frames
            made.callback(self._close_frames)
            for _ in range(self._num_frames):
                self._add_frame()
            shared = SharedRecordings(device, decoder, model, memory, self._limits, attention, kv_plan)
            made.callback(shared.close)
            self._shared: SharedRecordings | None = shared
            self._made = made.pop_all()

    @property
    def nbytes(self) -> int:
        """Size of the frames, of what evaluations have their logits copied to, and of what only a load needs."""
        frames = sum(recorded.nbytes for recorded in self._recorded)
        return frames + (0 if self._shared is None else self._shared.nbytes)

    @property
    def max_logit_rows(self) -> int:
        """Rows of logits that one step may compute."""
        return self._limits.logit_rows

    @property
    def is_loading(self) -> bool:
        """Whether steps still wait for layers; until then no step may have tokens that another one samples."""
        return not self._loading.done

    @property
    def max_in_flight(self) -> int:
        """Steps that may be submitted now before the oldest of them is collected.

        While the model loads there may be more, if the device has to wait for layers: the later a step is made, the
        more requests are in it, and the less lies between a token and the next one.
        """
        return len(self._recorded) if self.is_loading and self._loading.wants_more else self._num_frames

    async def follow_load(self, on_change: Callable[[], None]) -> None:
        """Submit the steps that came before all layers, as these arrive, until nothing is loading any more.

        `on_change` is called when `max_in_flight` or `is_loading` may have changed.

        Raises:
            UnicornError: what made the load fail.
        """
        making = asyncio.create_task(self._make_spare_frames(on_change), name="make frames")
        try:
            await self._loading.run(on_change)
        finally:
            making.cancel()
            await wait_to_end(making)
            failure = None if making.cancelled() else making.exception()
        if failure is not None:
            raise failure
        on_change()

    async def _make_spare_frames(self, on_change: Callable[[], None]) -> None:
        """Make a frame whenever all are in use, so that the next step of a load finds one, as long as they fit.

        Raises:
            DeviceLostError: the device was lost.
        """
        while len(self._recorded) < self._max_frames:
            await self._all_busy.wait()
            self._all_busy.clear()
            try:
                await run_to_end(self._add_frame)
            except OutOfMemoryError as exc:
                _log.warning("%s; no more than %d steps go along with the load", exc, len(self._recorded))
                return
            on_change()

    def _add_frame(self) -> RecordedFrame:
        recorded = self._make_frame(len(self._recorded))
        self._recorded.append(recorded)  # here, so that it is freed after a cancellation, too
        return recorded

    async def load_followed(self) -> None:
        """Wait until `follow_load` has submitted all that came before the layers; raises as it does."""
        await self._loading.followed()

    def abandon_load(self) -> None:
        """Let who waits in `load_followed` know that `follow_load` has ended, or never will begin."""
        self._loading.abandon()

    async def submit(self, batch: Batch) -> SubmittedStep:
        """Submit a step, which waits for kernels and not for the step; behind a load `follow_load` does that.

        Raises:
            DeviceError: the device is lost, or lacks what a kernel needs; behind a load `follow_load` raises it.
            UnicornError: what made the load fail.
        """
        recorded = next(recorded for recorded in self._recorded if not recorded.busy)
        recorded.busy = True
        if self.is_loading and all(recorded.busy for recorded in self._recorded):
            self._all_busy.set()
        await recorded.frame.prepare(batch, self._model.hidden_size)
        shape = self._writer.write(batch, recorded.frame)
        work = self._attention_writer.write(batch, recorded.attention, shape.tokens)
        if recorded.further is not None and shape.num_drafting:
            recorded.further.write(batch, recorded.frame, self._attention_writer, shape.num_drafting)
        recording, num_layers = recorded.recording, self._model.num_layers
        evaluated = sum(item.num_tokens for item in batch.scheduled if item.sequence.want_logits)
        if evaluated:
            await recorded.copy.prepare()

        def tail() -> list[CommandBuffer]:
            if not evaluated:
                return [recording.tail(shape, work)]
            return [
                recording.tail(shape, work),
                recorded.copy.commands(batch.num_samples, evaluated),
            ]  # logits for the host

        if self.is_loading:  # what is recorded needs memory, and the last layers may have none yet
            assert self._shared is not None, "it is freed behind the load's last step"
            turn = Turn(recorded.frame, recorded.residual, recorded.attention, shape, work, len(batch.scheduled))
            layers = [partial(self._shared.commands, turn, layer) for layer in range(num_layers)]
            behind = self._loading.add((lambda: [recording.prologue(shape)], *layers, tail))
            return SubmittedStep(self, recorded, batch, shape, work, behind, ())
        load = AttentionLoad.of(batch)
        size = self._submissions.layers_per_submission(shape.tokens, load)
        parts = [(first, min(first + size, num_layers)) for first in range(0, num_layers, size)]
        was_recorded = not recording.has(shape, work, parts)
        if was_recorded:
            await run_to_end(lambda: recording.record(shape, work, parts))
        value, waits = 0, self._loading.waits
        commands = [recording.prologue(shape)]
        for part in parts:
            commands.append(recording.layers(shape, work, *part))
            if part is parts[-1]:
                commands += tail()
            value = self._device.compute.submit(commands, waits=waits)
            commands, waits = [], ()
        return SubmittedStep(self, recorded, batch, shape, work, value, tuple(parts), was_recorded, load)

    async def collect(self, step: SubmittedStep) -> StepResult:
        """Wait for a step and read its results."""
        value = step.value if isinstance(step.value, int) else await self._loading.submitted(step.value)
        await self._device.compute.timeline.reached(value)
        await self._readiness.checked()  # the host looks at a layer's values after the device may use them
        device_s, start_s = step.recorded.recording.device_seconds()
        if step.load is not None:
            self._submissions.observe(step.shape.tokens, step.load, device_s)
            if self.kernel_times is not None:
                times = step.recorded.recording.dispatch_times(step.shape, step.work, step.parts)
                self.kernel_times.note_step(step.shape.tokens, times)
        tokens = read_tokens(step.recorded.frame, step.shape, step.batch)
        logits = read_logits(step.recorded.copy, step.batch)
        pooled = step.recorded.frame.pooled.read(step.batch)
        result = StepResult(
            step.batch,
            tokens,
            logits,
            device_s,
            start_s,
            waited=not step.parts,
            was_recorded=step.was_recorded,
            pooled=pooled,
            predicted=read_predictions(step.recorded.frame, step.recorded.further, step.shape, step.batch),
            drafting_s=step.recorded.recording.drafting_seconds(step.shape),
        )
        step.recorded.busy = False
        return result

    async def free_spare_frames(self) -> None:
        """Free the frames that only steps of the load needed, in a thread; such steps have been collected.

        A free frame before them is used first, so that no later step is in one.
        """
        for recorded in self._recorded[self._num_frames :]:
            assert not recorded.busy
            await run_to_end(recorded.made.close)
            self._recorded.remove(recorded)  # so long it counts as memory that may be allocated
        if self._shared is not None:
            await run_to_end(self._shared.close)
            self._shared = None

    def close(self) -> None:
        """Free frames and commands; no step may be in flight."""
        self._made.close()

    def _close_frames(self) -> None:
        for recorded in self._recorded:
            recorded.made.close()
        self._recorded.clear()


@dataclass(frozen=True, slots=True)
class SubmittedStep:
    """A step in flight.

    `value` is that of the queue's timeline at its end, or what will say it. `parts` are the layers of each of its
    submissions, none if it began while layers were loaded; one `was_recorded` had to wait until its commands were.
    """

    runner: Runner
    recorded: RecordedFrame
    batch: Batch
    shape: StepShape
    work: AttentionParts
    value: int | LoadingStep
    parts: tuple[tuple[int, int], ...]
    was_recorded: bool = False
    load: AttentionLoad | None = None  # of one that has `parts`

    @property
    def layers_followed(self) -> int | None:
        """Layers of a load behind which the step was submitted; None if it began when all were there."""
        return None if isinstance(self.value, int) else self.value.num_submitted

    async def result(self) -> StepResult:
        """Wait until the device has done the step."""
        return await self.runner.collect(self)
