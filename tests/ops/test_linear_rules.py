from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.gpu.made_up import INTEGRATED
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.grid import MAX_GRID_X, split_grid
from unicorn_async.ops.linear import fuses_gate, leaves_blocks
from unicorn_async.ops.linear_plans.few_rows import few_rows_plan, few_rows_tile, few_rows_tiles
from unicorn_async.ops.linear_plans.product import WEIGHTS, Product
from unicorn_async.ops.linear_plans.rules import can_gate, pays_to_block, plan_linear, reads_form, tuned_plan
from unicorn_async.ops.linear_plans.tiles import TileTuning, coopmat_shared_bytes, most_splits, num_tiles
from unicorn_async.ops.linear_scratch import MAX_PARTIALS
from unicorn_async.ops.rows import MAX_SPLIT_TILES, RowForm
from unicorn_async.ops.subgroups import FRAGMENTS_FEATURE, MATRIX_FEATURE
from unicorn_async.tensor import DType, MixedTensor, QuantFormat, QuantTensor, Tensor

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plans.plan import LinearPlan

# Without matrix units, and of a wave size that the driver may choose; then with them; then with lanes that hold known
# elements; then a device that is a CPU; then RDNA, without and with matrix units.
GPU = replace(
    INTEGRATED,
    subgroup_size=32,
    min_subgroup_size=32,
    max_subgroup_size=64,
    max_workgroup_invocations=1024,
    max_shared_memory=49152,
    features=frozenset({"float16", "integer_dot", "subgroup_size_control"}),
)
MATRIX_GPU = replace(GPU, features=GPU.features | {MATRIX_FEATURE})
FRAGMENT_GPU = replace(GPU, features=GPU.features | {MATRIX_FEATURE, FRAGMENTS_FEATURE})
SOFTWARE = replace(GPU, type=DeviceType.SOFTWARE, subgroup_size=8, min_subgroup_size=8, max_subgroup_size=8)
RDNA = replace(GPU, subgroup_size=64, max_shared_memory=65536, compute_units=12)
MATRIX_RDNA = replace(RDNA, features=MATRIX_GPU.features)
DEVICES = (GPU, MATRIX_GPU, FRAGMENT_GPU, SOFTWARE, RDNA, MATRIX_RDNA)


def plan(info: DeviceInfo, weights: str, tokens: int, n: int = 4096, k: int = 4096, **given: bool) -> LinearPlan:
    return plan_linear(info, Product(weights, tokens, n, k, **given))


def covers(chosen: LinearPlan, tokens: int, n: int) -> bool:
    constants, (x, y, z) = dict(chosen.constants), chosen.grid
    if "_vec_" in chosen.entry:
        return x * y * constants["ROWS"] * constants["PASSES"] >= n and z * constants["TOKENS"] >= tokens
    if "_held_" in chosen.entry:
        groups = constants["WORKGROUP"] // constants["SUBGROUP"] // constants["SPLIT"]
        return x * y * groups * constants["ROWS"] * constants["PASSES"] >= n and z * constants["TOKENS"] >= tokens
    if "_fragments_" in chosen.entry:
        rows = 16 * constants["FRAGMENTS_N"] * constants["SUBGROUPS_N"]
        return x * 16 * constants["FRAGMENTS_T"] >= tokens and y * rows >= n and z == constants["SPLITS"]
    return x * constants["TILE_T"] >= tokens and y * constants["TILE_N"] >= n and z == constants.get("SPLITS", 1)


