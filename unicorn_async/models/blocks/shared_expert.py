"""The expert of a mixture that all tokens pass, beside those that each of them takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.models.blocks.declarations import WeightSpec
from unicorn_async.models.blocks.gated_ffn import GatedNetwork
from unicorn_async.ops.rows import BlockRows
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.rules import WeightKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.config import Activation
    from unicorn_async.models.block_recorder import BlockRecorder
    from unicorn_async.ops.rows import Rows
    from unicorn_async.tensor import Tensor

_GATE_UP, _DOWN = "shared_gate_up", "shared_down"


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """A gated FFN whose modules on disk are those of `module`.

    With `gate` what it leaves is multiplied by the sigmoid of a row's product with the token: the name of that row's
    tensor, which the router has behind those of the experts. With `is_fused` gate and up are one tensor on disk.
    """

    intermediate_size: int
    module: str
    gate: str = ""
    is_fused: bool = False

    def weights(self, hidden_size: int) -> tuple[WeightSpec, ...]:
        """Gate, up and down, as `Block.weights`."""
        width, kind, group = self.intermediate_size, WeightKind.MATRIX, MemoryGroup.FFN
        gate_up = [
            WeightSpec(f"{self.module}.gate_proj.weight", (width, hidden_size), _GATE_UP, kind, group),
            WeightSpec(f"{self.module}.up_proj.weight", (width, hidden_size), _GATE_UP, kind, group, width),
        ]
        if self.is_fused:
            gate_up = [
                WeightSpec(f"{self.module}.gate_up_proj.weight", (2 * width, hidden_size), _GATE_UP, kind, group)
            ]
        return (
            *gate_up,
            WeightSpec(f"{self.module}.down_proj.weight", (hidden_size, width), _DOWN, kind, group),
        )

    def workspace(self, hidden_size: int) -> Mapping[str, int]:
        """As `Block.workspace`."""
        width = self.intermediate_size
        return {"gate_up": 2 * width, "gated": width, "shared_output": hidden_size}

    def activate(self, recorder: BlockRecorder, normed: Tensor, rows: Rows, activation: Activation) -> Rows:
        """Record its activations, maybe without a barrier; `rows` are `normed` as the other experts read it."""
        is_alike = isinstance(rows, BlockRows) and isinstance(recorder.input(_GATE_UP, "normed"), BlockRows)
        network = GatedNetwork(self.intermediate_size, activation, _GATE_UP, _DOWN)
        return network.record(recorder, rows if is_alike else normed, waits=False)

    def record(self, recorder: BlockRecorder, activated: Rows) -> Tensor:
        """Record what it makes of these, without its gate and a barrier; returns that, (tokens, hidden_size) f32."""
        out = recorder.rows("shared_output", recorder.hidden.shape[1])
        recorder.linear(activated, _DOWN, out, waits=False)
        return out
