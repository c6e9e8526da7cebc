"""Which cut the matrix kernels for quantised weights get: what was found on an H100 and an H200, as rules."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.ops.test_linear_candidates import COLUMNS, MATRIX_TOKENS, ROWS, TOKENS
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.linear_plans.candidates import candidates
from unicorn_async.ops.linear_plans.lean_tiles import lean_tuning
from unicorn_async.ops.linear_plans.product import Product
from unicorn_async.ops.linear_plans.quant_tiles import (
    MAX_FRAGMENT_TOKENS,
    fragment_plan,
    fragment_tuning,
    quant_coopmat_tuning,
)
from unicorn_async.ops.linear_plans.rules import plan_linear
from unicorn_async.ops.linear_plans.tiles import coopmat_shared_bytes, most_splits, num_tiles
from unicorn_async.ops.subgroups import FRAGMENTS_FEATURE, MATRIX_FEATURE, NARROW_FEATURE

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plans.quant_tiles import FragmentTuning
    from unicorn_async.ops.linear_plans.tiles import TileTuning

GATE_UP, DOWN, QKV, OUT, HEAD = (43008, 5376), (5376, 21504), (8192, 5376), (5376, 4096), (262_208, 5376)
SMALL_GATE_UP, SMALL_DOWN, SMALL_QKV, SMALL_OUT = (6144, 1024), (1024, 3072), (4096, 1024), (1024, 2048)
SHAPES = (GATE_UP, DOWN, QKV, OUT, HEAD, SMALL_GATE_UP, SMALL_DOWN, SMALL_QKV, SMALL_OUT, (576, 1536), (1, 128))


@pytest.fixture
def gpu(device: Device) -> DeviceInfo:
    """A made-up discrete GPU with matrix units of which lanes hold known elements."""
    return replace(
        device.info,
        type=DeviceType.DISCRETE,
        subgroup_size=32,
        min_subgroup_size=32,
        max_subgroup_size=32,
        max_workgroup_invocations=1024,
        max_shared_memory=49152,
        features=frozenset(
            {"float16", "integer_dot", "subgroup_size_control", MATRIX_FEATURE, FRAGMENTS_FEATURE},
        ),
    )


def tile(info: DeviceInfo, tokens: int, shape: tuple[int, int]) -> tuple[int, int, int]:
    """Tokens and rows of a tile, and splits."""
    tuning = quant_coopmat_tuning(info, Product("q4", tokens, *shape))
    return tuning.tile_t, tuning.tile_n, tuning.splits


def cut(info: DeviceInfo, tokens: int, shape: tuple[int, int]) -> tuple[int, int, int, int, int]:
    """Matrices along tokens and rows, subgroups along rows and K, and splits."""
    tuning = fragment_tuning(info, Product("q4", tokens, *shape))
    return tuning.fragments_t, tuning.fragments_n, tuning.subgroups_n, tuning.subgroups_k, tuning.splits


def test_large_matrices_keep_large_tiles(gpu: DeviceInfo) -> None:
    sizes = 96, 256, 384, 512
    assert [tile(gpu, tokens, DOWN) for tokens in sizes] == [(128, 128, splits) for splits in (6, 3, 2, 3)]
    assert [tile(gpu, tokens, QKV) for tokens in sizes] == [(128, 128, splits) for splits in (4, 2, 1, 1)]
    assert [tile(gpu, tokens, OUT) for tokens in sizes] == [(128, 128, splits) for splits in (6, 3, 2, 3)]
    assert {tile(gpu, tokens, GATE_UP) for tokens in (96, 128, 256, 384, 512)} == {(128, 128, 1)}


def test_tiles_of_64_tokens_serve_where_a_quarter_of_larger_ones_would_be_empty(gpu: DeviceInfo) -> None:
    assert tile(gpu, 192, GATE_UP) == (64, 128, 1)
    assert tile(gpu, 192, QKV) == (64, 128, 2)


def test_matrices_that_make_few_tiles_get_small_ones(gpu: DeviceInfo) -> None:
    sizes = 96, 128, 192, 256
    assert [tile(gpu, tokens, SMALL_GATE_UP) for tokens in sizes] == [(64, 64, splits) for splits in (2, 2, 1, 1)]
    assert [tile(gpu, tokens, SMALL_QKV) for tokens in sizes] == [(64, 64, splits) for splits in (4, 4, 2, 2)]
    assert {tile(gpu, tokens, SMALL_DOWN) for tokens in sizes} == {(64, 64, 8)}
    assert {tile(gpu, tokens, SMALL_OUT) for tokens in sizes} == {(64, 64, 8)}
    assert tile(gpu, 512, SMALL_DOWN) == (128, 64, 4)
    assert tile(gpu, 512, SMALL_OUT)[:2] == (64, 64)
    assert tile(gpu, 512, SMALL_GATE_UP) == (128, 128, 1)


def test_few_tokens_share_k_no_further_than_it_pays(gpu: DeviceInfo) -> None:
    assert cut(gpu, 8, GATE_UP) == (1, 4, 1, 2, 1)
    assert cut(gpu, 8, HEAD) == (1, 2, 2, 2, 1)
    assert [cut(gpu, 8, shape) for shape in (DOWN, QKV, OUT)] == [(1, 1, 2, 2, splits) for splits in (6, 4, 4)]
    assert [cut(gpu, 32, shape) for shape in (DOWN, QKV, OUT)] == [(2, 2, 1, 4, splits) for splits in (3, 2, 3)]
    assert cut(gpu, 64, DOWN) == (4, 1, 2, 2, 3)
    assert [cut(gpu, 64, shape) for shape in (QKV, OUT)] == [(4, 1, 1, 4, splits) for splits in (1, 1)]


def test_two_tiles_of_64_tokens_serve_up_to_128(gpu: DeviceInfo) -> None:
    for tokens in (65, 96, 128):
        product = Product("q4_k", tokens, *GATE_UP)
        tuning = fragment_tuning(gpu, product)
        assert replace(tuning, splits=1) == replace(fragment_tuning(gpu, product._replace(tokens=64)), splits=1)
        assert fragment_plan(gpu, tuning, product).grid[0] == 2


def test_matrices_of_eight_tokens_serve_up_to_eight(gpu: DeviceInfo) -> None:
    narrow = replace(gpu, features=gpu.features | {NARROW_FEATURE})
    found = [fragment_tuning(narrow, Product("q4", tokens, *DOWN)).fragment_tokens for tokens in (3, 8, 9, 64)]
    assert found == [8, 8, 16, 16]
    assert cut(narrow, 8, GATE_UP) == (1, 2, 1, 2, 1)
    assert cut(narrow, 8, HEAD) == (1, 1, 1, 4, 1)
    assert [cut(narrow, 8, shape) for shape in (DOWN, QKV, OUT)] == [(1, 1, 1, 4, splits) for splits in (3, 2, 3)]


def test_small_matrices_make_more_workgroups_of_few_tokens(gpu: DeviceInfo) -> None:
    for tokens in (12, 16):
        assert cut(gpu, tokens, SMALL_GATE_UP) == cut(gpu, tokens, SMALL_QKV) == (1, 1, 1, 4, 1)
    for tokens in (4, 8, 16):
        assert [cut(gpu, tokens, shape) for shape in (SMALL_DOWN, SMALL_OUT)] == [(1, 1, 1, 4, 3), (1, 1, 1, 4, 2)]
    assert [cut(gpu, 24, shape) for shape in (SMALL_DOWN, SMALL_OUT)] == [(2, 1, 1, 4, 3), (2, 1, 1, 4, 2)]
    for tokens in (48, 64):
        assert cut(gpu, tokens, GATE_UP) == (4, 2, 1, 4, 1)
        assert cut(gpu, tokens, SMALL_GATE_UP) == cut(gpu, tokens, SMALL_QKV) == (4, 1, 1, 4, 1)


def test_codes_that_take_arithmetic_have_more_subgroups_of_many_rows(gpu: DeviceInfo) -> None:
    def found(weights: str, tokens: int, shape: tuple[int, int]) -> tuple[int, int, int]:
        tuning = fragment_tuning(gpu, Product(weights, tokens, *shape))
        assert tuning.splits == 1  # there are workgroups enough
        return tuning.fragments_n, tuning.subgroups_n, tuning.subgroups_k

    for weights in ("q4_k", "q6_k", "nf4"):
        assert [found(weights, tokens, GATE_UP) for tokens in (16, 32, 64)] == [(1, 1, 4), (2, 1, 4), (1, 1, 2)]
    assert [found("q4", tokens, (28_672, 4096)) for tokens in (16, 32, 64)] == [(4, 1, 2), (2, 1, 4), (2, 1, 4)]
    assert found("q6_k", 16, HEAD) == (2, 2, 2)


@pytest.mark.parametrize("units", [12, 40, 96])
@pytest.mark.parametrize("tokens", [3, 16, 17, 32, 33, 64, 65, 512, 2048])
def test_rdna_keeps_sums_in_few_registers_and_has_room_for_two_workgroups(
    gpu: DeviceInfo, tokens: int, units: int
) -> None:
    rdna = replace(gpu, subgroup_size=64, max_subgroup_size=64, max_shared_memory=65536, compute_units=units)
    for n, k in SHAPES:
        product = Product("q4", tokens, n, k)
        tuning = lean_tuning(rdna, product)
        most = 16 if tuning.tile_t == 128 else 8  # matrices of a subgroup, of 8 registers: 128 of its 256
        assert tuning.tile_t * tuning.tile_n <= most * 256 * tuning.parts_t * tuning.parts_n
        assert coopmat_shared_bytes(tuning) <= 32768
        assert tuning.splits <= most_splits(tuning, product)
        assert tuning.splits == 1 or tuning.splits * 2 * tuning.tile_k <= k
        if tuning.splits > 1:  # the device would be half empty
            assert num_tiles(tuning, product) * tuning.parts_t * tuning.parts_n <= 4 * units
        assert dict(plan_linear(rdna, product).constants).get("TILE_N", tuning.tile_n) == tuning.tile_n
        blocks, lanes = tuning.tile_n * tuning.tile_k // 32, 32 * tuning.parts_t * tuning.parts_n
        assert blocks % lanes == 0  # each lane stages as many blocks of weights as the others


def test_rdna_makes_more_workgroups_where_large_tiles_leave_units_idle(gpu: DeviceInfo) -> None:
    def tile_of(units: int, n: int) -> tuple[int, int, int]:
        rdna = replace(gpu, subgroup_size=64, max_subgroup_size=64, compute_units=units)
        tuning = lean_tuning(rdna, Product("q4", 512, n, 4096))
        return tuning.tile_t, tuning.tile_n, tuning.splits

    assert [tile_of(12, n) for n in (128, 256, 384, 4096)] == [(64, 64, 1), (64, 64, 1), (128, 128, 2), (128, 128, 1)]
    assert [tile_of(96, n) for n in (128, 384, 4096)] == [(64, 64, 8), (64, 64, 4), (128, 128, 1)]


def test_a_gpu_that_shares_the_memory_takes_large_tiles_and_cuts_no_k(gpu: DeviceInfo) -> None:
    integrated = replace(gpu, type=DeviceType.INTEGRATED)
    for shape in SHAPES:
        assert tile(integrated, 96, shape) == tile(integrated, 512, shape) == (128, 128, 1)
        assert cut(integrated, 16, shape)[4] == 1


@pytest.mark.parametrize("tokens", [3, 9, 16, 17, 33, 64, 65, 96, 128, 129, 192, 200, 384, 385, 512, 2048])
def test_what_splits_leave_for_each_other_has_room_and_each_has_columns(gpu: DeviceInfo, tokens: int) -> None:
    for memory in (32768, 49152):
        info = replace(gpu, max_shared_memory=memory)
        for n, k in SHAPES:
            product = Product("q4", tokens, n, k)
            tile = quant_coopmat_tuning(info, product)
            assert coopmat_shared_bytes(tile) <= memory
            tunings: list[TileTuning | FragmentTuning] = [tile]
            if tokens <= MAX_FRAGMENT_TOKENS:
                tunings.append(fragment_tuning(info, product))
            for tuning in tunings:
                assert tuning.splits <= most_splits(tuning, product)
                assert tuning.splits == 1 or k >= 2 * tuning.splits * tuning.tile_k


def test_every_cut_for_matrix_units_is_one_that_is_compared_with_the_product_in_double_precision(
    gpu: DeviceInfo,
) -> None:
    """By test_linear_candidates, on a device with matrix units; splits of other numbers are compared there, too.

    One and two tokens go without matrix units.
    """

    def cuts(info: DeviceInfo, tokens: int, n: int, k: int) -> set[tuple[object, ...]]:
        products = candidates(info, Product("q4", tokens, n, k))
        return {(p.entry, *((name, v) for name, v in p.constants if name != "SPLITS")) for p in products}

    for info in (gpu, replace(gpu, features=gpu.features | {NARROW_FEATURE})):
        compared = set().union(*(cuts(info, tokens, ROWS, COLUMNS) for tokens in (*TOKENS, *MATRIX_TOKENS)))
        for n, k in SHAPES:
            for tokens in (3, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512):
                rule = plan_linear(info, Product("q4", tokens, n, k))
                assert (rule.entry, *((name, v) for name, v in rule.constants if name != "SPLITS")) in compared


def test_twice_the_tokens_share_codes_whose_scales_are_unpacked_where_tiles_are_many(gpu: DeviceInfo) -> None:
    def tokens_of(weights: str, tokens: int, shape: tuple[int, int], info: DeviceInfo = gpu) -> int:
        return quant_coopmat_tuning(info, Product(weights, tokens, *shape)).tile_t

    assert [tokens_of("q4_k", tokens, GATE_UP) for tokens in (256, 512, 640, 2048)] == [128, 256, 128, 256]
    assert [tokens_of(weights, 512, GATE_UP) for weights in ("q4", "q6_k")] == [128, 128]
    assert tokens_of("q4_k", 512, DOWN) == 128  # few rows
    assert tokens_of("q4_k", 512, GATE_UP, replace(gpu, type=DeviceType.INTEGRATED)) == 128
    assert tokens_of("q4_k", 512, GATE_UP, replace(gpu, max_shared_memory=32768)) < 256
