"""A frame's recorded commands: made once for each shape of a step, replayed from then on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.gpu.command import CommandPool, TimestampPool
from unicorn_async.gpu.timed_recorder import TimedRecorder
from unicorn_async.ops.sampling import SampleArguments, record_counts, record_sampling
from unicorn_async.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.queue import CommandBuffer
    from unicorn_async.memory.model import ModelMemory
    from unicorn_async.models.decoder import Decoder
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.step.attention_writer import AttentionParts
    from unicorn_async.step.frame import Frame, FrameLimits, StepShape

_TIMED_DISPATCHES = 4096  # of one command buffer, at most
_SEVERAL = 2  # tokens that are predicted one behind the other: their time is measured


class Recording:
    """Command buffers of one frame that do not depend on where the attention runs: what is before and after the layers.

    Close it when none of them is pending. Recording may happen in any thread, one at a time.
    """

    def __init__(
        self,
        device: Device,
        decoder: Decoder,
        model: ModelSpec,
        memory: ModelMemory,
        frame: Frame,
        limits: FrameLimits,
        *,
        time_kernels: bool = False,
        shared: bool = False,
    ) -> None:
        """Record for a frame; what is `shared` may be pending more than once."""
        self._device = device
        self._decoder = decoder
        self._model = model
        self._memory = memory
        self._frame = frame
        self._limits = limits
        self._pool = CommandPool(device, device.compute, shared=shared)
        self._timestamps = TimestampPool(device, 3)
        self._buffers: dict[Hashable, CommandBuffer] = {}
        self._time_kernels = time_kernels
        self._timed: dict[Hashable, TimedRecorder] = {}

    def prologue(self, shape: StepShape) -> CommandBuffer:
        """Return the commands before the first layer: start of the clock, token counts, embeddings."""
        return self._recorded(prologue_key(shape), lambda rec: self._prologue(rec, shape))

    def tail(self, shape: StepShape, work: AttentionParts | None = None) -> CommandBuffer:
        """Return the commands after the last layer: output head, sampling, predictions, end of the clock.

        Of a shape with predictions `work` is what their layer's attention has to do.
        """
        return self._recorded(tail_key(shape, work), lambda rec: self._tail(rec, shape, work))

    def device_seconds(self) -> tuple[float, float]:
        """Return how long the last step took, once it is done, and when it began, by the device's own clock."""
        start, stop, _ = self._frame.results.arrays["ticks"].tolist()
        return self._timestamps.ticks_to_s(start, stop), self._timestamps.ticks_to_s(0, start)

    def drafting_seconds(self, shape: StepShape) -> float:
        """Return how much of the last step's time, of this shape, went to what it predicts behind a first token."""
        if shape.num_drafts < _SEVERAL:
            return 0.0
        _, stop, began = self._frame.results.arrays["ticks"].tolist()
        return self._timestamps.ticks_to_s(began, stop)

    def close(self) -> None:
        """Free the command buffers."""
        self._buffers.clear()
        for recorder in self._timed.values():
            recorder.close()
        self._timed.clear()
        self._pool.close()
        self._timestamps.close()

    def _recorded(self, key: Hashable, record: Callable[[CommandRecorder], None]) -> CommandBuffer:
        if key not in self._buffers:
            recorder = self._recorder(key)
            record(recorder)
            self._buffers[key] = recorder.end()
        return self._buffers[key]

    def _recorder(self, key: Hashable) -> CommandRecorder:
        if not self._time_kernels:
            return self._pool.recorder()
        recorder = self._timed[key] = TimedRecorder(self._pool, _TIMED_DISPATCHES)
        return recorder

    def _prologue(self, recorder: CommandRecorder, shape: StepShape) -> None:
        recorder.timestamp(self._timestamps, 0)
        recorder.barrier()  # the step before may still read what this one writes
        if shape.has_counts:
            self._counts(recorder, shape)
        self._decoder.record_embed(recorder, self._frame.step, shape.tokens)

    def _counts(self, recorder: CommandRecorder, shape: StepShape) -> None:
        step, kernels = self._frame.step, self._device.kernels
        record_counts(
            recorder,
            kernels,
            resets=step.resets,
            num_states=self._limits.sequences,
            marks=step.marks,
            num_marks=shape.num_marks,
            counts=self._memory.counts,
            vocab_size=self._model.vocab_size,
        )

    def _predict(self, recorder: CommandRecorder, shape: StepShape, work: AttentionParts) -> None:
        """Record what comes behind the step's tokens, where the device attends; nothing is predicted elsewhere."""

    def _tail(self, recorder: CommandRecorder, shape: StepShape, work: AttentionParts | None) -> None:
        step, memory = self._frame.step, self._memory
        if shape.logit_rows:
            logits = self._decoder.record_head(recorder, step, self._limits.tokens, shape.logit_rows)
            if shape.samples:
                rows = min(shape.samples, shape.logit_rows)
                arguments = SampleArguments(
                    logits=Tensor(logits.address, (rows, self._model.vocab_size), logits.dtype),
                    rows=step.sample_rows,
                    scratch=memory.sample_scratch,
                    last_token=memory.last_token,
                    results=step.results,
                    counts=memory.counts if shape.has_counts else 0,
                    masks=self._frame.masks.address if shape.has_masks else 0,
                    biases=self._frame.biases.address if shape.has_biases else 0,
                )
                record_sampling(recorder, self._device.kernels, self._device.info, shape.path, arguments)
                recorder.barrier()
        if shape.has_pools:
            self._decoder.record_pooling(
                recorder,
                step,
                shape.tokens,
                num_parts=self._limits.sequences,
                sums=memory.pooled_sums,
                out=self._frame.pooled.address,
            )
        if shape.has_predictions and work is not None:
            self._predict(recorder, shape, work)
        recorder.timestamp(self._timestamps, 1)
        results = self._frame.results
        stamps = 3 if shape.num_drafts >= _SEVERAL else 2
        recorder.copy_timestamps(self._timestamps, 0, stamps, results.buffer, results.offset["ticks"])
        recorder.host_barrier()


def prologue_key(shape: StepShape) -> Hashable:
    """Return what decides the commands of a prologue."""
    return "prologue", shape.tokens, shape.has_counts, shape.has_found


def tail_key(shape: StepShape, work: AttentionParts | None = None) -> Hashable:
    """Return what decides the commands of a tail."""
    sampled = shape.logit_rows, shape.samples, shape.path, shape.has_counts, shape.has_masks, shape.has_biases
    predicted = (work, shape.num_drafts, shape.num_drafting) if shape.has_predictions else None
    return "tail", *sampled, shape.tokens if shape.has_pools or predicted else 0, predicted
