"""The mixture of experts: a router takes a few gated feed-forward networks for each token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.models.blocks.declarations import Residue, WeightSpec, vector
from unicorn_async.models.blocks.expert_routes import CORRECTION, ROUTED, SCALES, ExpertRoutes
from unicorn_async.models.blocks.expert_weights import (
    DOWN,
    DOWN_BIAS,
    GATE,
    GATE_UP,
    GATE_UP_BIAS,
    ROUTER,
    ROUTER_BIAS,
    UP,
    ExpertWeights,
)
from unicorn_async.ops.expert_linear import ExpertRows, expert_linear, expert_linear_sum
from unicorn_async.ops.gated import gated
from unicorn_async.ops.linear import prepare_input
from unicorn_async.ops.linear_plans.experts import blocks_outputs, expert_form, pairs_of_a_tile, sums_outputs
from unicorn_async.ops.routing import (
    TILE_WORDS,
    TiledPairs,
    expert_sum,
    multiplies_where_routed,
    num_tiles,
)
from unicorn_async.ops.rows import BlockRows, HalfRows, RowForm
from unicorn_async.tensor import DType, MixedTensor, QuantTensor, Tensor, element_of
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.rules import WeightKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from unicorn_async.config import Activation
    from unicorn_async.models.block_recorder import BlockRecorder
    from unicorn_async.models.blocks.declarations import Norm
    from unicorn_async.models.blocks.shared_expert import SharedExpert
    from unicorn_async.ops.routing import Routing
    from unicorn_async.ops.rows import Rows
    from unicorn_async.tensor import ElementType, Weight


@dataclass(frozen=True, slots=True)
class Experts:
    """Gated FFNs (hidden_size → intermediate_size → hidden_size) behind `norm`, of which each token takes some.

    All experts' gates lie in one destination, and what they are for behind them, or with `are_gates_apart` in one of
    its own, because a file has it in other types. The router stays f32 on the device, so that a token takes the same
    experts whatever weights become, and however many tokens a step has. With `is_corrected`
    what experts are chosen by has a correction of each; with `is_scaled` what an expert leaves is multiplied by a scale
    of its own. The router reads what the experts do, or the stream behind a `router_norm`, times hidden_size^-0.5. What
    a `shared` expert leaves is added. With `is_stacked` those of all experts are one tensor on disk, and an expert's
    gate and up side by side in it, or row by row `by_turns`, which files have in blocks alone. With a `bias` router and
    experts have biases, those of all experts in one tensor. What all leave is multiplied by `residual_scale`.
    """

    hidden_size: int
    intermediate_size: int
    activation: Activation
    routing: Routing
    norm: Norm
    shared: SharedExpert | None = None
    is_corrected: bool = False
    is_stacked: bool = False
    by_turns: bool = False
    bias: bool = False
    is_scaled: bool = False
    router_norm: Norm | None = None
    are_gates_apart: bool = False
    residual_scale: float = 1.0

    @property
    def norms(self) -> tuple[Norm, ...]:
        """See `Block`."""
        return (self.norm,) if self.router_norm is None else (self.norm, self.router_norm)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """The norm, the router, the shared expert, biases, then gate, up and down of each expert."""
        return tuple(self._weights())

    @property
    def workspace(self) -> Mapping[str, int]:
        """See `Block`; of the router's results each token has its experts, and the step the tiles of their rows."""
        chosen = self.routing.num_chosen
        return {
            "normed": self.hidden_size,
            "normed_rows": self.hidden_size,
            **({} if self.router_norm is None else {"router_input": self.hidden_size}),
            "router_logits": self._router_rows,
            ROUTED: 1,
            "chosen_experts": chosen,
            "expert_weights": chosen,
            "expert_order": chosen,
            "expert_tiles": TILE_WORDS * chosen,
            **({GATE_UP: 2 * chosen * self.intermediate_size} if self.are_gates_apart else {}),
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
        return Residue(scale=self.residual_scale)

    def record(self, recorder: BlockRecorder) -> None:
        """See `Block`."""
        self.mix(recorder, recorder.branch)
        recorder.leave(self.residue)

    def mix(self, recorder: BlockRecorder, out: Tensor) -> None:
        """Record what a token's experts make of the stream into `out`, (tokens, hidden_size) f32."""
        normed = recorder.rows("normed", self.hidden_size)
        recorder.add_norm(self.norm, out=normed)
        pairs = self._pairs(recorder)
        inputs = self._inputs(recorder, normed, pairs.tile)  # beside the router
        logits = recorder.rows("router_logits", self._router_rows)
        chosen = recorder.rows("chosen_experts", self.routing.num_chosen).address
        weights = recorder.rows("expert_weights", self.routing.num_chosen)
        router_input, own = self._router_input(recorder, normed), None
        routes = ExpertRoutes(self.routing, self.bias, self.is_corrected, self.is_scaled)
        if self.shared is None and multiplies_where_routed(self.routing, recorder.num_tokens):
            routes.record_at_once(recorder, router_input, logits, chosen, weights, pairs)
        else:
            recorder.linear(router_input, ROUTER, logits)
            if self.shared is not None:  # what it does runs beside the choice of the others, and beside their gates
                own = self.shared.activate(recorder, normed, inputs[-1], self.activation)
            routes.record(recorder, logits, chosen, weights, pairs)
        shared = None if self.shared is None or own is None else self.shared.record(recorder, own)
        activated = self._activate(recorder, inputs, pairs)
        down = _whole(recorder.weight(DOWN))
        gates = self._gates(logits)
        if isinstance(activated, BlockRows) and sums_outputs(
            element_of(down), recorder.num_tokens, pairs.num_pairs, self.routing.num_experts
        ):
            assert isinstance(down, QuantTensor)
            self._sum_at_once(recorder, activated, down, chosen, weights, out, shared, gates)
        else:
            self._sum(recorder, activated, pairs, weights, out, shared, gates)

    def _router_input(self, recorder: BlockRecorder, normed: Tensor) -> Tensor:
        """Record what the router reads, if it is other than what the experts do."""
        if self.router_norm is None:
            return normed
        own = recorder.rows("router_input", self.hidden_size)
        recorder.add_norm(self.router_norm, out=own, scale=self.hidden_size**-0.5)
        return own

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

    def _pairs(self, recorder: BlockRecorder) -> TiledPairs:
        """Where the step's pairs will lie, and how they are cut."""
        num_pairs, experts = recorder.num_tokens * self.routing.num_chosen, self.routing.num_experts
        tile = pairs_of_a_tile(recorder.info, self._elements(recorder), num_pairs, experts)
        order = recorder.rows("expert_order", self.routing.num_chosen).address
        tiles = recorder.rows("expert_tiles", TILE_WORDS, num_tiles(num_pairs, experts, tile)).address
        return TiledPairs(num_pairs, tile, order, tiles)

    @property
    def _inner(self) -> tuple[str, ...]:
        """The destinations of what makes the activations."""
        return (GATE, UP) if self.are_gates_apart else (GATE_UP,)

    def _elements(self, recorder: BlockRecorder) -> list[ElementType]:
        return [element_of(_whole(recorder.weight(name))) for name in (*self._inner, DOWN)]

    def _inputs(self, recorder: BlockRecorder, normed: Tensor, tile: int) -> list[Rows]:
        """Record the input of each of `_inner` in the form that it reads; no barrier. Those of one form are one."""
        inputs: dict[RowForm, Rows] = {}
        forms = [expert_form(element, tile) for element in self._elements(recorder)[:-1]]
        for form, name in zip(forms, self._inner, strict=True):
            if form not in inputs:  # of two at most one is no f32
                inputs[form] = self._input(recorder, name, "normed_rows", normed, tile)
        return [inputs[form] for form in forms]

    def _activate(self, recorder: BlockRecorder, inputs: Sequence[Rows], pairs: TiledPairs) -> Rows:
        """Record the experts' networks up to their activations; returns these, (pairs, width), as `down` reads them."""
        if self.are_gates_apart:
            return self._activate_apart(recorder, inputs, pairs)
        (x,) = inputs
        experts, width = self.routing.num_experts, self.intermediate_size
        taken, gates = self.routing.num_chosen, ExpertRows(experts, width, width, experts * width)
        if self.by_turns:
            gates = ExpertRows(experts, width, 2 * width, 1, 2)
        elif self.is_stacked:
            gates = ExpertRows(experts, width, 2 * width, width)
        if blocks_outputs(self._elements(recorder), pairs.tile, width):
            blocks = BlockRows.at(self._gated(recorder, "experts_gated_rows", pairs).address, pairs.num_pairs, width)
            self._linear(recorder, GATE_UP, x, gates, pairs, blocks, shared_by=taken)
            return blocks
        outputs = self._gated(recorder, "experts_gated", pairs)
        self._linear(recorder, GATE_UP, x, gates, pairs, outputs, shared_by=taken)
        activated = self._input(recorder, DOWN, "experts_gated_rows", outputs, pairs.tile)
        recorder.barrier()
        return activated

    def _activate_apart(self, recorder: BlockRecorder, inputs: Sequence[Rows], pairs: TiledPairs) -> Rows:
        """Record the same where gates and what they are for are two products, side by side in each pair's row."""
        experts, width, num_pairs = self.routing.num_experts, self.intermediate_size, pairs.num_pairs
        both, rows = recorder.rows(GATE_UP, 2 * width, num_pairs), ExpertRows(experts, width, width)
        for index, (name, x) in enumerate(zip(self._inner, inputs, strict=True)):
            out = replace(both, address=both.address + DType.F32.itemsize * width * index)
            self._linear(recorder, name, x, rows, pairs, out, shared_by=self.routing.num_chosen)
        out = self._gated(recorder, "experts_gated", pairs)
        gated(recorder.commands, recorder.kernels, recorder.info, gate_up=both, out=out, activation=self.activation)
        recorder.barrier()
        activated = self._input(recorder, DOWN, "experts_gated_rows", out, pairs.tile)
        recorder.barrier()
        return activated

    def _gated(self, recorder: BlockRecorder, name: str, pairs: TiledPairs) -> Tensor:
        return recorder.rows(name, self.intermediate_size, pairs.num_pairs)

    def _sum(
        self,
        recorder: BlockRecorder,
        activated: Rows,
        pairs: TiledPairs,
        weights: Tensor,
        out: Tensor,
        shared: Tensor | None,
        gates: Tensor | None,
    ) -> None:
        """Record what each of a token's experts leaves, and their sum with what the shared one has left."""
        experts, hidden = self.routing.num_experts, self.hidden_size
        outputs = recorder.rows("expert_outputs", hidden, pairs.num_pairs)
        self._linear(recorder, DOWN, activated, ExpertRows(experts, hidden, hidden), pairs, outputs, shared_by=1)
        of_tokens = Tensor(outputs.address, (recorder.num_tokens, self.routing.num_chosen, hidden), DType.F32)
        expert_sum(
            recorder.commands,
            recorder.kernels,
            outputs=of_tokens,
            weights=weights,
            out=out,
            shared=shared,
            gates=gates,
        )
        recorder.barrier()

    def _sum_at_once(
        self,
        recorder: BlockRecorder,
        activated: BlockRows,
        down: QuantTensor,
        chosen: int,
        weights: Tensor,
        out: Tensor,
        shared: Tensor | None,
        gates: Tensor | None,
    ) -> None:
        recorder.commands.label(DOWN)
        expert_linear_sum(
            recorder.commands,
            recorder.kernels,
            recorder.info,
            x=activated,
            weight=down,
            rows=ExpertRows(self.routing.num_experts, self.hidden_size, self.hidden_size),
            chosen=chosen,
            weights=weights,
            out=out,
            shared=shared,
            gates=gates,
            bias=recorder.vector(DOWN_BIAS) if self.bias else None,
        )
        recorder.barrier()

    def _input(self, recorder: BlockRecorder, weight: str, name: str, floats: Tensor, tile: int) -> Rows:
        """Record bringing rows into the form that the experts read; no barrier."""
        form = expert_form(element_of(_whole(recorder.weight(weight))), tile)
        rows: Rows = floats
        if form is not RowForm.FLOATS:  # no other form takes more room
            address = recorder.rows(name, floats.shape[1], floats.shape[0]).address
            kind = BlockRows if form is RowForm.BLOCKS else HalfRows
            rows = kind.at(address, *floats.shape)
            prepare_input(recorder.commands, recorder.kernels, recorder.info, x=floats, out=rows)
        return rows

    def _linear(
        self,
        recorder: BlockRecorder,
        name: str,
        x: Rows,
        rows: ExpertRows,
        pairs: TiledPairs,
        out: Tensor | BlockRows,
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
            bias=self._bias(recorder, name) if self.bias else None,
        )
        recorder.barrier()

    def _bias(self, recorder: BlockRecorder, name: str) -> Tensor:
        """The biases of a destination; those of gates and of what they are for are one vector."""
        if name not in (GATE, UP):
            return recorder.vector(f"{name}_bias")
        both, rows = recorder.vector(GATE_UP_BIAS), self.routing.num_experts * self.intermediate_size
        return Tensor(both.address + (DType.F32.itemsize * rows if name == UP else 0), (rows,), DType.F32)

    def _weights(self) -> Iterator[WeightSpec]:
        experts, hidden, width = self.routing.num_experts, self.hidden_size, self.intermediate_size
        for norm in self.norms:
            yield norm.weight
        yield WeightSpec("mlp.gate.weight", (experts, hidden), ROUTER, WeightKind.VECTOR, MemoryGroup.NORMS)
        if self.shared is not None and self.shared.gate:
            shape, norms = (1, hidden), MemoryGroup.NORMS
            yield WeightSpec(self.shared.gate, shape, ROUTER, WeightKind.VECTOR, norms, experts)
        if self.is_corrected:
            yield vector("mlp.gate.e_score_correction_bias", CORRECTION, experts)
        if self.is_scaled:
            yield vector("mlp.gate.per_expert_scale", SCALES, experts)
        if self.shared is not None:
            yield from self.shared.weights(hidden)
        own = ExpertWeights(experts, hidden, width, self.is_stacked, self.by_turns, self.are_gates_apart)
        if self.bias:
            yield vector("mlp.gate.bias", ROUTER_BIAS, experts)
            yield from own.biases()
        yield from own.matrices()


def _whole(weight: Weight) -> Tensor | QuantTensor:
    assert not isinstance(weight, MixedTensor), "experts' weights have one type"
    return weight
