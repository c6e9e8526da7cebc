"""Kernels for experts' rows are chosen by how many pairs an expert has."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.ops.test_linear_rules import DEVICES, GPU, MATRIX_GPU, MATRIX_RDNA
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.linear_plans.experts import expert_form, pairs_of_a_tile, plan_experts
from unicorn_async.ops.linear_plans.product import WEIGHTS, Product
from unicorn_async.ops.rows import RowForm
from unicorn_async.tensor import DType, QuantFormat

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.tensor import ElementType

EXPERTS = 128  # of which a token takes 8
DISCRETE = replace(MATRIX_GPU, type=DeviceType.DISCRETE)


@pytest.mark.parametrize("info", [MATRIX_GPU, DISCRETE, MATRIX_RDNA], ids=["integrated", "discrete", "rdna"])
@pytest.mark.parametrize("element", [DType.F16, DType.BF16, QuantFormat.Q4_K, QuantFormat.NF4])
def test_a_tile_has_as_many_pairs_as_an_expert_on_the_average(info: DeviceInfo, element: ElementType) -> None:
    def tile(tokens: int) -> int:
        return pairs_of_a_tile(info, [element], 8 * tokens, EXPERTS)

    assert [tile(tokens) for tokens in (1, 8, 16, 17, 32)] == [1, 1, 1, 2, 2]
    assert [tile(tokens) for tokens in (33, 64, 256, 257, 512, 1024, 1025, 8192)] == [16, 16, 16, 32, 32, 64, 128, 128]


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
    assert sizes == [16, 32, 64, 64]


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
