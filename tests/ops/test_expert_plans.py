"""Kernels for experts' rows are chosen by how many pairs an expert has."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.ops.test_linear_rules import DEVICES, GPU, MATRIX_GPU, MATRIX_RDNA
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.linear_plans.experts import (
    blocks_outputs,
    expert_form,
    pairs_of_a_tile,
    plan_expert_sum,
    plan_experts,
    sums_outputs,
)
from unicorn_async.ops.linear_plans.product import WEIGHTS, Product
from unicorn_async.ops.rows import RowForm
from unicorn_async.tensor import DType, QuantFormat

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.tensor import ElementType

EXPERTS = 128  # of which a token takes 8
DISCRETE = replace(MATRIX_GPU, type=DeviceType.DISCRETE)


@pytest.mark.parametrize(
    ("info", "few", "sizes"),
    [
        (MATRIX_RDNA, [1, 1, 2, 2, 4, 4], [16, 16, 16, 32, 32, 64, 128, 128]),
        (MATRIX_GPU, [1, 1, 16, 16, 16, 16], [16, 16, 32, 32, 64, 128, 128, 128]),
        (DISCRETE, [1, 1, 16, 16, 16, 16], [16, 16, 32, 32, 64, 128, 128, 128]),
    ],
    ids=["rdna", "integrated", "discrete"],
)
@pytest.mark.parametrize("element", [DType.F16, DType.BF16, QuantFormat.Q4_K, QuantFormat.NF4])
def test_a_tile_has_as_many_pairs_as_an_expert_on_the_average_or_more(
    info: DeviceInfo, few: list[int], sizes: list[int], element: ElementType
) -> None:
    def tile(tokens: int) -> int:
        return pairs_of_a_tile(info, [element], 8 * tokens, EXPERTS)

    assert [tile(tokens) for tokens in (1, 7, 9, 16, 17, 32)] == few
    assert [tile(tokens) for tokens in (33, 192, 256, 257, 512, 1024, 1025, 8192)] == sizes


def test_without_matrices_for_all_of_a_blocks_weights_lanes_read_them() -> None:
    for info, elements in (
        (GPU, [QuantFormat.Q4_K]),
        (DISCRETE, [DType.F32]),
        (DISCRETE, [DType.F16, DType.F32]),
    ):
        assert [pairs_of_a_tile(info, elements, 8 * tokens, EXPERTS) for tokens in (1, 32, 64, 512)] == [1, 2, 4, 8]


def test_a_device_with_little_shared_memory_takes_smaller_tiles() -> None:
    small = replace(DISCRETE, max_shared_memory=32768)
    sizes = [pairs_of_a_tile(small, [QuantFormat.Q4_K], 8 * tokens, EXPERTS) for tokens in (64, 512, 1024, 8192)]
    assert sizes == [16, 64, 64, 64]


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_workgroups_cover_all_tiles_and_outputs(name: str, *, gated: bool) -> None:
    for info in DEVICES:
        for num_tokens in (1, 8, 64, 300, 4096):
            element = Product(name, 1, 1, 1).element
            tile = pairs_of_a_tile(info, [element], 8 * num_tokens, EXPERTS)
            found = plan_experts(
                info, element, tile=tile, num_pairs=8 * num_tokens, num_experts=EXPERTS, n=75, gated=gated
            )
            assert found is not None
            constants, (x, y, z) = dict(found.constants), found.grid
            rows, tiles = (constants["ROWS"] * x * y, z) if tile <= 8 else (constants["TILE_N"] * y, x)
            assert rows >= 75 * (2 if gated else 1)
            assert tiles >= min(8 * num_tokens, 8 * num_tokens // tile + EXPERTS)
            assert constants.get("PAIRS", constants.get("TILE_T")) == tile
            assert found.form is expert_form(element, tile)
            assert found.entry.startswith("expert_quant_") == (
                found.form is RowForm.BLOCKS or name not in ("f16", "bf16", "f32")
            )


def test_tiles_of_other_sizes_have_no_kernel() -> None:
    for tile in (3, 9, 48, 256):
        assert (
            plan_experts(DISCRETE, QuantFormat.Q4_K, tile=tile, num_pairs=64, num_experts=EXPERTS, n=8, gated=False)
            is None
        )


@pytest.mark.parametrize("most", [128, 256, 1024])
def test_a_workgroup_that_leaves_blocks_has_whole_ones(most: int) -> None:
    for info in DEVICES:
        small = replace(info, max_workgroup_invocations=most)
        for gated, outputs in ((True, 2), (False, 4)):
            found = plan_experts(
                small,
                QuantFormat.Q4_K,
                tile=1,
                num_pairs=8,
                num_experts=EXPERTS,
                n=768,
                gated=gated,
                blocked=True,
            )
            assert found is not None
            constants = dict(found.constants)
            assert constants["PASSES"] * outputs == 32 and constants["WORKGROUP"] <= most
            assert found.grid == (24, 1, 8)
    for element, tile in ((DType.F16, 1), (QuantFormat.Q4_K, 16)):
        blocked = {"tile": tile, "num_pairs": 8, "num_experts": EXPERTS, "n": 768, "gated": True, "blocked": True}
        assert plan_experts(DISCRETE, element, **blocked) is None  # type: ignore[arg-type]


def test_blocks_are_left_where_each_pair_has_its_own_weights_and_both_are_quantised() -> None:
    both = [QuantFormat.Q4_K, QuantFormat.Q6_K]
    assert blocks_outputs(both, 1, 768)
    assert not blocks_outputs(both, 2, 768)
    assert not blocks_outputs(both, 1, 776)
    assert not blocks_outputs([QuantFormat.Q4_K, DType.F16], 1, 768)


def test_few_tokens_add_up_what_their_experts_make_at_once() -> None:
    def sums(num_tokens: int, taken: int, experts: int) -> bool:
        return sums_outputs(QuantFormat.Q4_K, num_tokens, num_tokens * taken, experts)

    assert [sums(num_tokens, 8, 128) for num_tokens in (1, 4, 5)] == [True, True, False]
    assert [sums(num_tokens, 2, 8) for num_tokens in (1, 2)] == [True, False]
    assert not sums_outputs(DType.BF16, 1, 8, 128)


def test_subgroups_that_share_a_row_leave_few_lanes_without_a_block() -> None:
    def lanes(info: DeviceInfo, taken: int, k: int) -> int:
        found = plan_expert_sum(info, QuantFormat.Q4_K, num_tokens=2, num_chosen=taken, n=2048, k=k)
        assert found.grid[0] * found.grid[1] * dict(found.constants)["ROWS"] >= 2048 and found.grid[2] == 2
        return dict(found.constants)["WORKGROUP"]

    assert [lanes(DISCRETE, taken, k) for taken, k in ((8, 768), (4, 1024), (1, 256), (2, 14336))] == [
        192,
        128,
        32,
        224,
    ]
    assert lanes(MATRIX_RDNA, 8, 768) == 192
    assert lanes(replace(DISCRETE, max_workgroup_invocations=128), 8, 768) == 96
    assert lanes(DEVICES[3], 8, 768) == 8
