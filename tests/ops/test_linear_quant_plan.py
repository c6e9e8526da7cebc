from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from unicorn_async.config import Activation
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.linear_input import InputForm
from unicorn_async.ops.linear_plan import FRAGMENTS_FEATURE, MATRIX_FEATURE, TileTuning, can_split, coopmat_shared_bytes
from unicorn_async.ops.linear_quant_plan import (
    fuses_gate,
    leaves_blocks,
    plan_linear_quant,
    quant_form,
    quant_pipelines_for,
)
from unicorn_async.tensor import QuantFormat

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plan import LinearPlan


@pytest.fixture
def gpu(device: Device) -> DeviceInfo:
    """A made-up GPU without matrix units."""
    return replace(
        device.info,
        type=DeviceType.INTEGRATED,
        subgroup_size=64,
        min_subgroup_size=32,
        max_subgroup_size=64,
        max_workgroup_invocations=1024,
        max_shared_memory=49152,
        features=frozenset({"float16", "integer_dot", "subgroup_size_control"}),
    )


@pytest.fixture
def matrix_gpu(gpu: DeviceInfo) -> DeviceInfo:
    """The same with matrix units."""
    return replace(gpu, features=gpu.features | {MATRIX_FEATURE})


def plan(info: DeviceInfo, tokens: int, n: int = 4096, activation: Activation | None = None) -> LinearPlan:
    return plan_linear_quant(info, num_tokens=tokens, n=n, k=4096, quant_format=QuantFormat.INT4, activation=activation)


def fragment_gpu(gpu: DeviceInfo) -> DeviceInfo:
    """The same with matrix units of which lanes hold known elements."""
    return replace(gpu, features=gpu.features | {MATRIX_FEATURE, FRAGMENTS_FEATURE})


def covers(chosen: LinearPlan, tokens: int, n: int) -> bool:
    constants, (x, y, z) = dict(chosen.constants), chosen.grid
    if chosen.entry.startswith("linear_quant_vec"):
        return x * y * constants["ROWS"] * constants["PASSES"] >= n and z * constants["TOKENS"] >= tokens
    if chosen.entry.startswith("linear_quant_held"):
        groups = constants["WORKGROUP"] // constants["SUBGROUP"] // constants["SPLIT"]
        return x * y * groups * constants["ROWS"] * constants["PASSES"] >= n and z * constants["TOKENS"] >= tokens
    if chosen.entry.startswith("linear_quant_fragments"):
        rows = 16 * constants["FRAGMENTS_N"] * constants["SUBGROUPS_N"]
        return x * 16 * constants["FRAGMENTS_T"] >= tokens and y * rows >= n and z == constants["SPLITS"]
    return x * constants["TILE_T"] >= tokens and y * constants["TILE_N"] >= n and z == constants.get("SPLITS", 1)


@pytest.fixture
def software(gpu: DeviceInfo) -> DeviceInfo:
    """A made-up device that is a CPU."""
    return replace(gpu, type=DeviceType.SOFTWARE, subgroup_size=8, min_subgroup_size=8, max_subgroup_size=8)


