from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from unicorn_async.config import Activation
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.linear_input import InputForm
from unicorn_async.ops.linear_plan import (
    MATRIX_FEATURE,
    MAX_GRID_X,
    MAX_PARTIALS,
    MAX_SPLIT_TILES,
    LinearPlan,
    pipelines_for,
    plan_linear,
    reads_half,
    split_grid,
)
from unicorn_async.tensor import DType

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo


@pytest.fixture
def gpu(device: Device) -> DeviceInfo:
    """A made-up GPU without matrix units, by default of a wave size that the driver may choose."""
    return replace(
        device.info,
        type=DeviceType.INTEGRATED,
        subgroup_size=64,
        min_subgroup_size=32,
        max_subgroup_size=64,
        max_workgroup_invocations=1024,
        max_shared_memory=65536,
        features=frozenset({"float16", "subgroup_size_control"}),
    )


@pytest.fixture
def matrix_gpu(gpu: DeviceInfo) -> DeviceInfo:
    """The same with matrix units."""
    return replace(gpu, features=gpu.features | {MATRIX_FEATURE})


def plan(info: DeviceInfo, tokens: int, n: int = 4096) -> LinearPlan:
    return plan_linear(info, num_tokens=tokens, n=n, k=4096, dtype=DType.BF16)


def covers(chosen: LinearPlan, tokens: int, n: int) -> bool:
    constants, (x, y, z) = dict(chosen.constants), chosen.grid
    if chosen.entry.startswith("linear_vec"):
        return x * y * constants["ROWS"] * constants["PASSES"] >= n and z * constants["TOKENS"] >= tokens
    return x * constants["TILE_T"] >= tokens and y * constants["TILE_N"] >= n


@pytest.fixture
def software(gpu: DeviceInfo) -> DeviceInfo:
    """A made-up device that is a CPU."""
    return replace(gpu, type=DeviceType.SOFTWARE, subgroup_size=8, min_subgroup_size=8, max_subgroup_size=8)


