"""Which experts of a mixture each token takes, all of it on the device, and the sum of what they leave.

    route(…)         the experts of each token, and the weights of their outputs; of few tokens, expert_tiles as well
    router(…)        of still fewer tokens the router's product, and route behind it
    expert_tiles(…)  the pairs of a token and an expert, sorted by expert and cut into tiles
    expert_sum(…)    the weighted sum

Pairs are numbered token by token: a token's k experts lie side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError, UnsupportedModelError
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.manifest import ConstantValue
    from unicorn_async.gpu.recorder import Kernels, Recorder

MAX_EXPERTS = 1024  # whose counts and places fit into any device's shared memory
MAX_CHOSEN = 32  # of a token; a lane holds their weights
MAX_GROUPS = 32
TILE_WORDS = 3  # of a tile: its expert, its first place of the order, and its pairs
_MAX_ROUTING_GROUPS = 1024
_MAX_SORTED_TOKENS, _MAX_SORTED_PAIRS = 32, 256  # of a step whose pairs are sorted where they are made
_MAX_ROUTING_LANES = 1024
_SORTING_LANES = 256
_ONE_GROUPS_PAIRS = 512  # that one workgroup sorts as fast as many
_SUMMING_LANES = 64
_MAX_ROUTER_TOKENS = 8  # whose experts the last of the workgroups that multiply chooses
_ROUTER_LANES = 256
_VECTOR = 4


@dataclass(frozen=True, slots=True)
class Routing:
    """How a token's `num_chosen` experts are found among `num_experts` by a router's logits.

    Scores are the logits' softmax, or with `is_sigmoid` each one's sigmoid; what experts are chosen by is the score
    plus the correction, where there is one. Of `num_groups` of neighbouring experts those `groups_kept` take part
    whose two best scores add up to most, or with `by_best` those whose best one is largest. With `normalises` a token's
    weights add up to `scale`, otherwise they are the scores times it. Softmax of the chosen logits alone is softmax
    that `normalises`.

    Raises:
        UnsupportedModelError: no kernel takes such numbers.
    """

    num_experts: int
    num_chosen: int
    is_sigmoid: bool = False
    normalises: bool = False
    scale: float = 1.0
    num_groups: int = 1
    groups_kept: int = 1
    by_best: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.num_experts <= MAX_EXPERTS:
            raise UnsupportedModelError(f"experts: expected 1 to {MAX_EXPERTS}, got {self.num_experts}")
        if not 1 <= self.num_chosen <= min(MAX_CHOSEN, self.num_experts):
            most = min(MAX_CHOSEN, self.num_experts)
            raise UnsupportedModelError(f"experts of a token: expected 1 to {most}, got {self.num_chosen}")
        if not 1 <= self.num_groups <= MAX_GROUPS or self.num_experts % self.num_groups:
            raise UnsupportedModelError(
                f"groups of experts: expected 1 to {MAX_GROUPS} that {self.num_experts} experts fill, "
                f"got {self.num_groups}"
            )
        kept = self.groups_kept * (self.num_experts // self.num_groups)
        if not 1 <= self.groups_kept <= self.num_groups or kept < self.num_chosen:
            raise UnsupportedModelError(
                f"groups of experts that a token takes: expected 1 to {self.num_groups} with {self.num_chosen} experts "
                f"at least, got {self.groups_kept}"
            )


@dataclass(frozen=True, slots=True)
class TiledPairs:
    """Pairs of a token and an expert, sorted by expert and cut into tiles of `tile` at most; by address.

    `order` is (num_pairs) u32, the pairs' numbers, those of an expert one after the other and rising. `tiles` is
    (`num_tiles`) of three u32: an expert, the first place of the order and the number of pairs from there on; those
    that are not needed come last, and have none.
    """

    num_pairs: int
    tile: int
    order: int
    tiles: int


def sorts_where_routed(routing: Routing, num_tokens: int) -> bool:
    """Whether `route` had better sort the pairs of so many tokens itself."""
    return num_tokens <= _MAX_SORTED_TOKENS and num_tokens * routing.num_chosen <= _MAX_SORTED_PAIRS


def route(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    routing: Routing,
    logits: Tensor,
    correction: Tensor | None,
    chosen: int,
    weights: Tensor,
    scales: Tensor | None = None,
    pairs: TiledPairs | None = None,
) -> None:
    """Record the choice of experts; no barrier.

    `logits` is (tokens, num_experts or more) f32, of which the first count; `correction` (num_experts) f32. `chosen` is
    the address of (tokens, num_chosen) u32: the experts by falling score, of equal ones the lower number first, and
    whatever logits are, numbers of experts. `weights` gets (tokens, num_chosen) f32, each times what `scales`,
    (num_experts) f32, have for the expert. Where `sorts_where_routed` allows
    it, `pairs` are what `expert_tiles` makes of the choice. Raises ConfigError for other shapes.
    """
    num_tokens, stride = logits.shape
    _expect_routes(routing, logits, correction, weights, scales)
    constants = {"WORKGROUP": info.subgroup_size, **_routing_constants(info, routing, correction, scales)}
    groups, sorted_fields = min(num_tokens, _MAX_ROUTING_GROUPS), {"order": 0, "tiles": 0, "num_tiles": 0}
    if pairs is not None:
        constants |= {"WORKGROUP": _routing_lanes(info, num_tokens), "SORTS": True}
        constants |= _sorting_constants(routing, num_tokens, pairs)
        groups, sorted_fields = 1, _sorted_fields(routing, pairs)
    kernel = kernels.get("route", constants=constants)
    push = kernel.pack(
        logits=logits.address,
        bias=0 if correction is None else correction.address,
        scales=0 if scales is None else scales.address,
        chosen=chosen,
        weights=weights.address,
        tokens=num_tokens,
        stride=stride,
        scale=routing.scale,
        **sorted_fields,
    )
    recorder.dispatch(kernel, push, groups)


def multiplies_where_routed(routing: Routing, num_tokens: int) -> bool:
    """Whether `router` takes so many tokens."""
    return num_tokens <= _MAX_ROUTER_TOKENS and sorts_where_routed(routing, num_tokens)


def router(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    routing: Routing,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    logits: Tensor,
    done: int,
    correction: Tensor | None,
    chosen: int,
    weights: Tensor,
    pairs: TiledPairs,
    scales: Tensor | None = None,
) -> None:
    """Record logits = x · weight^T + bias and what `route` makes of them, with its sort, in one dispatch; no barrier.

    `x` is (tokens, columns) f32, `weight` (num_experts, columns) f32, `bias` (num_experts) f32, `logits`
    (tokens, num_experts) f32. `done` is the address of a u32, zero, and zero again afterwards. For the rest see
    `route`. Raises ConfigError for other shapes and for more tokens than `multiplies_where_routed` says,
    UnsupportedModelError for columns that are no multiple of four.
    """
    num_tokens, columns = x.shape
    if columns % _VECTOR:
        raise UnsupportedModelError(f"router: expected columns that are a multiple of {_VECTOR}, got {columns}")
    x.expect("router: x", (num_tokens, columns), DType.F32)
    weight.expect("router: weight", (routing.num_experts, columns), DType.F32)
    logits.expect("router: logits", (num_tokens, routing.num_experts), DType.F32)
    if bias is not None:
        bias.expect("router: bias", (routing.num_experts,), DType.F32)
    _expect_routes(routing, logits, correction, weights, scales)
    if not multiplies_where_routed(routing, num_tokens):
        raise ConfigError(f"router: expected {_MAX_ROUTER_TOKENS} tokens of {routing} at most, got {num_tokens}")
    lanes = info.subgroup_size if info.is_software else min(_ROUTER_LANES, info.max_workgroup_invocations)
    constants = {
        "WORKGROUP": lanes,
        "MAX_SUBGROUPS": -(-lanes // info.min_subgroup_size),
        "TOKENS": 1 << (num_tokens - 1).bit_length(),
        **_routing_constants(info, routing, correction, scales),
        **_sorting_constants(routing, num_tokens, pairs),
        **({} if bias is None else {"HAS_ROUTER_BIAS": True}),
    }
    kernel = kernels.get("router", constants=constants)
    push = kernel.pack(
        x=x.address,
        router=weight.address,
        router_bias=0 if bias is None else bias.address,
        logits=logits.address,
        done=done,
        bias=0 if correction is None else correction.address,
        scales=0 if scales is None else scales.address,
        chosen=chosen,
        weights=weights.address,
        columns=columns // _VECTOR,
        tokens=num_tokens,
        stride=logits.shape[1],
        scale=routing.scale,
        **_sorted_fields(routing, pairs),
    )
    recorder.dispatch(kernel, push, routing.num_experts)


def _expect_routes(
    routing: Routing, logits: Tensor, correction: Tensor | None, weights: Tensor, scales: Tensor | None
) -> None:
    num_tokens, stride = logits.shape
    logits.expect("route: logits", (num_tokens, max(stride, routing.num_experts)), DType.F32)
    weights.expect("route: weights", (num_tokens, routing.num_chosen), DType.F32)
    for name, values in (("correction", correction), ("scales", scales)):
        if values is not None:
            values.expect(f"route: {name}", (routing.num_experts,), DType.F32)


def _routing_constants(
    info: DeviceInfo, routing: Routing, correction: Tensor | None, scales: Tensor | None
) -> dict[str, ConstantValue]:
    return {
        "EXPERTS": routing.num_experts,
        "K": routing.num_chosen,
        "PER_LANE": -(-routing.num_experts // info.min_subgroup_size),
        "SIGMOID": routing.is_sigmoid,
        "NORMALISE": routing.normalises,
        "HAS_BIAS": correction is not None,
        "GROUPS": routing.num_groups,
        "GROUPS_KEPT": routing.groups_kept,
        **({} if scales is None else {"HAS_SCALES": True}),
        **({"BY_BEST": True} if routing.by_best else {}),
    }


def _sorting_constants(routing: Routing, num_tokens: int, pairs: TiledPairs) -> dict[str, ConstantValue]:
    if not sorts_where_routed(routing, num_tokens) or pairs.num_pairs != num_tokens * routing.num_chosen:
        raise ConfigError(f"route: {num_tokens} tokens of {routing} are not sorted into {pairs}")
    return {"TILE": pairs.tile, "ROOM": _MAX_SORTED_PAIRS}


def _sorted_fields(routing: Routing, pairs: TiledPairs) -> dict[str, int]:
    count = num_tiles(pairs.num_pairs, routing.num_experts, pairs.tile)
    return {"order": pairs.order, "tiles": pairs.tiles, "num_tiles": count}


def _routing_lanes(info: DeviceInfo, num_tokens: int) -> int:
    """Lanes of the workgroup that routes all tokens: a subgroup for each, but one in all where barriers are slow."""
    if info.is_software:
        return info.subgroup_size
    most = min(_MAX_ROUTING_LANES, info.max_workgroup_invocations) // info.subgroup_size
    return info.subgroup_size * min(num_tokens, most)


def num_tiles(num_pairs: int, num_experts: int, tile: int) -> int:
    """Return how many tiles of so many pairs there may be at most, however these are spread over the experts."""
    return min(num_pairs, num_pairs // tile + num_experts)


def expert_tiles(
    recorder: Recorder, kernels: Kernels, info: DeviceInfo, *, num_experts: int, chosen: int, pairs: TiledPairs
) -> None:
    """Record sorting pairs by expert; no barrier. `chosen` is the address of (num_pairs) u32, experts."""
    constants: dict[str, ConstantValue] = {"WORKGROUP": _SORTING_LANES, "EXPERTS": num_experts, "TILE": pairs.tile}
    kernel = kernels.get("expert_tiles", constants=constants)
    push = kernel.pack(
        chosen=chosen,
        order=pairs.order,
        tiles=pairs.tiles,
        pairs=pairs.num_pairs,
        num_tiles=num_tiles(pairs.num_pairs, num_experts, pairs.tile),
    )
    subgroups = max(1, _SORTING_LANES // info.max_subgroup_size)
    is_small = pairs.num_pairs <= _ONE_GROUPS_PAIRS or info.is_software
    recorder.dispatch(kernel, push, 1 if is_small else -(-num_experts // subgroups))


def expert_sum(
    recorder: Recorder,
    kernels: Kernels,
    *,
    outputs: Tensor,
    weights: Tensor,
    out: Tensor,
    shared: Tensor | None = None,
    gates: Tensor | None = None,
) -> None:
    """Record out = the sum of the outputs of each token's experts times their weights, in their order; no barrier.

    `outputs` is (tokens, num_chosen, columns) f32, `weights` (tokens, num_chosen), `out` (tokens, columns). `shared`,
    as large as `out`, is added, times the sigmoid of the first of each row of `gates`, if there are these. Raises
    ConfigError for other shapes, UnsupportedModelError for columns that are no multiple of four.
    """
    num_tokens, num_chosen, columns = outputs.shape
    if columns % _VECTOR:
        raise UnsupportedModelError(f"expert_sum: expected a size that is a multiple of {_VECTOR}, got {columns}")
    weights.expect("expert_sum: weights", (num_tokens, num_chosen), DType.F32)
    out.expect("expert_sum: out", (num_tokens, columns), DType.F32)
    if shared is not None:
        shared.expect("expert_sum: shared", (num_tokens, columns), DType.F32)
    if gates is not None:
        gates.expect("expert_sum: gates", (num_tokens, *gates.shape[1:]), DType.F32)
    constants: dict[str, ConstantValue] = {
        "WORKGROUP": _SUMMING_LANES,
        "K": num_chosen,
        "HAS_SHARED": shared is not None,
        "IS_GATED": gates is not None,
    }
    kernel = kernels.get("expert_sum", constants=constants)
    push = kernel.pack(
        outputs=outputs.address,
        weights=weights.address,
        shared_output=0 if shared is None else shared.address,
        gates=0 if gates is None else gates.address,
        y=out.address,
        columns=columns // _VECTOR,
        gate_stride=0 if gates is None else gates.shape[1],
    )
    recorder.dispatch(kernel, push, -(-columns // (_VECTOR * _SUMMING_LANES)), num_tokens)
