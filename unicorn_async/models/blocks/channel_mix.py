"""RWKV-7's channel mixing: norm, token shift, and the square of what is above zero between two products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.models.blocks.declarations import Residue, WeightSpec, vector
from unicorn_async.models.blocks.token_shift import record_shift
from unicorn_async.ops.activate import Function, activate
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.rules import WeightKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.models.block_recorder import BlockRecorder
    from unicorn_async.models.blocks.declarations import Norm
    from unicorn_async.ops.time_mix import TimeMixShape


@dataclass(frozen=True, slots=True)
class ChannelMix:
    """Two products (columns of `shape` → intermediate_size → columns) behind `norm` and the shift of a token.

    The last row that it has seen lies in the state that the layer's time mixing, of `shape`, has.
    """

    shape: TimeMixShape
    intermediate_size: int
    norm: Norm

    @property
    def norms(self) -> tuple[Norm, ...]:
        """See `Block`."""
        return (self.norm,)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """The norm, what tokens are mixed by, and both products."""
        size, width = self.shape.columns, self.intermediate_size
        matrix, group = WeightKind.MATRIX, MemoryGroup.FFN
        return (
            *self.norm.weights,
            vector("ffn.x_k", "channel_shift", size),
            WeightSpec("ffn.key.weight", (width, size), "channel_key", matrix, group),
            WeightSpec("ffn.value.weight", (size, width), "channel_value", matrix, group),
        )

    @property
    def workspace(self) -> Mapping[str, int]:
        """See `Block`."""
        size, width = self.shape.columns, self.intermediate_size
        return {"normed": size, "shifted": size, "channel": width, "channel_input": width}

    @property
    def sizes(self) -> Mapping[str, int]:
        """See `Block`."""
        return {"intermediate_size": self.intermediate_size}

    @property
    def summary(self) -> str:
        """Its width."""
        return f"channel mixing {self.intermediate_size}"

    @property
    def state(self) -> None:
        """What it keeps is declared by the time mixing."""

    @property
    def alike(self) -> ChannelMix:
        """See `Block`."""
        return self

    @property
    def residue(self) -> Residue:
        """See `Block`."""
        return Residue()

    def record(self, recorder: BlockRecorder) -> None:
        """See `Block`."""
        last = recorder.state + self.shape.channel_offset
        (shifted,) = record_shift(recorder, self.shape, self.norm, "channel_shift", last)
        keys = recorder.rows("channel", self.intermediate_size)
        recorder.linear(shifted, "channel_key", keys)
        activated = recorder.input("channel_value", "channel_input")
        activate(
            recorder.commands, recorder.kernels, recorder.info, x=keys, function=Function.SQUARED_RELU, out=activated
        )
        recorder.barrier()
        recorder.linear(activated, "channel_value", recorder.branch)
        recorder.leave(self.residue)