@pytest.mark.parametrize("n", [1, 255, 576, 3072, 49_152])
def test_on_a_cpu_workgroups_are_few_but_leave_none_of_many_cores_idle(software: DeviceInfo, n: int) -> None:
    chosen = plan(software, 1, n)
    assert dict(chosen.constants)["PREFETCH"] == DType.BF16.itemsize
    assert min(32, -(-n // 8)) <= chosen.grid[0] <= max(63, -(-n // 128))


def test_a_gpu_takes_rows_once_and_prefetches_nothing(gpu: DeviceInfo) -> None:
    constants = dict(plan(gpu, 1).constants)
    assert (constants["PASSES"], constants["PREFETCH"]) == (1, 0)


def test_two_tokens_on_a_cpu_are_not_computed_as_four(software: DeviceInfo) -> None:
    together = [dict(plan(software, tokens).constants)["TOKENS"] for tokens in (1, 2, 3, 4, 5, 8, 12, 64)]
    assert together == [1, 2, 4, 4, 8, 8, 8, 8]


def test_few_tokens_on_a_gpu_are_cut_by_a_table_of_its_own(gpu: DeviceInfo) -> None:
    found = [dict(plan(gpu, tokens).constants) for tokens in (1, 2, 3, 4, 8, 12, 32)]
    cuts = [(cut["TOKENS"], cut["WORKGROUP"] // 64, cut["ROWS"], cut["PASSES"]) for cut in found]
    assert cuts == [(1, 8, 2, 1), (2, 1, 2, 1), (4, 2, 4, 1), (4, 2, 4, 1), (8, 1, 4, 1), (16, 1, 2, 1), (32, 1, 2, 1)]


@pytest.mark.parametrize("tokens", [1, 2, 5, 8, 31, 32, 33, 300, 2048])
@pytest.mark.parametrize("n", [1, 97, 4096, 262_144])
def test_the_grid_covers_the_output(
    gpu: DeviceInfo, matrix_gpu: DeviceInfo, software: DeviceInfo, tokens: int, n: int
) -> None:
    for info in (gpu, matrix_gpu, software):
        chosen = plan(info, tokens, n)
        assert covers(chosen, tokens, n), chosen
        assert max(chosen.grid) <= 65535
        assert dict(chosen.constants)["WORKGROUP"] <= info.max_workgroup_invocations


def test_the_kernel_follows_the_number_of_tokens_and_the_device(gpu: DeviceInfo, matrix_gpu: DeviceInfo) -> None:
    assert plan(gpu, 1).entry == plan(matrix_gpu, 1).entry == "linear_vec_bf16"
    assert plan(gpu, 32).entry == "linear_vec_bf16"
    assert plan(gpu, 33).entry == "linear_many_bf16"
    assert plan(matrix_gpu, 32).entry == "linear_many_coopmat_bf16"


@pytest.mark.parametrize("tokens", [1, 4, 5, 32, 512])
def test_what_reads_half_does_not_depend_on_the_weights(gpu: DeviceInfo, matrix_gpu: DeviceInfo, tokens: int) -> None:
    for info in (gpu, matrix_gpu):
        assert {plan(info, tokens, n).form is InputForm.HALVES for n in (8, 4096, 262_144)} == {
            reads_half(info, tokens, DType.BF16)
        }


def test_single_precision_keeps_away_from_matrix_units(matrix_gpu: DeviceInfo) -> None:
    entries = [plan_linear(matrix_gpu, num_tokens=t, n=64, k=4096, dtype=DType.F32).entry for t in (1, 8, 512)]
    assert entries == ["linear_vec_f32", "linear_vec_f32", "linear_many_f32"]


def test_a_matrix_kernel_asks_for_a_subgroup_size_that_fills_its_workgroup(matrix_gpu: DeviceInfo) -> None:
    chosen = plan(matrix_gpu, 512)
    constants = dict(chosen.constants)
    assert chosen.subgroup_size == 32
    assert constants["WORKGROUP"] == 32 * constants["SUBGROUPS_T"] * constants["SUBGROUPS_N"]


def test_matrix_units_are_left_alone_where_the_subgroup_size_is_unknown(matrix_gpu: DeviceInfo) -> None:
    assert not reads_half(replace(matrix_gpu, features=frozenset({"float16", MATRIX_FEATURE})), 512, DType.BF16)


def test_tiles_stay_within_the_shared_memory(matrix_gpu: DeviceInfo) -> None:
    small = dict(plan(replace(matrix_gpu, max_shared_memory=32768), 2048).constants)
    large = dict(plan(matrix_gpu, 2048).constants)
    assert small["TILE_T"] < large["TILE_T"]


def test_narrow_products_have_k_cut_among_workgroups_on_a_discrete_gpu(matrix_gpu: DeviceInfo) -> None:
    discrete = replace(matrix_gpu, type=DeviceType.DISCRETE)
    narrow, wide = (plan(discrete, 8, n) for n in (4096, 262_144))
    assert dict(narrow.constants)["SPLITS"] == narrow.grid[2] > 1
    assert wide.grid[2] == dict(wide.constants)["SPLITS"] == 1
    assert plan(matrix_gpu, 8).grid[2] == 1


def test_what_splits_leave_for_each_other_has_room(matrix_gpu: DeviceInfo) -> None:
    discrete = replace(matrix_gpu, type=DeviceType.DISCRETE)
    for tokens in (3, 16, 17, 64, 65, 512, 2048):
        for n in (8, 97, 5376, 43_008, 262_144):
            constants, (x, y, splits) = dict(plan(discrete, tokens, n).constants), plan(discrete, tokens, n).grid
            if splits > 1:
                assert x * y <= MAX_SPLIT_TILES
                assert x * y * splits * constants["TILE_T"] * constants["TILE_N"] <= MAX_PARTIALS


def test_few_pipelines_serve_all_sizes_of_a_step(gpu: DeviceInfo, matrix_gpu: DeviceInfo) -> None:
    for info in (gpu, matrix_gpu):
        assert len(pipelines_for(info, num_tokens=range(1, 513), n=4096, k=4096, dtype=DType.F16)) <= 7


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "soft cap"])
def test_a_gate_with_what_kernels_would_do_to_one_half_alone_is_refused(gpu: DeviceInfo, *, bias: bool) -> None:
    with pytest.raises(ValueError, match=f"no kernel applies a gate with a {'bias' if bias else 'soft cap'}"):
        plan_linear(
            gpu,
            num_tokens=1,
            n=64,
            k=4096,
            dtype=DType.BF16,
            has_bias=bias,
            has_soft_cap=not bias,
            activation=Activation.SILU,
        )


def test_long_rows_of_workgroups_continue_along_the_second_dimension() -> None:
    assert split_grid(1) == (1, 1)
    assert split_grid(MAX_GRID_X) == (MAX_GRID_X, 1)
    assert split_grid(MAX_GRID_X + 1) == (MAX_GRID_X, 2)


@pytest.mark.parametrize("k", [4100, 0])
def test_weights_that_no_kernel_takes_are_refused(gpu: DeviceInfo, k: int) -> None:
    with pytest.raises(UnsupportedModelError, match="linear: "):
        plan_linear(gpu, num_tokens=1, n=64, k=k, dtype=DType.BF16)