def cuts(info: DeviceInfo, sizes: tuple[int, ...], n: int) -> list[tuple[int, int, int]]:
    """Tokens and rows that share reads, and subgroups of a workgroup, in steps of these sizes."""
    found = [dict(plan(info, tokens, n).constants) for tokens in sizes]
    return [(cut["TOKENS"], cut["ROWS"], cut["WORKGROUP"] // info.subgroup_size) for cut in found]


@pytest.mark.parametrize("n", [576, 3072, 28_672])
def test_on_a_cpu_few_tokens_leave_few_places_of_a_group_empty(software: DeviceInfo, n: int) -> None:
    assert cuts(software, (1, 2, 3, 4, 8), n) == [(1, 8, 1), (2, 4, 1), (4, 4, 1), (4, 4, 1), (8, 8, 1)]
    assert cuts(software, (9, 12, 13, 16, 64), n) == [(4, 4, 1), (4, 4, 1), (8, 8, 1), (8, 8, 1), (8, 8, 1)]


def test_few_tokens_on_a_gpu_are_cut_by_a_table_of_its_own(gpu: DeviceInfo) -> None:
    assert cuts(gpu, (3, 4, 5, 8, 12, 32), 28_672) == [(4, 2, 1)] * 2 + [(8, 4, 2)] * 4
    assert cuts(gpu, (3, 4, 5, 8, 12, 32), 3072) == [(4, 1, 1)] * 2 + [(8, 1, 2)] * 4


@pytest.mark.parametrize("tokens", [1, 2, 5, 8, 9, 31, 33, 300, 2048])
@pytest.mark.parametrize("n", [1, 98, 4096, 262_144])
def test_the_grid_covers_the_output(
    gpu: DeviceInfo, matrix_gpu: DeviceInfo, software: DeviceInfo, tokens: int, n: int
) -> None:
    for info in (gpu, matrix_gpu, fragment_gpu(gpu), software):
        gated = fuses_gate(info, tokens, 4096) and n % 2 == 0
        for chosen in (plan(info, tokens, n), plan(info, tokens, n, Activation.SILU if gated else None)):
            assert covers(chosen, tokens, n), chosen
            assert max(chosen.grid) <= 65535
            assert dict(chosen.constants)["WORKGROUP"] <= info.max_workgroup_invocations


@pytest.mark.parametrize("most", [128, 256, 1024])
@pytest.mark.parametrize("k", [1024, 4096, 5376, 16384, 21504])
def test_small_workgroups_hold_what_they_can(gpu: DeviceInfo, most: int, k: int) -> None:
    info = replace(gpu, max_workgroup_invocations=most)
    chosen = plan_linear_quant(info, num_tokens=1, n=4096, k=k, quant_format=QuantFormat.INT4)
    constants = dict(chosen.constants)
    assert constants["WORKGROUP"] <= most
    if chosen.entry == "linear_quant_held_q4":
        assert constants["WORKGROUP"] % (constants["SUBGROUP"] * constants["SPLIT"]) == 0
        assert constants["SUBGROUP"] * constants["SPLIT"] * constants["HELD"] * 32 >= k
    assert covers(chosen, 1, 4096)


def test_a_gpu_makes_several_passes_only_where_that_leaves_it_full(gpu: DeviceInfo) -> None:
    assert [dict(plan(gpu, 1, n).constants)["PASSES"] for n in (1600, 3198, 3200, 4800, 262_144)] == [1, 1, 2, 3, 3]
    for n in range(1600, 20_000, 98):
        x, y, z = plan(gpu, 1, n).grid
        assert x * y * z >= 800


def test_passes_are_fetched_ahead_where_codes_have_eight_bits_and_passes_are_long(gpu: DeviceInfo) -> None:
    def ahead(quant_format: QuantFormat, k: int, tokens: int = 1) -> bool:
        chosen = plan_linear_quant(gpu, num_tokens=tokens, n=8192, k=k, quant_format=quant_format)
        assert chosen.entry.startswith("linear_quant_held")
        return bool(dict(chosen.constants)["AHEAD"])

    assert ahead(QuantFormat.Q8_0, 5376)
    assert not ahead(QuantFormat.Q8_0, 1024)
    assert not ahead(QuantFormat.Q8_0, 5376, tokens=2)
    assert not ahead(QuantFormat.Q4_0, 5376)


def test_the_kernel_follows_the_number_of_tokens_and_the_device(gpu: DeviceInfo, matrix_gpu: DeviceInfo) -> None:
    assert plan(gpu, 1).entry == plan(matrix_gpu, 2).entry == "linear_quant_held_q4"
    assert plan(gpu, 3).entry == plan(matrix_gpu, 8).entry == "linear_quant_vec_q4"
    assert plan(gpu, 33).entry == "linear_quant_many_q4"
    assert plan(matrix_gpu, 33).entry == "linear_quant_coopmat_q4"
    for info in (gpu, matrix_gpu):
        for tokens in range(1, 80):
            assert plan(info, tokens).form is quant_form(info, tokens, 4096)


def test_known_fragments_of_matrices_are_used_where_rows_are_whole_chunks(gpu: DeviceInfo) -> None:
    info = fragment_gpu(gpu)
    assert plan(info, 33).entry == "linear_quant_fragments_q4"
    other = plan_linear_quant(info, num_tokens=33, n=64, k=4096 + 32, quant_format=QuantFormat.INT4)
    assert other.entry == "linear_quant_coopmat_q4"
    forms = [quant_form(info, tokens, 4096) for tokens in (2, 3, 64, 65)]
    assert forms == [InputForm.BLOCKS, InputForm.FRAGMENTS, InputForm.FRAGMENTS, InputForm.HALVES]


def test_a_gpu_leaves_a_gate_s_output_in_blocks_for_one_token_alone_a_cpu_always(
    gpu: DeviceInfo, matrix_gpu: DeviceInfo, software: DeviceInfo
) -> None:
    sizes = (1, 2, 4, 8, 32, 64)
    for info in (gpu, matrix_gpu, fragment_gpu(gpu)):
        assert [leaves_blocks(info, tokens, 4096) for tokens in sizes] == [True, *[False] * 5]
    assert all(leaves_blocks(software, tokens, 4096) for tokens in sizes)


def test_a_gate_is_applied_where_rows_of_a_workgroup_pair_up(gpu: DeviceInfo) -> None:
    for tokens in range(1, 33):
        constants = dict(plan(gpu, tokens, activation=Activation.GELU_TANH).constants)
        assert constants["GATED"]
        assert constants["ROWS"] % 2 == 0
    with pytest.raises(ValueError, match="no kernel applies the gate for 33 tokens"):
        plan(gpu, 33, activation=Activation.SILU)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "soft cap"])
