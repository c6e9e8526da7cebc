"""A load's layers, each recorded once for all the steps that take turns at it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.gpu.command import CommandPool
from unicorn_async.models.activations import residual_columns
from unicorn_async.step.attention_arguments import AttentionArguments
from unicorn_async.step.frame import Frame
from unicorn_async.step.layer_recording import LayerRecording

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.queue import CommandBuffer
    from unicorn_async.memory.kv_plan import KVPlan
    from unicorn_async.memory.model import ModelMemory, ResidualPlaces
    from unicorn_async.models.decoder import Decoder
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.ops.attention import GpuAttention
    from unicorn_async.step.attention_writer import AttentionParts
    from unicorn_async.step.frame import FrameLimits, StepShape


@dataclass(frozen=True, slots=True)
class Turn:
    """A step that goes through the layers: its frame with its residual stream, its shape, how many sequences it has."""

    frame: Frame
    residual: ResidualPlaces
    attention: AttentionArguments
    shape: StepShape
    work: AttentionParts
    num_sequences: int


class SharedRecordings:
    """Commands of layers that read their arguments in one frame, into which those of a step are copied for its turn.

    To record a layer may take as long as a GPU takes to compute it, beside a load that has all cores busy; a prompt of
    several steps would wait for that. The copies are small beside a layer. One thread at a time uses this; close it
    when none of its commands is pending.
    """

    def __init__(
        self,
        device: Device,
        decoder: Decoder,
        model: ModelSpec,
        memory: ModelMemory,
        limits: FrameLimits,
        attention: Sequence[GpuAttention],
        kv_plan: KVPlan,
    ) -> None:
        """Allocate the frame, whose residual stream is the last one of `memory`.

        Raises:
            OutOfMemoryError: it does not fit.
        """
        self._row_bytes = [4 * columns for columns in residual_columns(model)]
        self._residual = memory.residuals[-1]
        self._copies: dict[Frame, tuple[CommandBuffer, CommandBuffer]] = {}  # a frame has one step of a load
        with contextlib.ExitStack() as made:
            self._frame = Frame(device, limits, self._residual.addresses, len(memory.residuals) - 1)
            made.callback(self._frame.close)
            self._attention = AttentionArguments(device, limits, memory.decode_scratch, "shared attention frame")
            made.callback(self._attention.close)
            self._layers = LayerRecording(
                device,
                decoder,
                model,
                memory,
                self._frame,
                limits,
                attention,
                self._attention,
                kv_plan,
                shared=True,
            )
            made.callback(self._layers.close)
            self._pool = CommandPool(device, device.compute, shared=True)
            made.callback(self._pool.close)
            self._made = made.pop_all()

    @property
    def nbytes(self) -> int:
        """Size of the frame."""
        return self._frame.nbytes + self._attention.nbytes

    def commands(self, turn: Turn, layer: int) -> list[CommandBuffer]:
        """Return the commands that take a step through a layer."""
        enter, leave = self._copies_of(turn)
        return [enter, self._layers.layers(turn.shape, turn.work, layer, layer + 1), leave]

    def close(self) -> None:
        """Free the frame and the commands."""
        self._copies.clear()
        self._made.close()

    def _copies_of(self, turn: Turn) -> tuple[CommandBuffer, CommandBuffer]:
        if turn.frame not in self._copies:
            self._copies[turn.frame] = self._enter(turn), self._leave(turn)
        return self._copies[turn.frame]

    def _enter(self, turn: Turn) -> CommandBuffer:
        recorder = self._pool.recorder()
        turn.frame.record_copy(recorder, self._frame)
        turn.attention.record_copy(recorder, self._attention, turn.num_sequences)
        self._copy_residual(recorder, turn, turn.residual, self._residual)
        recorder.barrier()
        recorder.indirect_barrier()
        return recorder.end()

    def _leave(self, turn: Turn) -> CommandBuffer:
        recorder = self._pool.recorder()
        self._copy_residual(recorder, turn, self._residual, turn.residual)
        recorder.barrier()
        return recorder.end()

    def _copy_residual(
        self, recorder: CommandRecorder, turn: Turn, source: ResidualPlaces, target: ResidualPlaces
    ) -> None:
        pairs = (source.hidden, target.hidden), (source.branch, target.branch)
        for (one, other), row_bytes in zip(pairs, self._row_bytes, strict=True):
            recorder.copy(one.buffer, one.offset, other.buffer, other.offset, turn.shape.tokens * row_bytes)
