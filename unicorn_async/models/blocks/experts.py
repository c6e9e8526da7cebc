"""The mixture of experts: a router takes a few gated feed-forward networks for each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.models.blocks.declarations import Residue, WeightSpec, vector
from unicorn_async.ops.expert_linear import ExpertRows, TiledPairs, expert_linear
from unicorn_async.ops.linear import prepare_input
from unicorn_async.ops.linear_plans.experts import expert_form, pairs_of_a_tile
from unicorn_async.ops.routing import TILE_WORDS, expert_sum, expert_tiles, num_tiles, route
from unicorn_async.ops.rows import BlockRows, HalfRows, RowForm
from unicorn_async.tensor import DType, MixedTensor, Tensor, element_of
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.rules import WeightKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from unicorn_async.config import Activation
    from unicorn_async.models.block_recorder import BlockRecorder
    from unicorn_async.models.blocks.declarations import Norm
    from unicorn_async.models.blocks.shared_expert import SharedExpert
    from unicorn_async.ops.routing import Routing
    from unicorn_async.ops.rows import Rows
    from unicorn_async.tensor import QuantTensor, Weight

GATE_UP, DOWN, ROUTER, CORRECTION = "experts_gate_up", "experts_down", "router", "router_correction"


@dataclass(frozen=True, slots=True)
class Experts:
    """Gated FFNs (hidden_size → intermediate_size → hidden_size) behind `norm`, of which each token takes some.

    All experts' gates lie in one destination, and what they are for behind them. The router stays f32 on the device, so
    that a token takes the same experts whatever weights become, and however many tokens a step has. With `is_corrected`
    what experts are chosen by has a correction of each. What a `shared` expert leaves is added.
    """

    hidden_size: int
    intermediate_size: int
    activation: Activation
    routing: Routing
    norm: Norm
    shared: SharedExpert | None = None
    is_corrected: bool = False

    @property
    def norms(self) -> tuple[Norm, ...]:
        """See `Block`."""
        return (self.norm,)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """The norm, the router, the shared expert, then gate, up and down of each expert."""
        return tuple(self._weights())

    @property
    def workspace(self) -> Mapping[str, int]:
        """See `Block`; of the router's results each token has its experts, and the step the tiles of their rows."""
        chosen = self.routing.num_chosen
        return {
            "normed": self.hidden_size,
            "normed_rows": self.hidden_size,
            "router_logits": self._router_rows,
            "chosen_experts": chosen,
            "expert_weights": chosen,
            "expert_order": chosen,
            "expert_tiles": TILE_WORDS * chosen,
            "experts_gated": chosen * self.intermediate_size,
            "experts_gated_rows": chosen * self.intermediate_size,
            "expert_outputs": chosen * self.hidden_size,
            **({} if self.shared is None else self.shared.workspace(self.hidden_size)),
        }

    @property
    def sizes(self) -> Mapping[str, int]:
        """See `Block`."""
        sizes = {"moe_intermediate_size": self.intermediate_size}
        if self.shared is not None:
            sizes["shared_expert_intermediate_size"] = self.shared.intermediate_size
        return sizes

    @property
    def summary(self) -> str:
        """How many experts there are, and how many a token takes."""
        taken = f"{self.routing.num_chosen} of {self.routing.num_experts} experts"
        shared = "" if self.shared is None else f" and one of {self.shared.intermediate_size} for all tokens"
        return f"{taken} of {self.intermediate_size}{shared} ({self.activation.value})"

    @property
    def state(self) -> None:
        """It keeps nothing."""

    @property
    def alike(self) -> Experts:
        """See `Block`."""
        return self

    @property
    def residue(self) -> Residue:
        """See `Block`."""
        return Residue()

    def record(self, recorder: BlockRecorder) -> None:
        """See `Block`."""
        normed = recorder.rows("normed", self.hidden_size)
        recorder.add_norm(self.norm, out=normed)
        logits = recorder.rows("router_logits", self._router_rows)
        recorder.linear(normed, ROUTER, logits)
        shared = None if self.shared is None else self.shared.record(recorder, normed, self.activation)
        chosen, weights = self._pairs(recorder, "chosen_experts"), self._pairs(recorder, "expert_weights")
        route(
            recorder.commands,
            recorder.kernels,
            recorder.info,
            routing=self.routing,
            logits=logits,
            correction=recorder.vector(CORRECTION) if self.is_corrected else None,
            chosen=chosen.address,
            weights=weights,
        )
        recorder.barrier()
        outputs = self._multiply(recorder, normed, self._sort(recorder, chosen.address))
        expert_sum(
            recorder.commands,
            recorder.kernels,
            outputs=outputs,
            weights=weights,
            out=recorder.branch,
            shared=shared,
            gates=self._gates(logits),
        )
        recorder.barrier()
        recorder.leave(self.residue)

    @property
    def _router_rows(self) -> int:
        """Rows of the router: one an expert, and behind them the shared expert's gate."""
        return self.routing.num_experts + (self.shared is not None and bool(self.shared.gate))

    def _gates(self, logits: Tensor) -> Tensor | None:
        """The logits from that of the shared expert's gate on, if it has one."""
        experts = self.routing.num_experts
        if self._router_rows == experts:
            return None
        return Tensor(logits.address + experts * DType.F32.itemsize, logits.shape, DType.F32)

    def _pairs(self, recorder: BlockRecorder, name: str) -> Tensor:
        return recorder.rows(name, self.routing.num_chosen)

    def _sort(self, recorder: BlockRecorder, chosen: int) -> TiledPairs:
        """Record sorting the step's pairs; no barrier."""
        num_pairs, experts = recorder.num_tokens * self.routing.num_chosen, self.routing.num_experts
        elements = [element_of(_whole(recorder.weight(name))) for name in (GATE_UP, DOWN)]
        tile = pairs_of_a_tile(recorder.info, elements, num_pairs, experts)
        tiles = recorder.rows("expert_tiles", TILE_WORDS, num_tiles(num_pairs, experts, tile)).address
        pairs = TiledPairs(num_pairs, tile, self._pairs(recorder, "expert_order").address, tiles)
        expert_tiles(
            recorder.commands,
            recorder.kernels,
            num_experts=experts,
            num_pairs=num_pairs,
            tile=tile,
            chosen=chosen,
            order=pairs.order,
            tiles=pairs.tiles,
        )
        return pairs

    def _multiply(self, recorder: BlockRecorder, normed: Tensor, pairs: TiledPairs) -> Tensor:
        """Record the experts' networks; returns what each of a token's leaves, (tokens, num_chosen, hidden_size)."""
        experts, width, hidden = self.routing.num_experts, self.intermediate_size, self.hidden_size
        x = self._input(recorder, GATE_UP, "normed_rows", normed, pairs.tile)
        gated = Tensor(
            recorder.rows("experts_gated", width, pairs.num_pairs).address, (pairs.num_pairs, width), DType.F32
        )
        gates = ExpertRows(experts, width, width, experts * width)
        self._linear(recorder, GATE_UP, x, gates, pairs, gated, shared_by=self.routing.num_chosen)
        activated = self._input(recorder, DOWN, "experts_gated_rows", gated, pairs.tile)
        outputs = recorder.rows("expert_outputs", hidden, pairs.num_pairs)
        self._linear(recorder, DOWN, activated, ExpertRows(experts, hidden, hidden), pairs, outputs, shared_by=1)
        return Tensor(outputs.address, (recorder.num_tokens, self.routing.num_chosen, hidden), DType.F32)

    def _input(self, recorder: BlockRecorder, weight: str, name: str, floats: Tensor, tile: int) -> Rows:
        """Record bringing rows into the form that the experts read, with a barrier behind it."""
        form = expert_form(element_of(_whole(recorder.weight(weight))), tile)
        rows: Rows = floats
        if form is not RowForm.FLOATS:  # no other form takes more room
            address = recorder.rows(name, floats.shape[1], floats.shape[0]).address
            kind = BlockRows if form is RowForm.BLOCKS else HalfRows
            rows = kind.at(address, *floats.shape)
            prepare_input(recorder.commands, recorder.kernels, recorder.info, x=floats, out=rows)
        recorder.barrier()
        return rows

    def _linear(
        self,
        recorder: BlockRecorder,
        name: str,
        x: Rows,
        rows: ExpertRows,
        pairs: TiledPairs,
        out: Tensor,
        *,
        shared_by: int,
    ) -> None:
        recorder.commands.label(name)
        expert_linear(
            recorder.commands,
            recorder.kernels,
            recorder.info,
            x=x,
            weight=_whole(recorder.weight(name)),
            rows=rows,
            pairs=pairs,
            shared_by=shared_by,
            out=out,
            gate=self.activation if rows.up else None,
        )
        recorder.barrier()

    def _weights(self) -> Iterator[WeightSpec]:
        experts, width, hidden = self.routing.num_experts, self.intermediate_size, self.hidden_size
        yield self.norm.weight
        yield WeightSpec("mlp.gate.weight", (experts, hidden), ROUTER, WeightKind.VECTOR, MemoryGroup.NORMS)
        if self.shared is not None and self.shared.gate:
            shape, norms = (1, hidden), MemoryGroup.NORMS
            yield WeightSpec(self.shared.gate, shape, ROUTER, WeightKind.VECTOR, norms, experts)
        if self.is_corrected:
            yield vector("mlp.gate.e_score_correction_bias", CORRECTION, experts)
        if self.shared is not None:
            yield from self.shared.weights(hidden)
        kind, group = WeightKind.MATRIX, MemoryGroup.EXPERTS
        for part, first in (("gate", 0), ("up", experts)):
            for expert in range(experts):
                name = f"mlp.experts.{expert}.{part}_proj.weight"
                yield WeightSpec(name, (width, hidden), GATE_UP, kind, group, (first + expert) * width)
        for expert in range(experts):
            name = f"mlp.experts.{expert}.down_proj.weight"
            yield WeightSpec(name, (hidden, width), DOWN, kind, group, expert * hidden)


def _whole(weight: Weight) -> Tensor | QuantTensor:
    assert not isinstance(weight, MixedTensor), "experts' weights have one type"
    return weight
