"""Every plan that tuning may choose computes the same product, whichever it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.gpu.made_up import SOFTWARE
from tests.ops.linear_case import Case, skip_without_matrices
from tests.ops.quant_arrays import read_blocks
from unicorn_async.config import Activation
from unicorn_async.errors import ConfigError, UnsupportedModelError
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.linear import Epilogue, kernel_request
from unicorn_async.ops.linear_plans.candidates import candidates, choice
from unicorn_async.ops.linear_plans.product import WEIGHTS, Product
from unicorn_async.ops.linear_plans.rules import plan_linear, tuned_plan
from unicorn_async.ops.linear_plans.tiles import TileTuning, most_splits
from unicorn_async.ops.linear_plans.vec import software_passes
from unicorn_async.ops.rows import BlockRows, RowForm
from unicorn_async.ops.subgroups import FRAGMENTS_FEATURE, MATRIX_FEATURE, NARROW_FEATURE, halves_subgroups
from unicorn_async.tensor import DType, QuantFormat

if TYPE_CHECKING:
    from tests.ops.arrays import Arrays
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plans.plan import LinearPlan
    from unicorn_async.tensor import ElementType

TOKENS = (1, 2, 3, 8, 33)
MORE_TOKENS = pytest.mark.whole("candidates that take several tokens, and tiles")
MATRIX_TOKENS = (12, 24, 130)  # for which matrix units have tiles of their own
ROWS, COLUMNS = 67, 1280  # more columns than a subgroup of 32 lanes takes at a time


def kinds(info: DeviceInfo) -> tuple[DeviceInfo, ...]:
    """The device under test as a software device and as GPUs would be, whose candidates are others.

    RDNA is among these where the device has subgroups of the size that its plans ask for.
    """
    found = tuple(replace(info, type=kind) for kind in (DeviceType.SOFTWARE, DeviceType.DISCRETE))
    if info.subgroup_size != 32:
        return found
    return *found, replace(found[1], type=DeviceType.INTEGRATED, max_subgroup_size=64, subgroup_size=64)


def plans(arrays: Arrays, product: Product) -> list[LinearPlan]:
    """All candidates of these devices but those for subgroups that the device under test does not have."""
    found = [
        plan
        for info in kinds(arrays.device.info)
        for plan in candidates(info, product)
        if plan.subgroup_size is not None or not halves_subgroups(info)
    ]
    return list({plan.pipeline: plan for plan in found}.values())


def test_rdna_may_have_larger_subgroups_too() -> None:
    rdna = replace(SOFTWARE, type=DeviceType.INTEGRATED, subgroup_size=64, min_subgroup_size=32, max_subgroup_size=64)
    for weights, tokens in (("q4", 1), ("q4", 8), ("bf16", 2)):
        found = candidates(rdna, Product(weights, tokens, 4096, 4096))
        assert found[0].subgroup_size == 32
        assert {plan.subgroup_size for plan in found} == {32, None}
        for plan in found:
            lanes = dict(plan.constants).get("SUBGROUP")
            assert lanes is None or lanes == (plan.subgroup_size or 64)


@pytest.mark.parametrize("element", [DType.BF16, QuantFormat.INT4], ids=lambda element: element.value)
@pytest.mark.parametrize(
    "tokens", (*(pytest.param(t, marks=MORE_TOKENS) if t > 1 else t for t in TOKENS), *MATRIX_TOKENS)
)
def test_every_candidate_equals_the_product(arrays: Arrays, tokens: int, element: ElementType) -> None:
    if tokens in MATRIX_TOKENS:
        skip_without_matrices(arrays.device.info)
    case = Case(arrays, tokens, ROWS, COLUMNS, element)
    for plan in plans(arrays, case.product):
        case.run(plan)
        case.check(plan.form)


@pytest.mark.parametrize("tokens", [4, 16, 33])
def test_a_product_is_the_same_in_either_form_of_its_input(
    arrays: Arrays, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    info = arrays.device.info
    skip_without_matrices(info)
    case = Case(arrays, tokens, ROWS, COLUMNS, QuantFormat.Q4_K)
    for form in (RowForm.BLOCKS, RowForm.HALVES):
        forms = {case.product.input: form.value}
        monkeypatch.setattr(arrays.device, "info", replace(info, forms=forms))
        assert case.form is form
        case.y.values[:] = np.nan
        case.run_linear()
        case.check(form)


@pytest.mark.combinations("either number of tokens with either type")
@pytest.mark.parametrize("element", [DType.F32, QuantFormat.Q6_K], ids=lambda element: element.value)
@pytest.mark.parametrize("tokens", [1, pytest.param(8, marks=MORE_TOKENS)])
def test_candidates_take_the_other_types_of_weights_too(arrays: Arrays, tokens: int, element: ElementType) -> None:
    case = Case(arrays, tokens, ROWS, COLUMNS, element)
    for plan in candidates(arrays.device.info, case.product):
        case.run(plan)
        case.check(plan.form)


def test_every_candidate_for_dense_weights_applies_the_gate(arrays: Arrays) -> None:
    case = Case(arrays, 1, 2 * 67, 136, DType.BF16)
    for plan in plans(arrays, case.product._replace(gated=True)):
        case.run(plan, Epilogue(gate=Activation.SILU))
        case.check_gated(Activation.SILU)


@pytest.mark.combinations("either number of tokens with either output")
@pytest.mark.parametrize("blocked", [False, True], ids=["floats", "blocks"])
@pytest.mark.parametrize("tokens", [1, 2])
def test_every_candidate_for_quantised_weights_applies_the_gate(
    arrays: Arrays, monkeypatch: pytest.MonkeyPatch, tokens: int, *, blocked: bool
) -> None:
    width, gelu = 160, Activation.GELU_TANH
    case = Case(arrays, tokens, 2 * width, 512, QuantFormat.Q4_0)
    product = case.product._replace(gated=True, blocked=blocked)
    expected, allowed = case.gated(gelu)
    info = arrays.device.info
    room = arrays.put(np.zeros(BlockRows.size(tokens, width), np.uint8))
    for plan in plans(arrays, product):
        monkeypatch.setattr(arrays.device, "info", replace(info, tuned=dict([choice(info, product, plan)])))
        case.y.values[:] = np.nan
        case.run_linear(Epilogue(gate=gelu), out=BlockRows.at(room.address, tokens, width) if blocked else None)
        if blocked:
            codes, scales = read_blocks(room.values, tokens, width)
            step = np.repeat(scales, 32, axis=1)
            assert (np.abs(codes * step - expected) <= allowed + 0.5001 * step).all()
        else:
            case.check_gated(gelu)


def test_a_choice_takes_the_place_of_the_rules_for_its_product_alone() -> None:
    product = Product("bf16", 1, 96, 64)
    rule, *others = candidates(SOFTWARE, product)
    tuned = replace(SOFTWARE, tuned=dict([choice(SOFTWARE, product, others[0])]))
    assert tuned_plan(tuned, product) == others[0] != rule
    for other in (product._replace(k=128), product._replace(tokens=2), product._replace(gated=True)):
        assert tuned_plan(tuned, other) == plan_linear(tuned, other)
    for epilogue, extra in ((Epilogue(), {}), (Epilogue(bias=0), {"HAS_BIAS": True})):
        constants = kernel_request(tuned_plan(tuned, product), epilogue).constants
        assert constants == {**dict(others[0].constants), **extra}


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
                assert found[0] == plan_linear(info, product)
                assert len(found) <= 40
                assert {plan.form for plan in found} == {found[0].form}
                assert all(has_room(plan, product) for plan in found)
                assert len({plan.pipeline for plan in found}) == len(found)


@pytest.mark.parametrize("tokens", [1, 2, 4, 12])
def test_candidates_on_a_cpu_have_as_few_workgroups_as_the_rules_would_make_of_their_rows(
    device: Device, tokens: int
) -> None:
    sizes = {name: 8 for name in ("subgroup_size", "min_subgroup_size", "max_subgroup_size")}
    info = replace(device.info, type=DeviceType.SOFTWARE, features=frozenset(), **sizes)
    for product in (Product("q4", tokens, 576, 1536), Product("q8", tokens, 4096, 4096)):
        for plan in candidates(info, product):
            cut = dict(plan.constants)
            assert cut["PASSES"] == software_passes(product.n // cut["ROWS"])


def has_room(plan: LinearPlan, product: Product) -> bool:
    """Whether the scratch holds what a plan's workgroups leave for each other."""
    constants = dict(plan.constants)
    if constants.get("SPLITS", 1) == 1:
        return True
    tile_t = constants.get("TILE_T") or constants["FRAGMENT_TOKENS"] * constants["FRAGMENTS_T"]
    tile_n = constants.get("TILE_N") or 16 * constants["FRAGMENTS_N"] * constants["SUBGROUPS_N"]
    return constants["SPLITS"] <= most_splits(TileTuning(0, tile_t, tile_n, 1, 1), product)


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
