"""Each kernel of a linear layer, by plans of the tests' own, makes the product."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.ops.gguf_blocks import KERNEL_FORMATS
from tests.ops.linear_case import Case, skip_without_matrices, weights
from unicorn_async.config import Activation
from unicorn_async.ops.linear import Epilogue
from unicorn_async.ops.linear_plans.few_rows import few_rows_plan
from unicorn_async.ops.linear_plans.held import HeldTuning, held_plan
from unicorn_async.ops.linear_plans.product import Product
from unicorn_async.ops.linear_plans.quant_tiles import FragmentTuning, fragment_plan
from unicorn_async.ops.linear_plans.tiles import TileTuning, coopmat_plan, many_plan, most_splits
from unicorn_async.ops.linear_plans.vec import QuantVecTuning, VecTuning, quant_vec_plan, vec_plan
from unicorn_async.ops.rows import RowForm
from unicorn_async.ops.subgroups import FRAGMENTS_FEATURE, NARROW_FEATURE, matrix_subgroup_size
from unicorn_async.tensor import DType, QuantFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.ops.arrays import Arrays
    from unicorn_async.ops.linear_plans.plan import LinearPlan
    from unicorn_async.tensor import ElementType

DENSE = [DType.F16, DType.BF16, DType.F32]

VEC = [
    VecTuning(1, 1, 1),
    VecTuning(1, 2, 2),
    VecTuning(2, 3, 4),
    VecTuning(8, 1, 8),
    VecTuning(16, 4, 2),
    VecTuning(32, 1, 2),
]
MANY = [TileTuning(0, 64, 64, 16, 16), TileTuning(0, 32, 64, 4, 8), TileTuning(0, 16, 16, 2, 4)]
FEW_ROWS = [
    TileTuning(0, 16, 24, 4, 8),
    TileTuning(0, 32, 40, 8, 8),
    TileTuning(0, 64, 72, 8, 8),
    TileTuning(0, 8, 8, 4, 2),
]
COOPMAT = [
    TileTuning(0, 16, 64, 1, 4, 64),
    TileTuning(0, 32, 64, 1, 4, 64, buffers=1, splits=2),
    TileTuning(0, 64, 64, 2, 2, 32, splits=3),
    TileTuning(0, 128, 128, 2, 2, 32),
    TileTuning(0, 256, 128, 4, 2, 32, buffers=1),
]
QUANT_VEC = [
    QuantVecTuning(1, 1, 1),
    QuantVecTuning(1, 2, 2, passes=3, unroll=3),
    QuantVecTuning(2, 4, 3, passes=4),
    QuantVecTuning(8, 1, 4, passes=2, unroll=2),
]
HELD = [
    HeldTuning(1, 1, 1, 1),
    HeldTuning(1, 4, 2, 2, passes=3),
    HeldTuning(2, 4, 4, 3, passes=2),
    HeldTuning(2, 8, 1, 4),
    HeldTuning(1, 4, 2, 2, passes=3, ahead=True),
    HeldTuning(2, 8, 1, 4, passes=2, ahead=True),
]
QUANT_MANY = [TileTuning(0, 64, 64, 16, 16), TileTuning(0, 16, 32, 4, 8)]
# Which cuts a format has: the formats take turns. For vectors each has one token and several, and held weights at once
# and ahead. A cut is written once for all formats, and a format for all cuts: each with each would show no more.
QUANT_VEC_TURNS = [(QUANT_VEC[0], QUANT_VEC[3]), (QUANT_VEC[1], QUANT_VEC[2])]
HELD_TURNS = [(HELD[0], HELD[5]), (HELD[2], HELD[4]), (HELD[1], HELD[5]), (HELD[3], HELD[4])]
QUANT_MANY_TURNS = [(QUANT_MANY[0],), (QUANT_MANY[1],)]
QUANT_COOPMAT = [
    TileTuning(0, 16, 64, 1, 4, 64),
    TileTuning(0, 32, 64, 1, 4, 64, buffers=1),
    TileTuning(0, 64, 64, 2, 2, 32, splits=3),
    TileTuning(0, 128, 128, 2, 2, 32),
    TileTuning(0, 128, 128, 2, 2, 32, buffers=1),
    TileTuning(0, 16, 64, 1, 2, 128, splits=4),
]
FRAGMENTS = [
    FragmentTuning(0, 1, 1, 1),
    FragmentTuning(0, 1, 2, 4, splits=3),
    FragmentTuning(0, 2, 2, 1, subgroups_k=4),
    FragmentTuning(0, 4, 1, 2, subgroups_k=2, splits=2),
]
NARROW = [
    FragmentTuning(0, 1, 1, 1, fragment_tokens=8),
    FragmentTuning(0, 1, 2, 4, splits=3, fragment_tokens=8),
    FragmentTuning(0, 1, 4, 1, subgroups_k=4, fragment_tokens=8),
]


def quant_vec_id(t: QuantVecTuning) -> str:
    return f"tokens{t.tokens}-subgroups{t.subgroups}-rows{t.rows}"


def held_id(t: HeldTuning) -> str:
    return f"tokens{t.tokens}-subgroups{t.subgroups}-rows{t.rows}-{'ahead' if t.ahead else 'at_once'}"


def tile_id(t: TileTuning) -> str:
    return f"{t.tile_n}x{t.tile_t}"


def in_turn(turns: Sequence[tuple[Any, ...]], tuning_id: Callable[[Any], str]) -> list[Any]:
    """Return each format with each cut of its turn, as a test's parameters."""
    return [
        pytest.param(one, tuning, id=f"{one.value}-{tuning_id(tuning)}")
        for index, one in enumerate(KERNEL_FORMATS)
        for tuning in turns[index % len(turns)]
    ]


