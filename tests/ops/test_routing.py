"""Routes are those of double precision; pairs of tokens and experts are sorted, and outputs added up, as asked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unicorn_async.errors import ConfigError, UnsupportedModelError
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.routing import (
    Routing,
    TiledPairs,
    expert_sum,
    expert_tiles,
    multiplies_where_routed,
    num_tiles,
    route,
    router,
    sorts_where_routed,
)
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unicorn_async.gpu.device_info import DeviceInfo

    from .arrays import Arrays

GUARD = 0xFFFFFFFF
ROUTINGS = [
    Routing(128, 8, normalises=True),
    Routing(64, 8),
    Routing(8, 2, normalises=True, scale=2.5),
    Routing(5, 5, is_sigmoid=True),
    Routing(1, 1),
    Routing(300, 7, is_sigmoid=True, normalises=True, scale=1.8),
    Routing(64, 6, is_sigmoid=True, normalises=True, num_groups=8, groups_kept=3),
    Routing(24, 4, num_groups=4, groups_kept=2),
    Routing(16, 3, is_sigmoid=True, normalises=True, num_groups=16, groups_kept=5),
    Routing(160, 6, scale=16.0, num_groups=8, groups_kept=3, by_best=True),
]


def ids(routing: Routing) -> str:
    scores = "sigmoid" if routing.is_sigmoid else "softmax"
    return f"{routing.num_chosen}of{routing.num_experts}-{scores}-{routing.num_groups}groups{routing.by_best * '-best'}"


def reference(
    routing: Routing, logits: NDArray[np.float32], correction: NDArray[np.float32] | None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The experts of each token and their weights, in double precision."""
    values = logits.astype(np.float64)
    if routing.is_sigmoid:
        scores = 1 / (1 + np.exp(-values))
    else:
        scores = np.exp(values - values.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
    choices = scores if correction is None else scores + correction
    most = 1 if routing.by_best else 2
    best = np.sort(choices.reshape(len(logits), routing.num_groups, -1), axis=2)[:, :, -most:].sum(axis=2)
    if not routing.is_sigmoid and correction is None:
        choices = values  # in the same order, and far enough apart
    groups = choices.reshape(len(logits), routing.num_groups, -1)
    kept = np.argsort(-best, axis=1, kind="stable")[:, : routing.groups_kept]
    masked = np.full_like(groups, -np.inf)
    np.put_along_axis(masked, kept[:, :, None], np.take_along_axis(groups, kept[:, :, None], axis=1), axis=1)
    chosen = np.argsort(-masked.reshape(choices.shape), axis=1, kind="stable")[:, : routing.num_chosen]
    weights = np.take_along_axis(scores, chosen, axis=1)
    if routing.normalises:
        weights /= weights.sum(axis=1, keepdims=True)
    return chosen, weights * routing.scale


def routed(
    arrays: Arrays,
    routing: Routing,
    logits: NDArray[np.float32],
    correction: NDArray[np.float32] | None = None,
    pairs: TiledPairs | None = None,
    scales: NDArray[np.float32] | None = None,
) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """What the device makes of logits; what lies behind its results stays as it was."""
    shape, own = (len(logits), routing.num_chosen), arrays.put(logits)
    chosen = arrays.put(np.full(shape[0] * shape[1] + 16, GUARD, np.uint32))
    weights = arrays.poisoned(shape[0] * shape[1] + 16)
    bias, factors = (None if each is None else arrays.put(each).tensor for each in (correction, scales))
    arrays.run(
        lambda recorder: route(
            recorder,
            arrays.device.kernels,
            arrays.device.info,
            routing=routing,
            logits=own.tensor,
            correction=bias,
            chosen=chosen.address,
            weights=Tensor(weights.address, shape, DType.F32),
            scales=factors,
            pairs=pairs,
        )
    )
    assert (chosen.values[-16:] == GUARD).all() and np.isnan(weights.values[-16:]).all()
    return chosen.values[:-16].reshape(shape), weights.values[:-16].reshape(shape)


@pytest.mark.parametrize("is_corrected", [False, True], ids=["plain", "corrected"])
@pytest.mark.parametrize("routing", ROUTINGS, ids=ids)
def test_routes_are_those_of_double_precision(arrays: Arrays, routing: Routing, *, is_corrected: bool) -> None:
    rng = np.random.default_rng(routing.num_experts)
    logits = (3 * rng.standard_normal((37, routing.num_experts + 3))).astype(np.float32)
    correction = (0.3 * rng.standard_normal(routing.num_experts)).astype(np.float32) if is_corrected else None
    expected, weights = reference(routing, logits[:, : routing.num_experts], correction)
    found, found_weights = routed(arrays, routing, logits, correction)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(found_weights, weights, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("routing", [ROUTINGS[0], ROUTINGS[5]], ids=ids)
def test_weights_are_multiplied_by_scales_of_experts_when_they_are_normalised(arrays: Arrays, routing: Routing) -> None:
    rng = np.random.default_rng(7)
    logits = (3 * rng.standard_normal((19, routing.num_experts))).astype(np.float32)
    scales = rng.uniform(0.2, 3, routing.num_experts).astype(np.float32)
    expected, weights = reference(routing, logits, None)
    found, found_weights = routed(arrays, routing, logits, scales=scales)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(found_weights, weights * scales[expected], rtol=3e-6)


@pytest.mark.parametrize("routing", ROUTINGS, ids=ids)
def test_of_equal_logits_the_lower_numbers_are_taken(arrays: Arrays, routing: Routing) -> None:
    found, weights = routed(arrays, routing, np.full((3, routing.num_experts), 0.5, np.float32))
    np.testing.assert_array_equal(found, [range(routing.num_chosen)] * 3)
    np.testing.assert_allclose(weights, weights[:, :1].repeat(routing.num_chosen, 1), rtol=1e-6)


@pytest.mark.parametrize("routing", ROUTINGS, ids=ids)
def test_whatever_logits_are_experts_are_different_ones_that_there_are(arrays: Arrays, routing: Routing) -> None:
    rng = np.random.default_rng(routing.num_chosen)
    hostile = np.array([np.nan, -np.nan, np.inf, -np.inf, 3e38, -3e38, 0.0, -0.0], np.float32)
    logits = rng.choice(hostile, (40, routing.num_experts))
    logits[0], logits[1], logits[2], logits[3] = np.nan, np.inf, -np.inf, -3e38
    logits[4:8] = rng.standard_normal((4, routing.num_experts))
    found, weights = routed(arrays, routing, logits)
    assert (found < routing.num_experts).all()
    assert all(len(set(row)) == routing.num_chosen for row in found.tolist())
    expected, sound = reference(routing, logits[4:8], None)  # what others are made of does not matter to a token
    np.testing.assert_array_equal(found[4:8], expected)
    np.testing.assert_allclose(weights[4:8], sound, rtol=2e-5, atol=1e-7)


def test_logits_that_are_no_numbers_are_chosen_last(arrays: Arrays) -> None:
    logits = np.array([[np.nan, -5.0, np.nan, -np.inf, 2.0]], np.float32)
    found, _ = routed(arrays, Routing(5, 4), logits)
    np.testing.assert_array_equal(found, [[4, 1, 3, 0]])


@pytest.mark.parametrize(
    ("numbers", "match"),
    [
        ({"num_experts": 1025, "num_chosen": 2}, "experts: expected 1 to 1024, got 1025"),
        ({"num_experts": 8, "num_chosen": 9}, "experts of a token: expected 1 to 8, got 9"),
        ({"num_experts": 64, "num_chosen": 33}, "experts of a token: expected 1 to 32, got 33"),
        ({"num_experts": 8, "num_chosen": 2, "num_groups": 3}, "that 8 experts fill, got 3"),
        ({"num_experts": 8, "num_chosen": 4, "num_groups": 4}, "with 4 experts at least, got 1"),
        ({"num_experts": 8, "num_chosen": 2, "num_groups": 2, "groups_kept": 3}, "expected 1 to 2 with 2 experts"),
    ],
)
def test_numbers_that_no_kernel_takes_are_refused(numbers: dict[str, Any], match: str) -> None:
    with pytest.raises(UnsupportedModelError, match=match):
        Routing(**numbers)


class Sorted:
    """Room for pairs' order and tiles, with what must stay as it was behind them."""

    def __init__(self, arrays: Arrays, num_pairs: int, num_experts: int, tile: int) -> None:
        self.count = num_tiles(num_pairs, num_experts, tile)
        self.order = arrays.put(np.full(num_pairs + 16, GUARD, np.uint32))
        self.tiles = arrays.put(np.full((self.count + 4, 3), GUARD, np.uint32))
        self.pairs = TiledPairs(num_pairs, tile, self.order.address, self.tiles.address)

    def read(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """The order of pairs and their tiles, as the device has made them."""
        num_pairs = self.pairs.num_pairs
        assert (self.order.values[num_pairs:] == GUARD).all() and (self.tiles.values[self.count :] == GUARD).all()
        return self.order.values[:num_pairs], self.tiles.values[: self.count]


def tiled(
    arrays: Arrays, chosen: NDArray[np.uint32], num_experts: int, tile: int, info: DeviceInfo | None = None
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """The order of pairs and their tiles, as the device makes them, or as it does where it is taken for another."""
    device, source = arrays.device, arrays.put(chosen)
    made = Sorted(arrays, chosen.size, num_experts, tile)
    arrays.run(
        lambda recorder: expert_tiles(
            recorder,
            device.kernels,
            info or device.info,
            num_experts=num_experts,
            chosen=source.address,
            pairs=made.pairs,
        )
    )
    return made.read()


def check_tiles(chosen: NDArray[np.uint32], found: tuple[NDArray[np.uint32], NDArray[np.uint32]], tile: int) -> None:
    order, tiles = found
    np.testing.assert_array_equal(order, np.argsort(chosen.ravel(), kind="stable"))
    used = tiles[: np.count_nonzero(tiles[:, 2])]
    assert (tiles[len(used) :] == 0).all()
    assert (used[:, 2] <= tile).all()
    covered = [(expert, first + i) for expert, first, count in used.tolist() for i in range(count)]
    assert covered == list(enumerate_places(chosen))
    assert len(used) == sum(-(-count // tile) for count in np.bincount(chosen.ravel()).tolist())


def enumerate_places(chosen: NDArray[np.uint32]) -> list[tuple[int, int]]:
    """The expert of each place of the order."""
    return [(expert, place) for place, expert in enumerate(np.sort(chosen.ravel()).tolist())]


@pytest.mark.parametrize(("num_experts", "tile"), [(128, 8), (128, 64), (8, 16), (1, 4), (600, 1)])
def test_pairs_are_sorted_by_expert_and_cut_into_tiles(arrays: Arrays, num_experts: int, tile: int) -> None:
    rng = np.random.default_rng(num_experts)
    for num_tokens in (1, 7, 64, 300):
        chosen = rng.integers(0, num_experts, (num_tokens, 8), dtype=np.uint32)
        check_tiles(chosen, tiled(arrays, chosen, num_experts, tile), tile)


def test_many_pairs_are_sorted_by_several_workgroups(arrays: Arrays) -> None:
    gpu = replace(arrays.device.info, type=DeviceType.DISCRETE)
    for num_experts, num_tokens in ((128, 300), (5, 1000), (600, 100)):
        chosen = np.random.default_rng(num_experts).integers(0, num_experts, (num_tokens, 6), dtype=np.uint32)
        check_tiles(chosen, tiled(arrays, chosen, num_experts, 16, gpu), 16)


@pytest.mark.parametrize("tile", [1, 2, 8])
@pytest.mark.parametrize("routing", [ROUTINGS[0], ROUTINGS[2], ROUTINGS[4], ROUTINGS[7]], ids=ids)
def test_few_tokens_are_sorted_where_they_are_routed(arrays: Arrays, routing: Routing, tile: int) -> None:
    for num_tokens in (1, 7, 32):
        rng = np.random.default_rng(num_tokens)
        logits = rng.standard_normal((num_tokens, routing.num_experts)).astype(np.float32)
        logits[num_tokens // 2 :] = logits[-1]  # of which experts have several
        made = Sorted(arrays, num_tokens * routing.num_chosen, routing.num_experts, tile)
        alone = routed(arrays, routing, logits)
        both = routed(arrays, routing, logits, pairs=made.pairs)
        for found, expected in zip(both, alone, strict=True):
            np.testing.assert_array_equal(found, expected)
        check_tiles(alone[0], made.read(), tile)


@pytest.mark.parametrize("columns", [36, 1028])
@pytest.mark.parametrize("is_biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("routing", [ROUTINGS[i] for i in (0, 2, 4, 5, 6)], ids=ids)
def test_the_last_workgroup_of_a_router_chooses_from_all_logits(
    arrays: Arrays, routing: Routing, columns: int, *, is_biased: bool
) -> None:
    rng = np.random.default_rng(columns)
    weight = (rng.standard_normal((routing.num_experts, columns)) / np.sqrt(columns)).astype(np.float32)
    bias = rng.standard_normal(routing.num_experts).astype(np.float32)
    done, own_weight, own_bias = arrays.put(np.zeros(1, np.uint32)), arrays.put(weight), arrays.put(bias)
    for num_tokens in (1, 5, 8):
        x = rng.standard_normal((num_tokens, columns)).astype(np.float32)
        made = Sorted(arrays, num_tokens * routing.num_chosen, routing.num_experts, 2)
        own, logits = arrays.put(x), arrays.poisoned(num_tokens + 1, routing.num_experts)
        chosen = arrays.put(np.full((num_tokens + 1, routing.num_chosen), GUARD, np.uint32))
        weights = arrays.poisoned(num_tokens + 1, routing.num_chosen)
        arrays.run(
            lambda recorder, own=own, logits=logits, chosen=chosen, weights=weights, made=made, n=num_tokens: router(
                recorder,
                arrays.device.kernels,
                arrays.device.info,
                routing=routing,
                x=own.tensor,
                weight=own_weight.tensor,
                bias=own_bias.tensor if is_biased else None,
                logits=Tensor(logits.address, (n, routing.num_experts), DType.F32),
                done=done.address,
                correction=None,
                chosen=chosen.address,
                weights=Tensor(weights.address, (n, routing.num_chosen), DType.F32),
                pairs=made.pairs,
            )
        )
        wanted = x.astype(np.float64) @ weight.T.astype(np.float64) + (bias if is_biased else 0)
        np.testing.assert_allclose(logits.values[:-1], wanted, atol=1e-5)
        expected, expected_weights = reference(routing, logits.values[:-1], None)
        np.testing.assert_array_equal(chosen.values[:-1], expected)
        np.testing.assert_allclose(weights.values[:-1], expected_weights, rtol=2e-5, atol=1e-7)
        check_tiles(chosen.values[:-1], made.read(), 2)
        assert np.isnan([*logits.values[-1], *weights.values[-1]]).all() and done.values[0] == 0


def test_a_router_takes_few_tokens_alone(arrays: Arrays) -> None:
    routing = Routing(128, 8)
    assert [multiplies_where_routed(routing, num_tokens) for num_tokens in (1, 8, 9)] == [True, True, False]
    for columns, error, match in (
        (64, ConfigError, "8 tokens of Routing.* got 9"),
        (6, UnsupportedModelError, "got 6"),
    ):
        with pytest.raises(error, match=match):
            arrays.run(
                lambda recorder, columns=columns: router(
                    recorder,
                    arrays.device.kernels,
                    arrays.device.info,
                    routing=routing,
                    x=Tensor(0, (9, columns), DType.F32),
                    weight=Tensor(0, (128, columns), DType.F32),
                    bias=None,
                    logits=Tensor(0, (9, 128), DType.F32),
                    **{"done": 0, "correction": None, "chosen": 0},
                    weights=Tensor(0, (9, 8), DType.F32),
                    pairs=TiledPairs(72, 1, 0, 0),
                )
            )


def test_more_pairs_than_a_workgroup_has_room_for_are_not_sorted_where_they_are_routed(arrays: Arrays) -> None:
    routing = Routing(128, 8)
    assert [sorts_where_routed(routing, num_tokens) for num_tokens in (1, 32, 33)] == [True, True, False]
    assert [sorts_where_routed(Routing(128, 32), num_tokens) for num_tokens in (8, 9)] == [True, False]
    for num_pairs in (33 * 8, 8):
        with pytest.raises(ConfigError, match="33 tokens of Routing"):
            routed(arrays, routing, np.zeros((33, 128), np.float32), pairs=TiledPairs(num_pairs, 1, 0, 0))


@pytest.mark.parametrize("expert", [0, 5, 127])
def test_one_expert_that_all_tokens_take_has_all_tiles(arrays: Arrays, expert: int) -> None:
    chosen = np.full((300, 4), expert, np.uint32)
    check_tiles(chosen, tiled(arrays, chosen, 128, 32), 32)


def test_an_expert_that_there_is_none_of_counts_as_the_last(arrays: Arrays) -> None:
    chosen = np.array([[3, 4_000_000_000], [7, 8]], np.uint32)
    order, tiles = tiled(arrays, chosen, 8, 4)
    np.testing.assert_array_equal(order, [0, 1, 2, 3])
    np.testing.assert_array_equal(tiles, [[3, 0, 1], [7, 1, 3], [0, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize("tail", ["alone", "shared", "gated"])
@pytest.mark.parametrize(("num_tokens", "num_chosen", "columns"), [(1, 8, 264), (7, 1, 4), (64, 3, 1000)])
def test_outputs_are_added_up_by_their_weights(
    arrays: Arrays, num_tokens: int, num_chosen: int, columns: int, tail: str
) -> None:
    rng = np.random.default_rng(columns)
    outputs = rng.standard_normal((num_tokens, num_chosen, columns)).astype(np.float32)
    weights = rng.random((num_tokens, num_chosen)).astype(np.float32)
    shared = rng.standard_normal((num_tokens, columns)).astype(np.float32)
    gates = (30 * rng.standard_normal((num_tokens, 3))).astype(np.float32)
    own, own_weights = arrays.put(outputs), arrays.put(weights)
    own_shared, own_gates = arrays.put(shared).tensor, arrays.put(gates).tensor
    out = arrays.poisoned(num_tokens + 1, columns)
    arrays.run(
        lambda recorder: expert_sum(
            recorder,
            arrays.device.kernels,
            outputs=own.tensor,
            weights=own_weights.tensor,
            out=Tensor(out.address, (num_tokens, columns), DType.F32),
            shared=None if tail == "alone" else own_shared,
            gates=own_gates if tail == "gated" else None,
        )
    )
    expected = np.einsum("tsn,ts->tn", outputs.astype(np.float64), weights.astype(np.float64))
    if tail != "alone":
        expected += shared / (1 + np.exp(-gates[:, :1].astype(np.float64))) if tail == "gated" else shared
    np.testing.assert_allclose(out.values[:-1], expected, atol=3e-6)
    assert np.isnan(out.values[-1]).all()


def test_operands_of_other_shapes_are_refused(arrays: Arrays) -> None:
    outputs = Tensor(0, (2, 3, 8), DType.F32)
    with pytest.raises(ConfigError, match="expert_sum: weights"):
        arrays.run(
            lambda recorder: expert_sum(
                recorder,
                arrays.device.kernels,
                outputs=outputs,
                weights=Tensor(0, (2, 2), DType.F32),
                out=Tensor(0, (2, 8), DType.F32),
            )
        )
    with pytest.raises(UnsupportedModelError, match="multiple of 4, got 6"):
        arrays.run(
            lambda recorder: expert_sum(
                recorder,
                arrays.device.kernels,
                outputs=Tensor(0, (2, 3, 6), DType.F32),
                weights=Tensor(0, (2, 3), DType.F32),
                out=Tensor(0, (2, 6), DType.F32),
            )
        )
