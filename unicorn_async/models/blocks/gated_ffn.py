"""The gated feed-forward network: down(act(gate(x)) * up(x))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.models.block_recorder import BRANCH
from unicorn_async.models.blocks.declarations import Residue, WeightSpec
from unicorn_async.ops.gated import gated
from unicorn_async.ops.linear import Epilogue, fuses_gate, leaves_blocks
from unicorn_async.ops.rows import BlockRows
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.rules import WeightKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.config import Activation
    from unicorn_async.models.block_recorder import BlockRecorder
    from unicorn_async.models.blocks.declarations import Norm
    from unicorn_async.ops.rows import Rows
    from unicorn_async.tensor import Tensor


@dataclass(frozen=True, slots=True)
class GatedNetwork:
    """act(gate(x)) * up(x) of `width` columns; `gate_up` and `down` are destinations of weights."""

    width: int
    activation: Activation
    gate_up: str
    down: str

    def record(self, recorder: BlockRecorder, x: Rows, *, waits: bool = True) -> Rows:
        """Record it; returns the activations, in the form that `down` reads.

        Where it is one dispatch, that has no barrier behind it unless it `waits`.
        """
        num_tokens, width = recorder.num_tokens, self.width
        matrix = recorder.weight(self.gate_up)
        if fuses_gate(recorder.info, matrix, num_tokens):
            out: Tensor | BlockRows = recorder.rows("gated", width)
            wanted = recorder.input(self.down, "gated")
            if isinstance(wanted, BlockRows) and leaves_blocks(recorder.info, matrix, num_tokens):
                # Not into the scratch, which holds the input. Blocks are smaller than the floats whose place they take.
                out = BlockRows.at(recorder.rows("gated", width).address, num_tokens, width)
            epilogue = Epilogue(gate=self.activation)
            recorder.linear(x, self.gate_up, out, epilogue=epilogue, waits=waits, spare=BRANCH)
            return out
        gate_up = recorder.rows("gate_up", 2 * width)
        recorder.linear(x, self.gate_up, gate_up, spare=BRANCH)
        activated = recorder.input(self.down, "gated")
        gated(
            recorder.commands,
            recorder.kernels,
            recorder.info,
            gate_up=gate_up,
            out=activated,
            activation=self.activation,
        )
        recorder.barrier()
        return activated


@dataclass(frozen=True, slots=True)
class GatedFFN:
    """A gated FFN (hidden_size → intermediate_size → hidden_size) behind `norm`, and with `post_norm` before one.

    Gate and up lie in one destination, so that one dispatch reads both; with `is_fused` they are one tensor on disk.
    What it leaves is multiplied by `residual_scale`. A parallel one reads the stream that the block before it has read,
    through the same norm.
    """

    hidden_size: int
    intermediate_size: int
    activation: Activation
    norm: Norm | None
    post_norm: Norm | None = None
    is_fused: bool = False
    is_parallel: bool = False
    residual_scale: float = 1.0
    factor: WeightSpec | None = None

    @property
    def norms(self) -> tuple[Norm, ...]:
        """See `Block`."""
        return tuple(norm for norm in (self.norm, self.post_norm) if norm is not None)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """Norms, then gate, up and down."""
        width, hidden = self.intermediate_size, self.hidden_size
        kind, group = WeightKind.MATRIX, MemoryGroup.FFN
        own = (None if self.is_parallel else self.norm, self.post_norm)
        gate_up = [
            WeightSpec("mlp.gate_proj.weight", (width, hidden), "gate_up", kind, group, is_gathered=True),
            WeightSpec("mlp.up_proj.weight", (width, hidden), "gate_up", kind, group, width, is_gathered=True),
        ]
        if self.is_fused:
            fused = WeightSpec("mlp.gate_up_proj.weight", (2 * width, hidden), "gate_up", kind, group, is_gathered=True)
            gate_up = [fused]
        return (
            *(norm.weight for norm in own if norm is not None),
            *gate_up,
            WeightSpec("mlp.down_proj.weight", (hidden, width), "down", kind, group, is_gathered=True),
            *(() if self.factor is None else (self.factor,)),
        )

    @property
    def workspace(self) -> Mapping[str, int]:
        """See `Block`."""
        return {
            "normed": self.hidden_size,
            "gate_up": 2 * self.intermediate_size,
            "gated": self.intermediate_size,
        }

    @property
    def sizes(self) -> Mapping[str, int]:
        """See `Block`."""
        return {"intermediate_size": self.intermediate_size}

    @property
    def summary(self) -> str:
        """Its width and activation."""
        return f"FFN {self.intermediate_size} ({self.activation.value})"

    @property
    def state(self) -> None:
        """It keeps nothing."""

    @property
    def alike(self) -> GatedFFN:
        """See `Block`."""
        return self

    @property
    def residue(self) -> Residue:
        """See `Block`."""
        return Residue.of(self.post_norm, self.residual_scale, self.factor)

    def record(self, recorder: BlockRecorder) -> None:
        """See `Block`."""
        normed = recorder.enter(self.norm, "gate_up", adds_after=self.is_parallel)
        network = GatedNetwork(self.intermediate_size, self.activation, "gate_up", "down")
        recorder.linear(network.record(recorder, normed), "down", recorder.branch, spare="gate_up")
        recorder.leave(self.residue)