def test_a_gate_with_what_kernels_would_do_to_one_half_alone_is_refused(gpu: DeviceInfo, *, bias: bool) -> None:
    for tokens in (1, 2, 8):
        with pytest.raises(ValueError, match=f"no kernel applies a gate with a {'bias' if bias else 'soft cap'}"):
            plan_linear_quant(
                gpu,
                num_tokens=tokens,
                n=64,
                k=4096,
                quant_format=QuantFormat.INT4,
                has_bias=bias,
                has_soft_cap=not bias,
                activation=Activation.SILU,
            )


def test_few_rows_share_k_among_workgroups_as_far_as_the_scratch_allows(matrix_gpu: DeviceInfo) -> None:
    discrete = replace(matrix_gpu, type=DeviceType.DISCRETE)
    assert plan(discrete, 16, 1024).grid[2] > 1
    assert plan(discrete, 16, 262_144).grid[2] == 1
    assert not can_split(TileTuning(0, 128, 128, 2, 2, splits=8), 2048, 4096)


def test_tiles_stay_within_the_shared_memory(matrix_gpu: DeviceInfo) -> None:
    for memory in (32768, 49152):
        for tokens in (16, 32, 64, 2048):
            constants = dict(plan(replace(matrix_gpu, max_shared_memory=memory), tokens).constants)
            tuning = TileTuning(
                0,
                constants["TILE_T"],
                constants["TILE_N"],
                constants["SUBGROUPS_T"],
                constants["SUBGROUPS_N"],
                constants["TILE_K"],
                constants["BUFFERS"],
            )
            assert coopmat_shared_bytes(tuning) <= memory


def test_few_pipelines_serve_all_sizes_of_a_step(gpu: DeviceInfo, matrix_gpu: DeviceInfo) -> None:
    for info in (gpu, matrix_gpu):
        plans = quant_pipelines_for(info, num_tokens=range(1, 513), n=4096, k=4096, quant_format=QuantFormat.Q6_K)
        assert len(plans) <= 10
