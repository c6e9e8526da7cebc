from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.ops.arrays import Arrays, bf16, from_bf16
from unicorn_async.config import Activation
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.ops.gated import ACTIVATION_NUMBER
from unicorn_async.ops.linear import dispatch_plan, kernels_for, linear, row_to_half, row_to_half_kernel
from unicorn_async.ops.linear_input import InputForm, LinearScratch
from unicorn_async.ops.linear_plan import FORMATS as SUFFIXES
from unicorn_async.ops.linear_plan import (
    TileTuning,
    VecTuning,
    coopmat_plan,
    fuses_gate,
    many_plan,
    matrix_subgroup_size,
    plan_linear,
    reads_half,
    vec_plan,
)
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_input import HalfRows
    from unicorn_async.ops.linear_plan import LinearPlan

FORMATS = [DType.F16, DType.BF16, DType.F32]
SHAPES = [(1, 8), (5, 24), (67, 136), (130, 1080)]  # n, k
GUARD = 64  # elements after an output that must stay as they were
SINGLE = 3e-6  # of the sum of magnitudes: rounding of sums in single precision
HALF = 1e-3  # of the sum of magnitudes: activations in half precision

VEC = [
    VecTuning(1, 1, 1),
    VecTuning(1, 2, 2),
    VecTuning(2, 3, 4),
    VecTuning(8, 1, 8),
    VecTuning(16, 4, 2),
    VecTuning(32, 1, 2),
]
MANY = [TileTuning(0, 64, 64, 16, 16), TileTuning(0, 32, 64, 4, 8), TileTuning(0, 16, 16, 2, 4)]
COOPMAT = [
    TileTuning(0, 16, 64, 1, 4, 64),
    TileTuning(0, 32, 64, 1, 4, 64, buffers=1, splits=2),
    TileTuning(0, 64, 64, 2, 2, 32, splits=3),
    TileTuning(0, 128, 128, 2, 2, 32),
    TileTuning(0, 256, 128, 4, 2, 32, buffers=1),
]


def weights(values: NDArray[np.float64], dtype: DType) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """The values' bits in a format, and what these bits stand for."""
    if dtype is not DType.BF16:
        bits = values.astype(np.float16 if dtype is DType.F16 else np.float32)
        return bits, bits.astype(np.float64)
    return bf16(values), from_bf16(bf16(values)).astype(np.float64)


class Case:
    """One product: its operands on the device, and its result in double precision."""

    def __init__(self, arrays: Arrays, tokens: int, n: int, k: int, dtype: DType, *, magnitude: float = 1.0) -> None:
        rng = np.random.default_rng(tokens * 1_000_003 + n * 1009 + k)
        x = (rng.standard_normal((tokens, k)) * magnitude).astype(np.float32)
        bits, exact = weights(rng.standard_normal((n, k)) * 0.2, dtype)
        self.arrays, self.tokens, self.n, self.k = arrays, tokens, n, k
        self.weight = arrays.put(bits).tensor
        self.x = arrays.put(x)
        self.bias = rng.standard_normal(n).astype(np.float32)
        self.expected = x.astype(np.float64) @ exact.T
        self.magnitudes = np.abs(x.astype(np.float64)) @ np.abs(exact).T
        self.y = arrays.poisoned(tokens * n + GUARD)
        room = arrays.put(np.full(LinearScratch.size(tokens, k), 0xFF, np.uint8))
        self.scratch = LinearScratch.at(room.address, tokens, k)

    def rows(self, *, half: bool) -> Tensor | HalfRows:
        """The input as a kernel reads it."""
        return self.scratch.half_rows(self.tokens, self.k) if half else self.x.tensor

    def to_half(self, recorder: CommandRecorder) -> None:
        device = self.arrays.device
        out = self.scratch.half_rows(self.tokens, self.k)
        row_to_half(recorder, device.kernels, device.info, x=self.x.tensor, out=out)

    def run(self, plan: LinearPlan, *, soft_cap: float = 0.0) -> None:
        """Run one kernel by a plan of the test's own."""
        if plan.form is InputForm.HALVES:
            self.arrays.run(self.to_half)
        self.arrays.run(
            lambda recorder: dispatch_plan(
                recorder,
                self.arrays.device.kernels,
                plan,
                x=self.rows(half=plan.form is InputForm.HALVES),
                weight=self.weight,
                out_address=self.y.address,
                num_tokens=self.tokens,
                soft_cap=soft_cap,
                scratch=self.scratch,
            )
        )

    def run_linear(self, *, bias: Tensor | None = None, soft_cap: float = 0.0) -> None:
        """Run what `linear` chooses."""
        device = self.arrays.device

        def record(recorder: CommandRecorder) -> None:
            half = reads_half(device.info, self.tokens, self.weight.dtype)
            if half:
                self.to_half(recorder)
                recorder.barrier()
            linear(
                recorder,
                device.kernels,
                device.info,
                x=self.rows(half=half),
                weight=self.weight,
                out_address=self.y.address,
                num_tokens=self.tokens,
                bias=bias,
                soft_cap=soft_cap,
                scratch=self.scratch,
            )

        self.arrays.run(record)

    def check(self, tolerance: float, expected: NDArray[np.float64] | None = None) -> None:
        count = self.tokens * self.n
        assert np.isnan(self.y.values[count:]).all(), "wrote past the end of the output"
        found = self.y.values[:count].reshape(self.tokens, self.n)
        error = np.abs(found - (self.expected if expected is None else expected))
        worst = np.max(error / (tolerance * self.magnitudes + 1e-30))
        assert worst <= 1.0, f"error is {worst:.3g} times what rounding explains"


