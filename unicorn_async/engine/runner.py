"""Runs batches on the GPU: writes a frame's arguments, records or replays its commands, submits, reads results."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from unicorn_async.background import run_to_end
from unicorn_async.engine.batch_writer import BatchWriter
from unicorn_async.engine.evaluation_copy import EvaluationCopy
from unicorn_async.engine.frame import Frame, FrameLimits
from unicorn_async.engine.kernel_times import KernelTimes
from unicorn_async.engine.recording import Recording
from unicorn_async.engine.step import StepResult
from unicorn_async.engine.step_results import read_logits, read_tokens
from unicorn_async.engine.submission_plan import SubmissionPlan

if TYPE_CHECKING:
    from unicorn_async.config import EngineConfig, ModelConfig
    from unicorn_async.engine.batch_writer import StepShape
    from unicorn_async.engine.kv_plan import KVPlan
    from unicorn_async.engine.model_memory import ModelMemory
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.timeline import Timeline
    from unicorn_async.models.decoder import Decoder
    from unicorn_async.ops.attention_plan import AttentionPlan
    from unicorn_async.scheduler.batch import Batch


class LayerReadiness(Protocol):
    """When layers may be used; layer -1 is the embeddings, layer `num_layers` the final norm and the head."""

    @property
    def all_active(self) -> bool:
        """Whether nothing has to be waited for any more."""

    async def layer_submitted(self, layer: int) -> tuple[Timeline, int]:
        """Wait until what loads the layer is submitted; return the value at which the device may use it."""

    async def checked(self) -> None:
        """Wait until all layers are active and nothing was wrong with their values."""


@dataclass(slots=True)
class _Slot:
    """A frame with its commands and, while a step of it is in flight, that step."""

    frame: Frame
    recording: Recording
    copy: EvaluationCopy
    busy: bool = False


class Runner:
    """Runs steps on one device, each in the next of a few frames; close it when no step is in flight."""

    def __init__(
        self,
        device: Device,
        model: ModelConfig,
        options: EngineConfig,
        memory: ModelMemory,
        kv_plan: KVPlan,
        decoder: Decoder,
        attention: AttentionPlan,
        readiness: LayerReadiness,
    ) -> None:
        rows = memory.logits.nbytes // (4 * model.vocab_size)
        self._limits = FrameLimits.of(options, kv_plan, attention, rows)
        self._device = device
        self._model = model
        self._readiness = readiness
        windows = [group.window for group in kv_plan.groups]
        self._writer = BatchWriter(self._limits, options.block_size, windows, attention)
        self._submissions = SubmissionPlan(model.num_layers, options.submission_budget_s)
        self.kernel_times = KernelTimes() if options.time_kernels else None
        self._slots: list[_Slot] = []
        with contextlib.ExitStack() as made:  # closes what there is of the frames if one of them does not fit
            for index in range(options.num_frames):
                frame = Frame(device, self._limits, memory.partials, index)
                made.callback(frame.close)
                recording = Recording(
                    device,
                    decoder,
                    model,
                    memory,
                    frame,
                    self._limits,
                    kv_plan.layer_group,
                    time_kernels=options.time_kernels,
                )
                made.callback(recording.close)
                copy = EvaluationCopy(device, memory.logits, model.vocab_size)
                made.callback(copy.close)
                self._slots.append(_Slot(frame, recording, copy))
            self._made = made.pop_all()

    @property
    def nbytes(self) -> int:
        """Size of the frames and of what evaluations have their logits copied to."""
        return sum(slot.frame.nbytes + slot.copy.nbytes for slot in self._slots)

    @property
    def max_logit_rows(self) -> int:
        """Rows of logits that one step may compute."""
        return self._limits.logit_rows

    async def submit(self, batch: Batch) -> SubmittedStep:
        """Submit a step; waits for layers that are not loaded yet and for kernels, not for the step.

        Raises:
            DeviceError: the device is lost, or lacks what a kernel needs.
        """
        slot = self._slots[batch.step % len(self._slots)]
        assert not slot.busy, f"step {batch.step}: its frame is still in use"
        shape = self._writer.write(batch, slot.frame)
        loading = not self._readiness.all_active
        size = 1 if loading else self._submissions.layers_per_submission(shape.tokens)
        num_layers = self._model.num_layers
        parts = [(first, min(first + size, num_layers)) for first in range(0, num_layers, size)]
        if not slot.recording.has(shape, parts):
            await run_to_end(lambda: _record(slot.recording, shape, parts))
        slot.busy = True
        if loading:
            value = await self._submit_loading(slot, shape)
        else:
            value = self._submit_parts(slot, shape, parts)
        value = self._submit_copy(slot, batch, value)
        return SubmittedStep(self, slot, batch, shape, value, () if loading else tuple(parts))

    def _submit_parts(self, slot: _Slot, shape: StepShape, parts: list[tuple[int, int]]) -> int:
        queue, recording, value = self._device.compute, slot.recording, 0
        commands = [recording.prologue(shape)]
        for index, part in enumerate(parts):
            commands.append(recording.layers(shape, *part))
            if index == len(parts) - 1:
                commands.append(recording.tail(shape))
            value = queue.submit(commands)
            commands = []
        return value

    async def _submit_loading(self, slot: _Slot, shape: StepShape) -> int:
        """Submit layer by layer, each as soon as what loads it is submitted: a queue must not wait for a later one."""
        queue, recording, num_layers = self._device.compute, slot.recording, self._model.num_layers
        queue.submit([recording.prologue(shape)], waits=[await self._readiness.layer_submitted(-1)])
        for layer in range(num_layers):
            ready = await self._readiness.layer_submitted(layer)
            queue.submit([recording.layers(shape, layer, layer + 1)], waits=[ready])
        return queue.submit([recording.tail(shape)], waits=[await self._readiness.layer_submitted(num_layers)])

    def _submit_copy(self, slot: _Slot, batch: Batch, value: int) -> int:
        evaluated = sum(item.num_tokens for item in batch.scheduled if item.sequence.want_logits)
        if not evaluated:
            return value
        return self._device.compute.submit([slot.copy.commands(batch.num_samples, evaluated)])

    async def collect(self, step: SubmittedStep) -> StepResult:
        """Wait for a step and read its results."""
        await self._device.compute.timeline.reached(step.value)
        if not step.parts:
            await self._readiness.checked()  # the host looks at a layer's values after the device may use them
        device_s = step.slot.recording.device_seconds()
        if step.parts:
            self._submissions.observe(step.shape.tokens, device_s)
            if self.kernel_times is not None:
                times = step.slot.recording.dispatch_times(step.shape, step.parts)
                self.kernel_times.note_step(step.shape.tokens, times)
        tokens = read_tokens(step.slot.frame, step.shape, step.batch)
        result = StepResult(step.batch, tokens, read_logits(step.slot.copy, step.batch), device_s)
        step.slot.busy = False
        return result

    def close(self) -> None:
        """Free frames and commands; no step may be in flight."""
        self._slots.clear()
        self._made.close()


@dataclass(frozen=True, slots=True)
class SubmittedStep:
    """A step in flight; `parts` are the layers of each of its submissions, none if it ran while layers were loaded."""

    runner: Runner
    slot: _Slot
    batch: Batch
    shape: StepShape
    value: int
    parts: tuple[tuple[int, int], ...]

    async def result(self) -> StepResult:
        """Wait until the device has done the step."""
        return await self.runner.collect(self)


def _record(recording: Recording, shape: StepShape, parts: list[tuple[int, int]]) -> None:
    recording.prologue(shape)
    for part in parts:
        recording.layers(shape, *part)
    recording.tail(shape)
