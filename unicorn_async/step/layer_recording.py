"""A frame's recorded commands where the device that runs the model attends as well."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.models.block_recorder import FixedPlace, LayerAttention
from unicorn_async.ops.predictor_steps import predictor_steps
from unicorn_async.ops.sampling import SampleArguments, record_sampling
from unicorn_async.step.recording import Recording, prologue_key, tail_key

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.queue import CommandBuffer
    from unicorn_async.gpu.timed_recorder import DispatchTime
    from unicorn_async.memory.kv_plan import KVPlan
    from unicorn_async.memory.model import ModelMemory
    from unicorn_async.models.decoder import Decoder
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.ops.attention_op import AttentionBatch, AttentionOp
    from unicorn_async.step.attention_arguments import AttentionArguments
    from unicorn_async.step.attention_writer import AttentionParts
    from unicorn_async.step.frame import Frame, FrameLimits, StepShape
    from unicorn_async.step.further_tokens import FurtherTokens
    from unicorn_async.tensor import Tensor


class LayerRecording(Recording):
    """The commands of layers with their attention as well: a step is `prologue`, `layers` in its parts, then `tail`.

    `attention` is by block group. What is predicted behind a first token is in `further`.
    """

    def __init__(
        self,
        device: Device,
        decoder: Decoder,
        model: ModelSpec,
        memory: ModelMemory,
        frame: Frame,
        limits: FrameLimits,
        attention: Sequence[AttentionOp],
        attention_frame: AttentionArguments,
        kv_plan: KVPlan,
        further: FurtherTokens | None = None,
        *,
        time_kernels: bool = False,
        shared: bool = False,
    ) -> None:
        super().__init__(device, decoder, model, memory, frame, limits, time_kernels=time_kernels, shared=shared)
        self._attention = attention
        self._attention_frame = attention_frame
        self._kv_plan = kv_plan
        self._further = further

    def layers(self, shape: StepShape, work: AttentionParts, first: int, stop: int) -> CommandBuffer:
        """Return the commands of layers `first` to `stop - 1`."""
        key = _layers_key(shape, work, first, stop)
        return self._recorded(key, lambda rec: self._layers(rec, shape, work, first, stop))

    def has(self, shape: StepShape, work: AttentionParts, parts: Iterable[tuple[int, int]]) -> bool:
        """Whether all commands of a step are recorded already."""
        return all(key in self._buffers for key in _keys(shape, work, parts))

    def record(self, shape: StepShape, work: AttentionParts, parts: Iterable[tuple[int, int]]) -> None:
        """Record all commands of a step."""
        self.prologue(shape)
        for part in parts:
            self.layers(shape, work, *part)
        self.tail(shape, work)

    def dispatch_times(
        self, shape: StepShape, work: AttentionParts, parts: Iterable[tuple[int, int]]
    ) -> list[DispatchTime]:
        """Return what each dispatch of the last step took, once it is done, if kernels are timed."""
        return [time for key in _keys(shape, work, parts) if key in self._timed for time in self._timed[key].times()]

    def _layers(self, recorder: CommandRecorder, shape: StepShape, work: AttentionParts, first: int, stop: int) -> None:
        batches = self._batches(work)
        for layer in range(first, stop):
            place = self._place(layer, batches, has_prompts=work.has_prefill)
            chains = layer + 1 < stop
            self._decoder.record_layer(recorder, self._frame.step, shape.tokens, layer, place, chains=chains)

    def _predict(self, recorder: CommandRecorder, shape: StepShape, work: AttentionParts) -> None:
        """Record what comes behind the step's tokens, and the choice of what comes behind those that were sampled."""
        step = self._frame.step
        rows = min(shape.samples, shape.logit_rows) if shape.num_drafts else 0
        layer = self._model.num_layers
        place = self._place(layer, self._batches(work), has_prompts=work.has_prefill)
        assert isinstance(place, LayerAttention), "what predicts attends"
        logits = self._decoder.record_prediction(recorder, step, shape.tokens, rows, place)
        if logits is None:
            return
        self._choose(recorder, shape, logits, step.next_rows, step.predicted)
        if shape.num_drafts > 1:
            recorder.timestamp(self._timestamps, 2)
            self._predict_further(recorder, shape, place)

    def _predict_further(self, recorder: CommandRecorder, shape: StepShape, place: LayerAttention) -> None:
        """Record what comes behind the predicted token of each sequence, one token after the other."""
        further, step, num_rows = self._further, self._frame.step, shape.num_drafting
        assert further is not None, "a frame of a model that predicts has it"
        place = replace(place, slot_mapping=further.slot_mapping, batch=further.batch)
        predicted, num_tokens = step.predicted, shape.tokens
        for number in range(1, shape.num_drafts):
            predictor_steps(
                recorder,
                self._device.kernels,
                further.places,
                num_sequences=num_rows,
                predicted=predicted,
                token_ids=step.token_ids,
                positions=step.positions,
                logit_rows=step.logit_rows,
                sampled=step.results,
                is_first=number == 1,
            )
            recorder.barrier()
            logits = self._decoder.record_further_prediction(
                recorder, further.step, num_tokens, num_rows, place, from_rows=further.from_rows
            )
            predicted, num_tokens = further.results(number), num_rows
            self._choose(recorder, shape, logits, further.step.next_rows, predicted)

    def _choose(self, recorder: CommandRecorder, shape: StepShape, logits: Tensor, rows: int, results: int) -> None:
        """Record the choice of predicted tokens."""
        memory = self._memory
        arguments = SampleArguments(
            logits=logits,
            rows=rows,
            scratch=memory.sample_scratch,
            last_token=memory.predicted,
            results=results,
        )
        record_sampling(recorder, self._device.kernels, self._device.info, shape.path, arguments)
        recorder.barrier()

    def _batches(self, work: AttentionParts) -> list[AttentionBatch]:
        return [replace(batch, **work._asdict()) for batch in self._attention_frame.batches]

    def _place(
        self, layer: int, batches: Sequence[AttentionBatch], *, has_prompts: bool
    ) -> LayerAttention | FixedPlace | None:
        """Where the layer's state is, and what its attention has to do."""
        found = self._model.layers[layer]
        if found.attends:
            source = self._model.kv_layer(layer)
            group = self._kv_plan.group_of(source)
            slots = self._attention_frame.slot_mapping[group]
            return LayerAttention(self._attention[group], self._memory.cache(source), slots, batches[group])
        return None if found.fixed is None else FixedPlace(self._memory.fixed_state(layer), has_prompts)


def _keys(shape: StepShape, work: AttentionParts, parts: Iterable[tuple[int, int]]) -> Iterator[Hashable]:
    yield prologue_key(shape)
    for part in parts:
        yield _layers_key(shape, work, *part)
    yield tail_key(shape, work)


def _layers_key(shape: StepShape, work: AttentionParts, first: int, stop: int) -> Hashable:
    return "layers", shape.tokens, work, first, stop
