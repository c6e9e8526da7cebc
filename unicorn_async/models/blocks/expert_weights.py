"""The matrices of experts and their biases: where they lie on disk, and on the device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.models.blocks.declarations import WeightSpec, vector
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.rules import WeightKind

if TYPE_CHECKING:
    from collections.abc import Iterator

GATE_UP, DOWN, ROUTER = "experts_gate_up", "experts_down", "router"
GATE, UP = "experts_gate", "experts_up"
GATE_UP_BIAS, DOWN_BIAS, ROUTER_BIAS = (f"{name}_bias" for name in (GATE_UP, DOWN, ROUTER))


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """How many experts there are, how wide, and how their weights lie; all else as in `Experts`."""

    num_experts: int
    hidden_size: int
    width: int
    is_stacked: bool
    by_turns: bool
    are_gates_apart: bool

    def matrices(self) -> Iterator[WeightSpec]:
        """Yield gate, up and down of each expert."""
        experts, width, hidden = self.num_experts, self.width, self.hidden_size
        kind, group = WeightKind.MATRIX, MemoryGroup.EXPERTS
        if self.is_stacked:
            for name, dest, rows, columns in (("gate_up", GATE_UP, 2 * width, hidden), ("down", DOWN, hidden, width)):
                shape = (experts * rows, columns)
                spec = WeightSpec(f"mlp.experts.{name}_proj", shape, dest, kind, group, stacked=experts)
                yield replace(spec, is_transposed=self.by_turns)
            return
        places = ((GATE, 0), (UP, 0)) if self.are_gates_apart else ((GATE_UP, 0), (GATE_UP, experts))
        for part, (dest, first) in zip(("gate", "up"), places, strict=True):
            for expert in range(experts):
                name = f"mlp.experts.{expert}.{part}_proj.weight"
                yield WeightSpec(name, (width, hidden), dest, kind, group, (first + expert) * width)
        for expert in range(experts):
            name = f"mlp.experts.{expert}.down_proj.weight"
            yield WeightSpec(name, (hidden, width), DOWN, kind, group, expert * hidden)

    def biases(self) -> Iterator[WeightSpec]:
        """Yield the biases of all experts, those of gates before those of what they are for."""
        experts, width = self.num_experts, self.width
        parts = [("gate", GATE_UP_BIAS, width), ("up", GATE_UP_BIAS, width), ("down", DOWN_BIAS, self.hidden_size)]
        if self.is_stacked:
            parts[:2] = [("gate_up", GATE_UP_BIAS, 2 * width)]
        row: dict[str, int] = {}
        for part, dest, size in parts:
            whole = vector(f"mlp.experts.{part}_proj_bias", dest, experts * size, row.get(dest, 0))
            row[dest] = whole.row_offset + experts * size
            yield replace(whole, stacked=experts)