def shapes(element: ElementType) -> list[tuple[int, int]]:
    if isinstance(element, DType):
        return [(1, 8), (5, 24), (67, 136), (130, 1080)]
    unit = element.layout.unit
    return [(1, unit), (67, 5 * unit), (130, 3 * unit)]


def compare(
    arrays: Arrays,
    element: ElementType,
    sizes: tuple[int, ...],
    plan_of: Callable[[Product], LinearPlan],
    shapes: list[tuple[int, int]],
) -> None:
    """Compare what plans make with the product, for numbers of tokens and shapes of weights."""
    for n, k in shapes:
        weight = weights(arrays, n, k, element)
        for tokens in sizes:
            case = Case(arrays, tokens, n, k, element, weight=weight)
            plan = plan_of(case.product)
            case.run(plan)
            case.check(plan.form)


@pytest.mark.combinations("every cut with every type")
@pytest.mark.parametrize("dtype", DENSE, ids=lambda d: d.value)
@pytest.mark.parametrize("tuning", VEC, ids=lambda t: f"tokens{t.tokens}-subgroups{t.subgroups}-rows{t.rows}")
def test_linear_vec_equals_the_product(arrays: Arrays, dtype: DType, tuning: VecTuning) -> None:
    sizes = tuple(sorted({1, tuning.tokens, tuning.tokens + 1, max(1, tuning.tokens - 3)}))
    compare(arrays, dtype, sizes, lambda product: vec_plan(arrays.device.info, tuning, product), shapes(dtype))


@pytest.mark.combinations("every format by both of its cuts")
@pytest.mark.parametrize(("quant_format", "tuning"), in_turn(QUANT_VEC_TURNS, quant_vec_id))
def test_linear_quant_vec_equals_the_product(arrays: Arrays, quant_format: QuantFormat, tuning: QuantVecTuning) -> None:
    sizes = tuple(sorted({1, tuning.tokens, tuning.tokens + 1}))
    own = shapes(quant_format)
    compare(arrays, quant_format, sizes, lambda product: quant_vec_plan(arrays.device.info, tuning, product), own)


@pytest.mark.combinations("every format by both of its cuts")
@pytest.mark.parametrize(("quant_format", "tuning"), in_turn(HELD_TURNS, held_id))
def test_linear_quant_held_equals_the_product(arrays: Arrays, quant_format: QuantFormat, tuning: HeldTuning) -> None:
    sizes = tuple(sorted({1, tuning.tokens, tuning.tokens + 1}))
    own = shapes(quant_format)
    compare(arrays, quant_format, sizes, lambda product: held_plan(arrays.device.info, tuning, product), own)


@pytest.mark.combinations("every tile with every type")
@pytest.mark.parametrize("dtype", DENSE, ids=lambda d: d.value)
@pytest.mark.parametrize("tuning", MANY, ids=tile_id)
def test_linear_many_equals_the_product(arrays: Arrays, dtype: DType, tuning: TileTuning) -> None:
    compare(arrays, dtype, (1, 33, 130), lambda product: many_plan(tuning, product), shapes(dtype))


@pytest.mark.parametrize("tuning", FEW_ROWS, ids=tile_id)
def test_linear_few_rows_equals_the_product(arrays: Arrays, tuning: TileTuning) -> None:
    info, kind = arrays.device.info, DType.F32
    compare(arrays, kind, (1, 33, 130), lambda product: few_rows_plan(info, tuning, product), shapes(kind))


