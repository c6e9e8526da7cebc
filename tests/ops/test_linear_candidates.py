"""Every plan that tuning may choose computes the same product, whichever it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.ops.quant_arrays import read_blocks
from tests.ops.test_linear import HALF, SINGLE, activated, skip_without_matrices
from tests.ops.test_linear import Case as DenseCase
from tests.ops.test_linear_quant import Case as QuantCase
from tests.ops.test_linear_quant import gated
from unicorn_async.config import Activation
from unicorn_async.errors import ConfigError, UnsupportedModelError
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.linear import kernels_for
from unicorn_async.ops.linear_candidates import WEIGHTS, Product, candidates, choice
from unicorn_async.ops.linear_input import InputBlocks, InputForm
from unicorn_async.ops.linear_plan import (
    FRAGMENTS_FEATURE,
    MATRIX_FEATURE,
    NARROW_FEATURE,
    TileTuning,
    can_split,
    plan_linear,
    software_passes,
    tuned_plan,
)
from unicorn_async.tensor import DType, QuantFormat

if TYPE_CHECKING:
    from tests.ops.arrays import Arrays
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plan import LinearPlan

TOKENS = (1, 2, 3, 8, 33)
MATRIX_TOKENS = (12, 24, 130)  # for which matrix units have tiles of their own
ROWS, COLUMNS = 67, 1280  # more columns than a subgroup of 32 lanes takes at a time


def kinds(info: DeviceInfo) -> tuple[DeviceInfo, ...]:
    """The device under test, and the same as a software device and as a GPU would be, whose candidates are others."""
    return tuple(replace(info, type=kind) for kind in (DeviceType.SOFTWARE, DeviceType.DISCRETE))


def plans(arrays: Arrays, product: Product) -> list[LinearPlan]:
    found = [plan for info in kinds(arrays.device.info) for plan in candidates(info, product)]
    return list({plan.pipeline: plan for plan in found}.values())


@pytest.mark.parametrize("tokens", (*TOKENS, *MATRIX_TOKENS))
def test_every_candidate_for_dense_weights_equals_the_product(arrays: Arrays, tokens: int) -> None:
    if tokens in MATRIX_TOKENS:
        skip_without_matrices(arrays.device.info)
    case = DenseCase(arrays, tokens, ROWS, COLUMNS, DType.BF16)
    for plan in plans(arrays, Product.of(DType.BF16, tokens, ROWS, COLUMNS)):
        case.y.values[:] = np.nan
        case.run(plan)
        case.check(HALF if plan.form is InputForm.HALVES else SINGLE)


@pytest.mark.parametrize("tokens", (*TOKENS, *MATRIX_TOKENS))
def test_every_candidate_for_quantised_weights_equals_the_product(arrays: Arrays, tokens: int) -> None:
    if tokens in MATRIX_TOKENS:
        skip_without_matrices(arrays.device.info)
    case = QuantCase(arrays, tokens, ROWS, COLUMNS, QuantFormat.INT4)
    for plan in plans(arrays, Product.of(QuantFormat.INT4, tokens, ROWS, COLUMNS)):
        case.y.values[:] = np.nan
        case.run(plan)


@pytest.mark.parametrize("tokens", [1, 8])
def test_candidates_take_the_other_types_of_weights_too(arrays: Arrays, tokens: int) -> None:
    dense = DenseCase(arrays, tokens, ROWS, COLUMNS, DType.F32)
    for plan in candidates(arrays.device.info, Product.of(DType.F32, tokens, ROWS, COLUMNS)):
        dense.y.values[:] = np.nan
        dense.run(plan)
        dense.check(SINGLE)
    case = QuantCase(arrays, tokens, ROWS, COLUMNS, QuantFormat.Q6_K)
    for plan in candidates(arrays.device.info, Product.of(QuantFormat.Q6_K, tokens, ROWS, COLUMNS)):
        case.y.values[:] = np.nan
        case.run(plan)


def test_every_candidate_for_dense_weights_applies_the_gate(arrays: Arrays) -> None:
    width = 67
    case = DenseCase(arrays, 1, 2 * width, 136, DType.BF16)
    gate, up = case.expected[:, :width], case.expected[:, width:]
    slope = case.magnitudes[:, :width] * np.abs(up) + case.magnitudes[:, width:] * np.abs(gate)
    for plan in plans(arrays, replace(Product.of(DType.BF16, 1, 2 * width, 136), gated=True)):
        case.y.values[:] = np.nan
        case.run(plan)
        error = np.abs(case.y.values[:width] - activated(Activation.SILU, gate) * up)
        assert (error <= 2 * SINGLE * slope + 1e-6).all()
        assert np.isnan(case.y.values[width:]).all()


@pytest.mark.parametrize("blocked", [False, True], ids=["floats", "blocks"])
@pytest.mark.parametrize("tokens", [1, 2])
def test_every_candidate_for_quantised_weights_applies_the_gate(
    arrays: Arrays, monkeypatch: pytest.MonkeyPatch, tokens: int, *, blocked: bool
) -> None:
    width = 160
    case = QuantCase(arrays, tokens, 2 * width, 512, QuantFormat.Q4_0)
    product = replace(Product.of(QuantFormat.Q4_0, tokens, 2 * width, 512), gated=True, blocked=blocked)
    expected, allowed = gated(case, Activation.GELU_TANH)
    info = arrays.device.info
    room = arrays.put(np.zeros(InputBlocks.size(tokens, width), np.uint8))
    for plan in plans(arrays, product):
        monkeypatch.setattr(arrays.device, "info", replace(info, tuned=dict([choice(info, product, plan)])))
        case.y.values[:] = np.nan
        out = InputBlocks.at(room.address, tokens, width) if blocked else None
        case.run_linear(activation=Activation.GELU_TANH, out=out)
        if blocked:
            codes, scales = read_blocks(room.values, tokens, width)
            step = np.repeat(scales, 32, axis=1)
            assert (np.abs(codes * step - expected) <= allowed + 0.5001 * step).all()
        else:
            found = case.y.values[: tokens * width].reshape(tokens, width)
            assert (np.abs(found - expected) <= allowed).all()


def test_a_choice_takes_the_place_of_the_rules_for_its_product_alone(device: Device) -> None:
    info, product = device.info, Product("bf16", 1, 96, 64)
    rule, *others = candidates(info, product)
    tuned = replace(info, tuned=dict([choice(info, product, others[0])]))
    assert tuned_plan(tuned, rule, num_tokens=1, n=96, k=64) == others[0]
    assert tuned_plan(tuned, rule, num_tokens=1, n=96, k=128) == rule
    assert tuned_plan(tuned, rule, num_tokens=2, n=96, k=64) == rule
    gate = plan_linear(info, num_tokens=1, n=96, k=64, dtype=DType.BF16, activation=Activation.SILU)
    assert tuned_plan(tuned, gate, num_tokens=1, n=96, k=64) == gate
    biased = plan_linear(info, num_tokens=1, n=96, k=64, dtype=DType.BF16, has_bias=True)
    found = tuned_plan(tuned, biased, num_tokens=1, n=96, k=64)
    assert found == replace(others[0], constants=(*others[0].constants, ("HAS_BIAS", True)))
    (request,) = kernels_for(tuned, num_tokens=(1,), n=96, k=64, dtype=DType.BF16)
    assert request.constants == dict(others[0].constants)


def test_candidates_begin_with_the_rules_and_read_and_leave_what_they_do(device: Device) -> None:
    gpu = replace(
        device.info,
        type=DeviceType.DISCRETE,
        subgroup_size=32,
        min_subgroup_size=32,
        max_subgroup_size=32,
        max_shared_memory=49152,
        features=frozenset({"float16", "integer_dot", "subgroup_size_control"}),
    )
    matrix = replace(gpu, features=gpu.features | {MATRIX_FEATURE})
    fragments = replace(matrix, features=matrix.features | {FRAGMENTS_FEATURE})
    narrow = replace(fragments, features=fragments.features | {NARROW_FEATURE})
    for info in (*kinds(device.info), gpu, matrix, fragments, narrow):
        for weights in ("f16", "f32", "q4", "q6_k"):
            for tokens in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 512):
                product = Product(weights, tokens, 4096, 4096)
                found = candidates(info, product)
                assert found[0] == product.rule(info)
                assert len(found) <= 40
                assert {plan.form for plan in found} == {found[0].form}
                assert all(has_room(plan, tokens, 4096) for plan in found)
                assert len({plan.pipeline for plan in found}) == len(found)


@pytest.mark.parametrize("tokens", [1, 2, 4, 12])
def test_candidates_on_a_cpu_have_as_few_workgroups_as_the_rules_would_make_of_their_rows(
    device: Device, tokens: int
) -> None:
    info = replace(device.info, type=DeviceType.SOFTWARE, subgroup_size=8, min_subgroup_size=8, max_subgroup_size=8)
    for product in (Product("q4", tokens, 576, 1536), Product("q8", tokens, 4096, 4096)):
        for plan in candidates(info, product):
            cut = dict(plan.constants)
            assert cut["PASSES"] == software_passes(product.n // cut["ROWS"])


def has_room(plan: LinearPlan, tokens: int, n: int) -> bool:
    """Whether the scratch holds what a plan's workgroups leave for each other."""
    constants = dict(plan.constants)
    if constants.get("SPLITS", 1) == 1:
        return True
    tile_t = constants.get("TILE_T") or constants["FRAGMENT_TOKENS"] * constants["FRAGMENTS_T"]
    tile_n = constants.get("TILE_N") or 16 * constants["FRAGMENTS_N"] * constants["SUBGROUPS_N"]
    return can_split(TileTuning(tokens, tile_t, tile_n, 1, 1, splits=constants["SPLITS"]), tokens, n)


def test_products_are_named_by_what_kernels_are_named_by() -> None:
    assert Product.of(QuantFormat.INT4, 1, 8, 64) == Product.of(QuantFormat.Q4_0, 1, 8, 64)
    assert {Product.of(element, 1, 8, 64).weights for element in (*DType, *QuantFormat)} == set(WEIGHTS)
    with pytest.raises(ConfigError, match="weights 'q3': expected one of"):
        _ = Product("q3", 1, 8, 64).element


def test_products_that_no_kernel_takes_have_no_candidates(device: Device) -> None:
    with pytest.raises(UnsupportedModelError, match="12 elements"):
        candidates(device.info, Product("bf16", 1, 8, 12))
    with pytest.raises(ValueError, match="in blocks"):
        candidates(device.info, Product("bf16", 1, 8, 64, gated=True, blocked=True))