def skip_without_matrices(info: DeviceInfo) -> None:
    if matrix_subgroup_size(info) is None:
        pytest.skip(f"{info.name} has no VK_KHR_cooperative_matrix of 16×16×16, f16 into f32")


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: d.value)
@pytest.mark.parametrize("tuning", VEC, ids=lambda t: f"tokens{t.tokens}-subgroups{t.subgroups}-rows{t.rows}")
def test_linear_vec_equals_the_product(arrays: Arrays, dtype: DType, tuning: VecTuning) -> None:
    for tokens in sorted({1, tuning.tokens, tuning.tokens + 1, max(1, tuning.tokens - 3)}):
        for n, k in SHAPES:
            case = Case(arrays, tokens, n, k, dtype)
            case.run(vec_plan(arrays.device.info, tuning, tokens, n, dtype))
            case.check(SINGLE)


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: d.value)
@pytest.mark.parametrize("tuning", MANY, ids=lambda t: f"tile{t.tile_t}x{t.tile_n}-lanes{t.parts_t}x{t.parts_n}")
def test_linear_many_equals_the_product(arrays: Arrays, dtype: DType, tuning: TileTuning) -> None:
    for tokens in (1, 33, 130):
        for n, k in SHAPES:
            case = Case(arrays, tokens, n, k, dtype)
            case.run(many_plan(tuning, tokens, n, f"linear_many_{SUFFIXES[dtype]}"))
            case.check(SINGLE)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=lambda d: d.value)
@pytest.mark.parametrize("tuning", COOPMAT, ids=lambda t: f"tile{t.tile_t}x{t.tile_n}x{t.tile_k}-splits{t.splits}")
def test_linear_many_coopmat_equals_the_product(arrays: Arrays, dtype: DType, tuning: TileTuning) -> None:
    skip_without_matrices(arrays.device.info)
    for tokens in (1, 15, 33, 300):
        for n, k in SHAPES:
            case = Case(arrays, tokens, n, k, dtype)
            case.run(coopmat_plan(arrays.device.info, tuning, tokens, n, f"linear_many_coopmat_{SUFFIXES[dtype]}"))
            case.check(HALF)


@pytest.mark.parametrize("magnitude", [1e-6, 1e5], ids=["tiny", "huge"])
@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: d.value)
def test_activations_far_from_half_range_keep_their_precision(arrays: Arrays, dtype: DType, magnitude: float) -> None:
    info = arrays.device.info
    plans = [vec_plan(info, VEC[3], 9, 67, dtype), many_plan(MANY[1], 9, 67, f"linear_many_{SUFFIXES[dtype]}")]
    if matrix_subgroup_size(info) is not None and dtype is not DType.F32:
        plans.append(coopmat_plan(info, COOPMAT[0], 9, 67, f"linear_many_coopmat_{SUFFIXES[dtype]}"))
    for plan in plans:
        case = Case(arrays, 9, 67, 136, dtype, magnitude=magnitude)
        case.run(plan)
        case.check(HALF if plan.form is InputForm.HALVES else SINGLE)


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: d.value)
@pytest.mark.parametrize("tokens", [1, 2, 7, 32, 40, 300])
def test_linear_adds_the_bias_and_caps(arrays: Arrays, dtype: DType, tokens: int) -> None:
    cap = 3.0
    case = Case(arrays, tokens, 67, 136, dtype)
    case.run_linear(bias=arrays.put(case.bias).tensor, soft_cap=cap)
    case.magnitudes += 1.0  # of the bias and the cap
    tolerance = HALF if reads_half(arrays.device.info, tokens, dtype) else SINGLE
    case.check(tolerance, cap * np.tanh((case.expected + case.bias) / cap))


@pytest.mark.parametrize("activation", list(Activation), ids=lambda a: a.value)
@pytest.mark.parametrize("tuning", [VEC[1], VecTuning(1, 1, 8), VEC[2]], ids=lambda t: f"tokens{t.tokens}-rows{t.rows}")
def test_linear_vec_applies_the_gate(arrays: Arrays, activation: Activation, tuning: VecTuning) -> None:
    tokens, width, k = tuning.tokens, 67, 136
    case = Case(arrays, tokens, 2 * width, k, DType.BF16)
    options = (("GATED", True), ("ACT", ACTIVATION_NUMBER[activation]))
    case.run(vec_plan(arrays.device.info, tuning, tokens, 2 * width, DType.BF16, options))
    gate, up = case.expected[:, :width], case.expected[:, width:]
    found = case.y.values[: tokens * width].reshape(tokens, width)
    assert np.isnan(case.y.values[tokens * width :]).all(), "wrote past the end of the output"
    error = np.abs(found - activated(activation, gate) * up)
    slope = case.magnitudes[:, :width] * np.abs(up) + case.magnitudes[:, width:] * np.abs(gate)
    assert (error <= 2 * SINGLE * slope + 1e-6).all()


