"""A frame's recorded commands where the device that runs the model attends as well."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.models.block_recorder import FixedPlace, LayerAttention
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


class LayerRecording(Recording):
    """The commands of layers with their attention as well: a step is `prologue`, `layers` in its parts, then `tail`."""

    def __init__(
        self,
        device: Device,
        decoder: Decoder,
        model: ModelSpec,
        memory: ModelMemory,
        frame: Frame,
        limits: FrameLimits,
        attention: AttentionOp,
        attention_frame: AttentionArguments,
        kv_plan: KVPlan,
        *,
        time_kernels: bool = False,
        shared: bool = False,
    ) -> None:
        super().__init__(device, decoder, model, memory, frame, limits, time_kernels=time_kernels, shared=shared)
        self._attention = attention
        self._attention_frame = attention_frame
        self._kv_plan = kv_plan

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
        self.tail(shape)

    def dispatch_times(
        self, shape: StepShape, work: AttentionParts, parts: Iterable[tuple[int, int]]
    ) -> list[DispatchTime]:
        """Return what each dispatch of the last step took, once it is done, if kernels are timed."""
        return [time for key in _keys(shape, work, parts) if key in self._timed for time in self._timed[key].times()]

    def _layers(self, recorder: CommandRecorder, shape: StepShape, work: AttentionParts, first: int, stop: int) -> None:
        frame = self._attention_frame
        batches = [replace(batch, **work._asdict()) for batch in frame.batches]
        for layer in range(first, stop):
            place = self._place(layer, batches)
            chains = layer + 1 < stop
            self._decoder.record_layer(recorder, self._frame.step, shape.tokens, layer, place, chains=chains)

    def _place(self, layer: int, batches: Sequence[AttentionBatch]) -> LayerAttention | FixedPlace | None:
        """Where the layer's state is, and what its attention has to do."""
        found = self._model.layers[layer]
        if found.paged is not None:
            group = self._kv_plan.group_of(layer)
            slots = self._attention_frame.slot_mapping[group]
            return LayerAttention(self._attention, self._memory.cache(layer), slots, batches[group])
        return None if found.fixed is None else FixedPlace(self._memory.fixed_state(layer))


def _keys(shape: StepShape, work: AttentionParts, parts: Iterable[tuple[int, int]]) -> Iterator[Hashable]:
    yield prologue_key(shape)
    for part in parts:
        yield _layers_key(shape, work, *part)
    yield tail_key(shape)


def _layers_key(shape: StepShape, work: AttentionParts, first: int, stop: int) -> Hashable:
    return "layers", shape.tokens, work, first, stop