@pytest.mark.parametrize(("quant_format", "tuning"), in_turn(QUANT_MANY_TURNS, tile_id))
def test_linear_quant_many_equals_the_product(arrays: Arrays, quant_format: QuantFormat, tuning: TileTuning) -> None:
    compare(arrays, quant_format, (1, 33, 70), lambda product: many_plan(tuning, product), shapes(quant_format))


@pytest.mark.parametrize("element", [DType.F16, DType.BF16, *KERNEL_FORMATS], ids=lambda e: e.value)
def test_the_coopmat_kernels_equal_the_product(arrays: Arrays, element: ElementType) -> None:
    skip_without_matrices(arrays.device.info)
    dense = isinstance(element, DType)
    for tuning in COOPMAT if dense else QUANT_COOPMAT:
        sizes = (1, 15, 33, 300 if dense else 150)
        assert all(tuning.splits <= most_splits(tuning, Product.of(element, tokens, 130, 1080)) for tokens in sizes)
        own = shapes(element)
        compare(arrays, element, sizes, lambda p, t=tuning: coopmat_plan(arrays.device.info, t, p), own)


@pytest.mark.parametrize("quant_format", KERNEL_FORMATS, ids=lambda f: f.value)
@pytest.mark.parametrize(
    ("feature", "tunings", "sizes"),
    [(FRAGMENTS_FEATURE, FRAGMENTS, (1, 15, 33, 150)), (NARROW_FEATURE, NARROW, (1, 3, 8))],
    ids=["of_16_tokens", "of_8_tokens"],
)
def test_linear_quant_fragments_equals_the_product(
    arrays: Arrays, quant_format: QuantFormat, feature: str, tunings: list[FragmentTuning], sizes: tuple[int, ...]
) -> None:
    info = arrays.device.info
    if feature not in info.features:
        pytest.skip(f"{info.name} has no matrices of which lanes hold the elements that the kernel needs: {feature}")
    for t in tunings:
        own = [(1, 256), (67, 5 * 256), (130, 3 * 256)]
        compare(arrays, quant_format, sizes, lambda p, t=t: fragment_plan(info, t, p), own)


@pytest.mark.combinations("every type with either magnitude")
@pytest.mark.parametrize("magnitude", [1e-6, 1e5], ids=["tiny", "huge"])
@pytest.mark.parametrize("dtype", DENSE, ids=lambda d: d.value)
def test_activations_far_from_half_range_keep_their_precision(arrays: Arrays, dtype: DType, magnitude: float) -> None:
    info = arrays.device.info
    case = Case(arrays, 9, 67, 136, dtype, magnitude=magnitude)
    plans = [vec_plan(info, VEC[3], case.product), many_plan(MANY[1], case.product)]
    if matrix_subgroup_size(info) is not None and dtype is not DType.F32:
        plans.append(coopmat_plan(info, COOPMAT[0], case.product))
    for plan in plans:
        case.run(plan)
        case.check(plan.form)


@pytest.mark.combinations("either activation with every cut")
@pytest.mark.parametrize("activation", list(Activation), ids=lambda a: a.value)
@pytest.mark.parametrize("tuning", [VEC[1], VecTuning(1, 1, 8), VEC[2]], ids=lambda t: f"tokens{t.tokens}-rows{t.rows}")
def test_linear_vec_applies_the_gate(arrays: Arrays, activation: Activation, tuning: VecTuning) -> None:
    case = Case(arrays, tuning.tokens, 2 * 67, 136, DType.BF16)
    product = case.product._replace(gated=True)
    case.run(vec_plan(arrays.device.info, tuning, product), Epilogue(gate=activation))
    case.check_gated(activation)


def test_more_rows_than_one_grid_dimension_holds(arrays: Arrays) -> None:
    case = Case(arrays, 1, 32768 * 2 + 77, 8, DType.BF16)
    case.run(vec_plan(arrays.device.info, VecTuning(1, 1, 2), case.product))
    case.check(RowForm.FLOATS)


def test_a_soft_cap_neither_overflows_nor_loses_small_values(arrays: Arrays) -> None:
    cap = 30.0
    x = np.array([-1e30, -1e3, -31.0, -3.75, -0.1, -1e-6, 0.0, 1e-3, 3.7, 3.8, 50.0, 1e30], np.float32)
    case = Case(arrays, len(x), 1, 8, DType.F16)
    case.x.values[:] = 0
    case.x.values[:, 0] = x
    case.weight = arrays.put(np.eye(1, 8, dtype=np.float16)).tensor
    case.run(vec_plan(arrays.device.info, VEC[0], case.product), Epilogue(soft_cap=cap))
    exact = cap * np.tanh(x.astype(np.float64) / cap)
    np.testing.assert_allclose(case.y.values[: len(x)], exact, rtol=5e-6, atol=1e-12)
