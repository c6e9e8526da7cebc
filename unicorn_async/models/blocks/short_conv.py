"""The gated short convolution: norm, projection to B, C and x, C * conv(B * x), output projection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.models.blocks.declarations import Fixed, Residue, WeightSpec, vector
from unicorn_async.ops.short_conv import short_conv, short_conv_state, short_conv_state_bytes
from unicorn_async.tensor import DType, Tensor
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.rules import WeightKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.models.block_recorder import BlockRecorder
    from unicorn_async.models.blocks.declarations import Norm


@dataclass(frozen=True, slots=True)
class ShortConv:
    """A convolution over the last `num_taps` tokens, each column by itself, between two gates, behind `norm`.

    With a `post_norm` what it leaves is normed. With `has_bias` both projections and the convolution have one.
    """

    hidden_size: int
    num_taps: int
    norm: Norm
    has_bias: bool = False
    post_norm: Norm | None = None

    @property
    def norms(self) -> tuple[Norm, ...]:
        """See `Block`."""
        return (self.norm,) if self.post_norm is None else (self.norm, self.post_norm)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """Norms, then the projection to B, C and x, the taps and the output projection, each with its bias."""
        hidden, matrix, group = self.hidden_size, WeightKind.MATRIX, MemoryGroup.ATTENTION
        shape = (hidden, 1, self.num_taps)
        weights = [
            *(norm.weight for norm in self.norms),
            WeightSpec("conv.in_proj.weight", (3 * hidden, hidden), "conv_in", matrix, group),
            WeightSpec("conv.conv.weight", shape, "conv", WeightKind.VECTOR, MemoryGroup.NORMS),
            WeightSpec("conv.out_proj.weight", (hidden, hidden), "conv_out", matrix, group),
        ]
        if self.has_bias:
            weights += [
                vector("conv.in_proj.bias", "conv_in_bias", 3 * hidden),
                vector("conv.conv.bias", "conv_bias", hidden),
                vector("conv.out_proj.bias", "conv_out_bias", hidden),
            ]
        return tuple(weights)

    @property
    def workspace(self) -> Mapping[str, int]:
        """See `Block`."""
        return {"normed": self.hidden_size, "projected": 3 * self.hidden_size, "convolved": self.hidden_size}

    @property
    def sizes(self) -> Mapping[str, int]:
        """See `Block`."""
        return {"hidden_size": self.hidden_size}

    @property
    def summary(self) -> str:
        """How far it goes back."""
        return f"short convolutions of {self.num_taps} tokens"

    @property
    def state(self) -> Fixed:
        """The last inputs of the convolution."""
        return Fixed(short_conv_state_bytes(self.hidden_size, self.num_taps))

    @property
    def alike(self) -> ShortConv:
        """See `Block`."""
        return self

    @property
    def residue(self) -> Residue:
        """See `Block`."""
        return Residue.of(self.post_norm)

    def record(self, recorder: BlockRecorder) -> None:
        """See `Block`."""
        normed = recorder.enter(self.norm, "conv_in")
        projected = recorder.rows("projected", 3 * self.hidden_size)
        recorder.linear(normed, "conv_in", projected)
        convolved = recorder.input("conv_out", "convolved")
        taps = Tensor(recorder.vector("conv").address, (self.hidden_size, self.num_taps), DType.F32)
        state, runs = recorder.state, recorder.arrays.runs
        short_conv(
            recorder.commands,
            recorder.kernels,
            recorder.info,
            projected=projected,
            taps=taps,
            bias=recorder.vector("conv_bias") if self.has_bias else None,
            state=state,
            runs=runs,
            positions=recorder.arrays.positions,
            out=convolved,
        )
        recorder.barrier()
        short_conv_state(recorder.commands, recorder.kernels, projected=projected, taps=taps, state=state, runs=runs)
        recorder.linear(convolved, "conv_out", recorder.branch)
        recorder.leave(self.residue)