@pytest.mark.parametrize("n", [1, 255, 576, 3072, 49_152])
def test_on_a_cpu_workgroups_are_few_but_leave_none_of_many_cores_idle(n: int) -> None:
    chosen = plan(SOFTWARE, "bf16", 1, n)
    assert dict(chosen.constants)["PREFETCH"] == DType.BF16.itemsize
    assert min(32, -(-n // 8)) <= chosen.grid[0] <= max(63, -(-n // 128))


def test_a_gpu_takes_dense_rows_once_and_prefetches_nothing() -> None:
    constants = dict(plan(GPU, "bf16", 1).constants)
    assert (constants["PASSES"], constants["PREFETCH"]) == (1, 0)


def test_two_tokens_on_a_cpu_are_not_computed_as_four() -> None:
    together = [dict(plan(SOFTWARE, "bf16", tokens).constants)["TOKENS"] for tokens in (1, 2, 3, 4, 5, 8, 12, 64)]
    assert together == [1, 2, 4, 4, 8, 8, 8, 8]


def test_few_tokens_of_dense_weights_on_a_gpu_are_cut_by_a_table_of_their_own() -> None:
    found = [dict(plan(GPU, "bf16", tokens).constants) for tokens in (1, 2, 3, 4, 8, 12, 32)]
    cuts = [(cut["TOKENS"], cut["WORKGROUP"] // 32, cut["ROWS"], cut["PASSES"]) for cut in found]
    assert cuts == [(1, 8, 2, 1), (2, 1, 2, 1), (4, 2, 4, 1), (4, 2, 4, 1), (8, 1, 4, 1), (16, 1, 2, 1), (32, 1, 2, 1)]


def test_few_dense_rows_on_a_gpu_have_their_columns_shared_among_many_lanes() -> None:
    for info in (GPU, MATRIX_GPU, RDNA, MATRIX_RDNA):
        found = [plan(info, "f32", tokens, 128, 2048) for tokens in (1, 2, 4, 8, 9, 16)]
        cuts = [(dict(cut.constants)["TOKENS"], dict(cut.constants)["ROWS"], cut.grid) for cut in found]
        grids = [(64, 1, 1), (128, 1, 1), (128, 1, 1), (128, 1, 1), (64, 1, 2), (64, 1, 2)]
        assert cuts == list(zip((1, 2, 4, 8, 8, 8), (2, 1, 1, 1, 2, 2), grids, strict=True))
        assert {dict(cut.constants)["WORKGROUP"] for cut in found} == {256}
        tiles = [plan(info, "f32", tokens, n, 2048) for tokens, n in ((65, 128), (512, 257), (8192, 128), (513, 1025))]
        assert [tile.entry for tile in tiles] == ["linear_few_rows_f32"] * 4
        more = [plan(info, "f32", tokens, 128, 2048).entry for tokens in (17, 64)]
        assert more == [f"linear_{'few_rows' if info in (RDNA, MATRIX_RDNA) else 'vec'}_f32"] * 2
        rows = [dict(plan(info, "f32", 8, n, 2048).constants)["ROWS"] for n in (129, 257, 513, 1025)]
        assert rows == [1, 2, 4, 4]
        assert plan(info, "f32", 512, 2048).entry == "linear_many_f32"
    assert plan(SOFTWARE, "f32", 512, 128).entry == "linear_vec_f32"


@pytest.mark.parametrize("units", [12, 60, 132])
@pytest.mark.parametrize("tokens", [65, 128, 512, 2048])
@pytest.mark.parametrize("n", [128, 256, 257])
def test_tiles_of_few_rows_leave_no_compute_unit_much_more_than_its_share(n: int, tokens: int, units: int) -> None:
    product = Product("f32", tokens, n, 2048)
    tile = few_rows_tile(replace(GPU, compute_units=units), product)
    most = -(-num_tiles(tile, product) // units) * tile.tile_t * tile.tile_n
    assert most <= max(2 * 16 * 16, 1.7 * n * tokens / units)


def test_a_router_with_a_shared_expert_s_gate_has_a_tile_for_each_of_many_compute_units() -> None:
    chosen = plan(replace(GPU, compute_units=132), "f32", 512, 257, 2048)
    cut = dict(chosen.constants)
    assert (cut["TILE_T"], cut["TILE_N"], chosen.grid) == (32, 40, (16, 7, 1))
    assert (cut["WORKGROUP"], cut["PARTS"], cut["TILE_K"]) == (512, 16, 128)


@pytest.mark.parametrize("info", DEVICES)
@pytest.mark.parametrize("most", [128, 256, 1024])
def test_what_shares_k_fits_into_a_workgroup(info: DeviceInfo, most: int) -> None:
    product = Product("f32", 513, 257, 2048)
    for tile in few_rows_tiles(info, product):
        cut = dict(few_rows_plan(replace(info, max_workgroup_invocations=most), tile, product).constants)
        lanes, parts = cut["TILE_T"] // cut["LANE_T"] * (cut["TILE_N"] // cut["LANE_N"]), cut["PARTS"]
        assert cut["WORKGROUP"] == lanes * parts <= min(most, 512)
        assert cut["LANE_T"] * cut["LANE_N"] <= (48 if info is RDNA else 72)
        assert cut["TILE_K"] % (4 * parts) == 0 and parts & (parts - 1) == 0
        staged = 4 * (cut["TILE_T"] + cut["TILE_N"]) * (cut["TILE_K"] + 4)
        left = 4 * (parts // 2) * cut["TILE_T"] * cut["TILE_N"]
        assert max(staged, left) <= (32 << 10 if info in (RDNA, MATRIX_RDNA) else 48 << 10)


def quant_cuts(info: DeviceInfo, sizes: tuple[int, ...], n: int) -> list[tuple[int, int, int]]:
    """Tokens and rows that share reads, and subgroups of a workgroup, in steps of these sizes."""
    found = [dict(plan(info, "q4", tokens, n).constants) for tokens in sizes]
    return [(cut["TOKENS"], cut["ROWS"], cut["WORKGROUP"] // info.subgroup_size) for cut in found]


@pytest.mark.parametrize("n", [576, 3072, 28_672])
def test_on_a_cpu_few_tokens_leave_few_places_of_a_group_empty(n: int) -> None:
    assert quant_cuts(SOFTWARE, (1, 2, 3, 4, 8), n) == [(1, 8, 1), (2, 4, 1), (4, 4, 1), (4, 4, 1), (8, 8, 1)]
    assert quant_cuts(SOFTWARE, (9, 12, 13, 16, 64), n) == [(4, 4, 1), (4, 4, 1), (8, 8, 1), (8, 8, 1), (8, 8, 1)]


def test_few_tokens_of_quantised_weights_on_a_gpu_are_cut_by_a_table_of_their_own() -> None:
    assert quant_cuts(GPU, (3, 4, 5, 8, 12, 32), 28_672) == [(4, 2, 1)] * 2 + [(8, 4, 2)] * 4
    assert quant_cuts(GPU, (3, 4, 5, 8, 12, 32), 3072) == [(4, 1, 1)] * 2 + [(8, 1, 2)] * 4


@pytest.mark.parametrize("tokens", [1, 2, 5, 8, 9, 31, 32, 33, 300, 2048])
@pytest.mark.parametrize("n", [1, 98, 4096, 262_144])
@pytest.mark.parametrize("weights", ["bf16", "q4"])
def test_the_grid_covers_the_output(weights: str, n: int, tokens: int) -> None:
    for info in DEVICES:
        product = Product(weights, tokens, n, 4096)
        gated = product._replace(gated=n % 2 == 0 and can_gate(info, product))
        for own in (product, gated):
            chosen = plan_linear(info, own)
            assert covers(chosen, tokens, n), chosen
            assert max(chosen.grid) <= 65535
            assert dict(chosen.constants)["WORKGROUP"] <= info.max_workgroup_invocations


@pytest.mark.parametrize("most", [128, 256, 1024])
@pytest.mark.parametrize("k", [1024, 4096, 5376, 16384, 21504])
def test_small_workgroups_hold_what_they_can(most: int, k: int) -> None:
    chosen = plan(replace(GPU, max_workgroup_invocations=most), "q4", 1, k=k)
    constants = dict(chosen.constants)
    assert constants["WORKGROUP"] <= most
    if chosen.entry == "linear_quant_held_q4":
        assert constants["WORKGROUP"] % (constants["SUBGROUP"] * constants["SPLIT"]) == 0
        assert constants["SUBGROUP"] * constants["SPLIT"] * constants["HELD"] * 32 >= k
    assert covers(chosen, 1, 4096)


def test_a_gpu_makes_several_passes_only_where_that_leaves_it_full() -> None:
    sizes = (1600, 3198, 3200, 4800, 262_144)
    assert [dict(plan(GPU, "q4", 1, n).constants)["PASSES"] for n in sizes] == [1, 1, 2, 3, 3]
    for n in range(1600, 20_000, 98):
        x, y, z = plan(GPU, "q4", 1, n).grid
        assert x * y * z >= 800


def test_passes_are_fetched_ahead_where_codes_have_eight_bits_and_passes_are_long() -> None:
    def ahead(weights: str, k: int, tokens: int = 1, info: DeviceInfo = GPU) -> bool:
        chosen = plan(info, weights, tokens, 8192, k)
        assert chosen.entry.startswith("linear_quant_held")
        return bool(dict(chosen.constants)["AHEAD"])

    assert ahead("q8", 5376)
    assert not ahead("q8", 1024)
    assert not ahead("q8", 1024, tokens=2, info=RDNA)
    assert not ahead("q4", 5376)


def test_the_kernel_follows_the_number_of_tokens_and_the_device() -> None:
    def entries(info: DeviceInfo, weights: str, *sizes: int) -> list[str]:
        return [plan(info, weights, tokens).entry.removeprefix("linear_") for tokens in sizes]

    assert entries(GPU, "bf16", 1, 32, 33) == ["vec_bf16", "vec_bf16", "many_bf16"]
    assert entries(MATRIX_GPU, "bf16", 1, 2, 3, 32) == ["vec_bf16", "vec_bf16", *["many_coopmat_bf16"] * 2]
    assert entries(MATRIX_GPU, "f32", 1, 8, 512) == ["vec_f32", "vec_f32", "many_f32"]
    assert entries(GPU, "q4", 1, 3, 33) == ["quant_held_q4", "quant_vec_q4", "quant_many_q4"]
    assert entries(MATRIX_GPU, "q4", 1, 2, 8, 33) == ["quant_held_q4", *["quant_vec_q4"] * 2, "quant_coopmat_q4"]
    assert entries(RDNA, "q4", 1, 2, 3) == [*["quant_held_q4"] * 2, "quant_vec_q4"]
    assert entries(FRAGMENT_GPU, "q4", 33) == ["quant_fragments_q4"]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_form_of_an_input_is_the_plan_s_and_does_not_depend_on_the_rows(weights: str) -> None:
    for info in DEVICES:
        for tokens in (*range(1, 80), 512):
            products = [Product(weights, tokens, n, 4096) for n in (8, 4096, 262_144)]
            assert {plan_linear(info, product).form for product in products} == {reads_form(info, products[0])}


def test_known_fragments_of_matrices_are_used_where_rows_are_whole_chunks() -> None:
    assert plan(FRAGMENT_GPU, "q4", 33, 64, 4096 + 32).entry == "linear_quant_coopmat_q4"
    forms = [reads_form(FRAGMENT_GPU, Product("q4", tokens, 64, 4096)) for tokens in (2, 3, 128, 129)]
    assert forms == [RowForm.BLOCKS, RowForm.FRAGMENTS, RowForm.FRAGMENTS, RowForm.HALVES]


def test_a_gpu_leaves_a_gate_s_output_in_blocks_for_one_token_alone_a_cpu_always() -> None:
    products = [Product("q4", tokens, 4096, 4096) for tokens in (1, 2, 4, 8, 32, 64)]
    for info in (GPU, MATRIX_GPU, FRAGMENT_GPU):
        assert [pays_to_block(info, product) for product in products] == [True, *[False] * 5]
    assert all(pays_to_block(SOFTWARE, product) for product in products)
    assert not pays_to_block(SOFTWARE, Product("bf16", 1, 4096, 4096))


def test_weights_apply_a_gate_in_one_piece_alone() -> None:
    dense, quantised = Tensor(0, (64, 256), DType.F16), QuantTensor(0, (64, 256), QuantFormat.Q4_0)
    assert [fuses_gate(GPU, dense, tokens) for tokens in (1, 2)] == [True, False]
    assert [fuses_gate(GPU, quantised, tokens) for tokens in (1, 32, 33)] == [True, True, False]
    assert not fuses_gate(GPU, MixedTensor((quantised, quantised)), 1)
    assert leaves_blocks(GPU, quantised, 1) and not leaves_blocks(GPU, MixedTensor((quantised, quantised)), 1)


def test_a_gate_is_applied_where_rows_of_a_workgroup_pair_up() -> None:
    for tokens in range(1, 33):
        assert dict(plan(GPU, "q4", tokens, gated=True).constants)["ROWS"] % 2 == 0
    with pytest.raises(ValueError, match="no kernel applies the gate for 33 tokens and 4096 rows"):
        plan(GPU, "q4", 33, gated=True)
    with pytest.raises(ValueError, match="no kernel applies the gate for 2 tokens"):
        plan(GPU, "bf16", 2, gated=True)


@pytest.mark.parametrize("weights", ["bf16", "q4"])
def test_a_matrix_kernel_asks_for_a_subgroup_size_that_fills_its_workgroup(weights: str) -> None:
    chosen = plan(MATRIX_GPU, weights, 512)
    constants = dict(chosen.constants)
    assert chosen.subgroup_size == 32
    assert constants["WORKGROUP"] == 32 * constants["SUBGROUPS_T"] * constants["SUBGROUPS_N"]


@pytest.mark.parametrize("weights", ["bf16", "q4"])
def test_matrix_units_are_left_alone_where_the_subgroup_size_is_unknown(weights: str) -> None:
    unknown = replace(MATRIX_GPU, features=frozenset({"float16", MATRIX_FEATURE}))
    assert reads_form(unknown, Product(weights, 512, 64, 4096)) in (RowForm.FLOATS, RowForm.BLOCKS)


@pytest.mark.parametrize("weights", ["bf16", "q4"])
def test_tiles_stay_within_the_shared_memory(weights: str) -> None:
    for memory in (32768, 49152, 65536):
        for tokens in (16, 32, 64, 2048):
            cut = dict(plan(replace(MATRIX_GPU, max_shared_memory=memory), weights, tokens).constants)
            parts = cut["SUBGROUPS_T"], cut["SUBGROUPS_N"]
            tile = TileTuning(0, cut["TILE_T"], cut["TILE_N"], *parts, cut["TILE_K"], cut["BUFFERS"])
            assert coopmat_shared_bytes(tile) <= memory
    small = dict(plan(replace(MATRIX_GPU, max_shared_memory=32768), "bf16", 2048).constants)
    assert small["TILE_T"] < dict(plan(MATRIX_GPU, "bf16", 2048).constants)["TILE_T"]


@pytest.mark.parametrize(("weights", "tokens", "narrow"), [("bf16", 8, 4096), ("q4", 16, 1024)])
def test_narrow_products_have_k_cut_among_workgroups_on_a_discrete_gpu(weights: str, tokens: int, narrow: int) -> None:
    discrete = replace(MATRIX_GPU, type=DeviceType.DISCRETE)
    few, many = (plan(discrete, weights, tokens, n) for n in (narrow, 262_144))
    assert dict(few.constants)["SPLITS"] == few.grid[2] > 1
    assert many.grid[2] == dict(many.constants)["SPLITS"] == 1
    assert plan(MATRIX_GPU, weights, tokens, narrow).grid[2] == 1


def test_what_splits_leave_for_each_other_has_room() -> None:
    discrete = replace(MATRIX_GPU, type=DeviceType.DISCRETE)
    for tokens in (3, 16, 17, 64, 65, 512, 2048):
        for n in (8, 97, 5376, 43_008, 262_144):
            chosen = plan(discrete, "bf16", tokens, n)
            constants, (x, y, splits) = dict(chosen.constants), chosen.grid
            if splits > 1:
                assert x * y <= MAX_SPLIT_TILES
                assert x * y * splits * constants["TILE_T"] * constants["TILE_N"] <= MAX_PARTIALS
    assert most_splits(TileTuning(0, 128, 128, 2, 2), Product("q4", 2048, 4096, 4096)) == 1


@pytest.mark.parametrize(("weights", "most"), [("bf16", 7), ("q6_k", 10)])
def test_few_pipelines_serve_all_sizes_of_a_step(weights: str, most: int) -> None:
    for info in (GPU, MATRIX_GPU):
        assert len({plan(info, weights, tokens).pipeline for tokens in range(1, 513)}) <= most


def test_plans_are_remembered_by_the_device_s_description_and_not_by_what_it_says() -> None:
    product = Product("q4", 1, 4096, 4096)
    assert tuned_plan(GPU, product) is tuned_plan(GPU, product._replace())
    alike = replace(GPU)
    assert alike == GPU and tuned_plan(alike, product) is not tuned_plan(GPU, product)


def test_long_rows_of_workgroups_continue_along_the_second_dimension() -> None:
    assert split_grid(1) == (1, 1)
    assert split_grid(MAX_GRID_X) == (MAX_GRID_X, 1)
    assert split_grid(MAX_GRID_X + 1) == (MAX_GRID_X, 2)


@pytest.mark.parametrize(
    ("weights", "k", "unit"),
    [("bf16", 4100, 8), ("bf16", 0, 8), ("q8", 48, 32), ("nf4", 96, 64), ("q4_k", 384, 256), ("q4", 0, 32)],
)
def test_rows_that_are_no_whole_units_are_refused(weights: str, k: int, unit: int) -> None:
    with pytest.raises(UnsupportedModelError, match=f"have {k} elements, expected a multiple of {unit}"):
        plan(GPU, weights, 1, 64, k)


def test_products_that_no_kernel_makes_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="quantised weights need subgroups of 8 lanes"):
        plan(replace(GPU, min_subgroup_size=4), "q4", 1)
    with pytest.raises(ValueError, match="expected at least 1 token and 1 row, got 0 and 4096"):
        plan(GPU, "bf16", 0)
    with pytest.raises(ValueError, match="no kernel leaves the outputs of 72 rows in blocks"):
        plan(GPU, "q4", 1, 72, gated=True, blocked=True)
    with pytest.raises(ValueError, match="no kernel leaves the outputs of bf16 weights in blocks"):
        plan(GPU, "bf16", 1, gated=True, blocked=True)