def activated(activation: Activation, x: NDArray[np.float64]) -> NDArray[np.float64]:
    if activation is Activation.SILU:
        return x / (1 + np.exp(-x))
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def test_a_step_of_one_token_has_its_gate_applied_by_the_linear(arrays: Arrays) -> None:
    info = arrays.device.info
    assert fuses_gate(1)
    plan = plan_linear(info, num_tokens=1, n=134, k=136, dtype=DType.F16, activation=Activation.SILU)
    assert dict(plan.constants)["GATED"] is True


def test_more_rows_than_one_grid_dimension_holds(arrays: Arrays) -> None:
    n = 32768 * 2 + 77
    case = Case(arrays, 1, n, 8, DType.BF16)
    case.run(vec_plan(arrays.device.info, VecTuning(1, 1, 2), 1, n, DType.BF16))
    case.check(SINGLE)


def test_a_soft_cap_neither_overflows_nor_loses_small_values(arrays: Arrays) -> None:
    device, cap = arrays.device, 30.0
    x = np.array([-1e30, -1e3, -31.0, -3.75, -0.1, -1e-6, 0.0, 1e-3, 3.7, 3.8, 50.0, 1e30], np.float32)
    case = Case(arrays, len(x), 1, 8, DType.F16)
    case.x.values[:] = 0
    case.x.values[:, 0] = x
    case.weight = arrays.put(np.eye(1, 8, dtype=np.float16)).tensor
    case.run(vec_plan(device.info, VEC[0], len(x), 1, DType.F16, (("HAS_SOFT_CAP", True),)), soft_cap=cap)
    exact = cap * np.tanh(x.astype(np.float64) / cap)
    np.testing.assert_allclose(case.y.values[: len(x)], exact, rtol=5e-6, atol=1e-12)


def test_row_to_half_scales_each_row_by_a_power_of_two(arrays: Arrays) -> None:
    if not arrays.device.info.float16:
        pytest.skip(f"{arrays.device.info.name} has no shaderFloat16")
    factors = np.array([1, 1e5, 1e-5, 1e30, 1e-30, 3e4, 0], np.float32)
    rows, k = len(factors), 520
    case = Case(arrays, rows, 1, k, DType.F16)
    case.x.values[:] *= factors[:, None]
    room = arrays.put(np.full(LinearScratch.size(rows, k), 0xFF, np.uint8))
    case.scratch = LinearScratch.at(room.address, rows, k)
    arrays.run(case.to_half)
    halves = room.values[: rows * k * 2].view(np.float16).reshape(rows, k).astype(np.float64)
    scales = room.values[case.scratch.scales - room.address :][: rows * 4].view(np.float32).astype(np.float64)
    assert (np.frexp(scales)[0] == 0.5).all()
    largest = np.abs(halves).max(axis=1)
    assert ((largest[:-1] >= 2**13) & (largest[:-1] <= 2**14)).all()
    assert largest[-1] == 0
    exact = case.x.values.astype(np.float64)
    assert (np.abs(halves * scales[:, None] - exact) <= np.abs(exact) * 2**-11 + scales[:, None] * 2**-25).all()


def test_prepared_kernels_are_those_that_linear_asks_for(arrays: Arrays) -> None:
    kernels, sizes = arrays.device.kernels, (1, 8, 64)
    kernels.prepare(kernels_for(arrays.device.info, num_tokens=sizes, n=96, k=64, dtype=DType.BF16))
    kernels.prepare([row_to_half_kernel(arrays.device.info, 64)])
    built = kernels.num_kernels
    for tokens in sizes:
        case = Case(arrays, tokens, 96, 64, DType.BF16)
        case.run_linear()
        case.check(HALF if reads_half(arrays.device.info, tokens, DType.BF16) else SINGLE)
    assert kernels.num_kernels == built


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (Tensor(0, (4, 12), DType.BF16), "multiple of 8"),
        (Tensor(0, (64,), DType.F16), "two dimensions"),
    ],
)
def test_weights_that_no_kernel_takes_are_refused(arrays: Arrays, weight: Tensor, message: str) -> None:
    device, x = arrays.device, Tensor(0, (1, 16), DType.F32)
    with pytest.raises(UnsupportedModelError, match=message):
        arrays.run(
            lambda recorder: linear(
                recorder, device.kernels, device.info, x=x, weight=weight, out_address=0, num_tokens=1
            )
        )
