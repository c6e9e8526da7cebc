"""How the choice of a mixture's experts is recorded, by itself or with the router's product before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.models.blocks.expert_weights import ROUTER, ROUTER_BIAS
from unicorn_async.ops.routing import expert_tiles, route, router, sorts_where_routed
from unicorn_async.tensor import Tensor

if TYPE_CHECKING:
    from unicorn_async.models.block_recorder import BlockRecorder
    from unicorn_async.ops.routing import Routing, TiledPairs

CORRECTION, SCALES = "router_correction", "expert_scales"
ROUTED = "routers_done"  # counts workgroups, and is zero between dispatches


@dataclass(frozen=True, slots=True)
class ExpertRoutes:
    """A router whose product may have a bias, what experts are chosen by a correction, and their outputs scales.

    Both ways leave at the address `chosen` (tokens, num_chosen) u32, in `weights` (tokens, num_chosen) f32, and the
    sorted `pairs`, with a barrier behind them.
    """

    routing: Routing
    has_bias: bool
    is_corrected: bool
    is_scaled: bool

    def record(self, recorder: BlockRecorder, logits: Tensor, chosen: int, weights: Tensor, pairs: TiledPairs) -> None:
        """Record the choice of experts by `logits`, (tokens, num_experts or more) f32, and sorting the pairs."""
        commands, kernels, info = recorder.commands, recorder.kernels, recorder.info
        sorts = sorts_where_routed(self.routing, recorder.num_tokens)
        route(
            commands,
            kernels,
            info,
            routing=self.routing,
            logits=logits,
            correction=self._correction(recorder),
            scales=self._scales(recorder),
            chosen=chosen,
            weights=weights,
            pairs=pairs if sorts else None,
        )
        recorder.barrier()
        if not sorts:
            experts = self.routing.num_experts
            expert_tiles(commands, kernels, info, num_experts=experts, chosen=chosen, pairs=pairs)
            recorder.barrier()

    def record_at_once(
        self, recorder: BlockRecorder, x: Tensor, logits: Tensor, chosen: int, weights: Tensor, pairs: TiledPairs
    ) -> None:
        """As `record`, behind the product of `x`, (tokens, hidden_size) f32, in the same dispatch.

        So nothing runs beside the choice.
        """
        weight = recorder.weight(ROUTER)
        assert isinstance(weight, Tensor), "routers stay in single precision"
        recorder.commands.label(ROUTER)
        router(
            recorder.commands,
            recorder.kernels,
            recorder.info,
            routing=self.routing,
            x=x,
            weight=weight,
            bias=recorder.vector(ROUTER_BIAS) if self.has_bias else None,
            logits=logits,
            done=recorder.rows(ROUTED, 1).address,
            correction=self._correction(recorder),
            scales=self._scales(recorder),
            chosen=chosen,
            weights=weights,
            pairs=pairs,
        )
        recorder.barrier()

    def _correction(self, recorder: BlockRecorder) -> Tensor | None:
        return recorder.vector(CORRECTION) if self.is_corrected else None

    def _scales(self, recorder: BlockRecorder) -> Tensor | None:
        return recorder.vector(SCALES) if self.is_scaled else None
