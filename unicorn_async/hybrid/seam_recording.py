"""A half's recorded commands, cut where another device attends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.step.recording import Recording, prologue_key, tail_key
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from collections.abc import Hashable

    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.queue import CommandBuffer
    from unicorn_async.hybrid.interface import Exchange
    from unicorn_async.memory.model import ModelMemory
    from unicorn_async.models.decoder import Decoder
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.step.frame import Frame, FrameLimits, StepShape


class SeamRecording(Recording):
    """The commands between two layers' attention: a step is `prologue`, the segments in order, then `tail`.

    Segment i leads to the attention of layer i, the last one to the tail. `rows` is the address of (tokens) u32 that
    count from 0: the places of the tokens' keys and values in the exchange. `turn` is that of the steps' passes.
    """

    def __init__(
        self,
        device: Device,
        decoder: Decoder,
        model: ModelSpec,
        memory: ModelMemory,
        frame: Frame,
        limits: FrameLimits,
        exchange: Exchange,
        rows: int,
        turn: int,
    ) -> None:
        super().__init__(device, decoder, model, memory, frame, limits)
        self._exchange = exchange
        self._rows = rows
        self._turn = turn

    def segment(self, shape: StepShape, layer: int) -> CommandBuffer:
        """Return the commands from the attention of layer `layer - 1` to that of `layer`."""
        return self._recorded(_segment_key(shape, layer), lambda rec: self._segment(rec, shape.tokens, layer))

    def has(self, shape: StepShape) -> bool:
        """Whether all commands of a step are recorded already."""
        keys = [prologue_key(shape), tail_key(shape)]
        keys += [_segment_key(shape, layer) for layer in range(self._model.num_layers + 1)]
        return all(key in self._buffers for key in keys)

    def record(self, shape: StepShape) -> None:
        """Record all commands of a step."""
        self.prologue(shape)
        for layer in range(self._model.num_layers + 1):
            self.segment(shape, layer)
        self.tail(shape)

    def _segment(self, recorder: CommandRecorder, num_tokens: int, layer: int) -> None:
        model, exchange, step = self._model, self._exchange, self._frame.step
        columns = model.num_heads * model.head_dim
        if layer:
            attended = self._memory.attended
            exchange.record_result(recorder, num_tokens, attended, turn=self._turn, layer=layer - 1)
            recorder.barrier()
            rows = Tensor(attended.address, (num_tokens, columns), DType.F32)
            self._decoder.record_after_attention(recorder, step, num_tokens, layer - 1, rows)
        if layer < model.num_layers:
            q = Tensor(exchange.q, (num_tokens, columns), DType.F32)
            self._decoder.record_before_attention(
                recorder, step, layer, q=q, cache=exchange.new_kv, slot_mapping=self._rows
            )
            exchange.record_filled(recorder, num_tokens, turn=self._turn, layer=layer)


def _segment_key(shape: StepShape, layer: int) -> Hashable:
    return "segment", shape.tokens, layer
