from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.ops.gpu_arrays import GpuArrays
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.ops.linear import LinearScratch, dispatch_plan, kernels_for, linear, row_to_half
from unicorn_async.ops.linear_plan import (
    TileTuning,
    VecTuning,
    coopmat_plan,
    many_plan,
    matrix_subgroup_size,
    reads_half,
    vec_plan,
)
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plan import LinearPlan

FORMATS = [DType.F16, DType.BF16]
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
    TileTuning(0, 32, 64, 1, 4, 64),
    TileTuning(0, 64, 64, 2, 2, 32),
    TileTuning(0, 128, 128, 2, 4, 32),
]


@pytest.fixture
def arrays(device: Device) -> Iterator[GpuArrays]:
    with GpuArrays(device) as made:
        yield made


class Case:
    """One product: its operands on the device, and its result in double precision."""

    def __init__(self, arrays: GpuArrays, tokens: int, n: int, k: int, dtype: DType, *, magnitude: float = 1.0) -> None:
        rng = np.random.default_rng(tokens * 1_000_003 + n * 1009 + k)
        x = (rng.standard_normal((tokens, k)) * magnitude).astype(np.float32)
        self.arrays, self.tokens, self.n, self.k = arrays, tokens, n, k
        self.weight, exact = arrays.put_weights(rng.standard_normal((n, k)) * 0.2, dtype)
        self.x = arrays.put(x)
        self.bias_values = rng.standard_normal(n).astype(np.float32)
        self.expected = x.astype(np.float64) @ exact.T
        self.magnitudes = np.abs(x.astype(np.float64)) @ np.abs(exact).T
        self.y = arrays.poisoned((tokens * n + GUARD) * 4)
        self.scratch = self._scratch()

    def _scratch(self) -> LinearScratch:
        size = LinearScratch.size(self.tokens, self.k)
        return LinearScratch.at(self.arrays.poisoned(size).address, self.tokens, self.k)

    def run(self, plan: LinearPlan) -> None:
        device = self.arrays.device

        def convert_input() -> None:
            self.arrays.run(
                lambda rec: row_to_half(
                    rec,
                    device.kernels,
                    device.info,
                    x=self.x.address,
                    scratch=self.scratch,
                    num_tokens=self.tokens,
                    k=self.k,
                )
            )

        if plan.reads_half:
            convert_input()
        self.arrays.run(
            lambda rec: dispatch_plan(
                rec,
                device.kernels,
                plan,
                x=self.x.address,
                weight=self.weight,
                out_address=self.y.address,
                num_tokens=self.tokens,
                scratch=self.scratch,
            )
        )

    def check(self, tolerance: float, expected: NDArray[np.float64] | None = None) -> None:
        values = self.arrays.view(self.y, np.float32)
        count = self.tokens * self.n
        assert np.isnan(values[count:]).all(), "wrote past the end of the output"
        error = np.abs(values[:count].reshape(self.tokens, self.n) - (self.expected if expected is None else expected))
        worst = np.max(error / (tolerance * self.magnitudes + 1e-30))
        assert worst <= 1.0, f"error is {worst:.3g} times what rounding explains"


def skip_without_matrices(info: DeviceInfo) -> None:
    if matrix_subgroup_size(info) is None:
        pytest.skip(f"{info.name} has no VK_KHR_cooperative_matrix of 16×16×16, f16 into f32")


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: d.value)
@pytest.mark.parametrize("tuning", VEC, ids=lambda t: f"tokens{t.tokens}-subgroups{t.subgroups}-rows{t.rows}")
def test_linear_vec_equals_the_product(arrays: GpuArrays, dtype: DType, tuning: VecTuning) -> None:
    for tokens in sorted({1, tuning.tokens, tuning.tokens + 1, max(1, tuning.tokens - 3)}):
        for n, k in SHAPES:
            case = Case(arrays, tokens, n, k, dtype)
            case.run(vec_plan(arrays.device.info, tuning, tokens, n, dtype))
            case.check(SINGLE)


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: d.value)
@pytest.mark.parametrize("tuning", MANY, ids=lambda t: f"tile{t.tile_t}x{t.tile_n}-lanes{t.parts_t}x{t.parts_n}")
def test_linear_many_equals_the_product(arrays: GpuArrays, dtype: DType, tuning: TileTuning) -> None:
    for tokens in (1, 33, 130):
        for n, k in SHAPES:
            case = Case(arrays, tokens, n, k, dtype)
            case.run(many_plan(tuning, tokens, n, dtype))
            case.check(SINGLE)


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: d.value)
@pytest.mark.parametrize("tuning", COOPMAT, ids=lambda t: f"tile{t.tile_t}x{t.tile_n}x{t.tile_k}")
def test_linear_many_coopmat_equals_the_product(arrays: GpuArrays, dtype: DType, tuning: TileTuning) -> None:
    skip_without_matrices(arrays.device.info)
    for tokens in (1, 15, 33, 300):
        for n, k in SHAPES:
            case = Case(arrays, tokens, n, k, dtype)
            case.run(coopmat_plan(arrays.device.info, tuning, tokens, n, dtype))
            case.check(HALF)


@pytest.mark.parametrize("magnitude", [1e-6, 1e5], ids=["tiny", "huge"])
@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: d.value)
def test_activations_far_from_half_range_keep_their_precision(
    arrays: GpuArrays, dtype: DType, magnitude: float
) -> None:
    info = arrays.device.info
    plans = [vec_plan(info, VEC[3], 9, 67, dtype), many_plan(MANY[1], 9, 67, dtype)]
    if matrix_subgroup_size(info) is not None:
        plans.append(coopmat_plan(info, COOPMAT[0], 9, 67, dtype))
    for plan in plans:
        case = Case(arrays, 9, 67, 136, dtype, magnitude=magnitude)
        case.run(plan)
        case.check(HALF if plan.reads_half else SINGLE)


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: d.value)
@pytest.mark.parametrize("tokens", [1, 2, 7, 32, 40, 300])
def test_linear_adds_the_bias_and_caps(arrays: GpuArrays, dtype: DType, tokens: int) -> None:
    device, (n, k), cap = arrays.device, (67, 136), 3.0
    case = Case(arrays, tokens, n, k, dtype)
    bias = Tensor(arrays.put(case.bias_values).address, (n,), DType.F32)

    def record_input(rec) -> None:  # type: ignore[no-untyped-def]
        row_to_half(rec, device.kernels, device.info, x=case.x.address, scratch=case.scratch, num_tokens=tokens, k=k)

    if reads_half(device.info, tokens):
        arrays.run(record_input)
    arrays.run(
        lambda rec: linear(
            rec,
            device.kernels,
            device.info,
            x=Tensor(case.x.address, (tokens, k), DType.F32),
            weight=case.weight,
            out_address=case.y.address,
            num_tokens=tokens,
            bias=bias,
            soft_cap=cap,
            scratch=case.scratch,
        )
    )
    case.magnitudes += 1.0  # of the bias and the cap
    case.check(
        HALF if reads_half(device.info, tokens) else SINGLE, cap * np.tanh((case.expected + case.bias_values) / cap)
    )


def test_more_rows_than_one_grid_dimension_holds(arrays: GpuArrays) -> None:
    n = 32768 * 2 + 77
    case = Case(arrays, 1, n, 8, DType.BF16)
    case.run(vec_plan(arrays.device.info, VecTuning(1, 1, 2), 1, n, DType.BF16))
    case.check(SINGLE)


def test_a_soft_cap_neither_overflows_nor_loses_small_values(arrays: GpuArrays) -> None:
    device, cap = arrays.device, 30.0
    x = np.array([-1e30, -1e3, -31.0, -3.75, -0.1, -1e-6, 0.0, 1e-3, 3.7, 3.8, 50.0, 1e30], np.float32)
    inputs = np.zeros((len(x), 8), np.float32)
    inputs[:, 0] = x
    weight, _ = arrays.put_weights(np.eye(1, 8), DType.F16)
    source, y = arrays.put(inputs), arrays.poisoned(len(x) * 4)
    plan = vec_plan(device.info, VEC[0], len(x), 1, DType.F16, (("HAS_SOFT_CAP", True),))
    arrays.run(
        lambda rec: dispatch_plan(
            rec,
            device.kernels,
            plan,
            x=source.address,
            weight=weight,
            out_address=y.address,
            num_tokens=len(x),
            soft_cap=cap,
        )
    )
    exact = cap * np.tanh(x.astype(np.float64) / cap)
    np.testing.assert_allclose(arrays.view(y, np.float32), exact, rtol=5e-6, atol=1e-12)


def test_row_to_half_scales_each_row_by_a_power_of_two(arrays: GpuArrays) -> None:
    device = arrays.device
    if not device.info.float16:
        pytest.skip(f"{device.info.name} has no shaderFloat16")
    rng = np.random.default_rng(3)
    rows, k = 7, 520
    x = rng.standard_normal((rows, k)).astype(np.float32)
    x *= np.array([1, 1e5, 1e-5, 1e30, 1e-30, 3e4, 0], np.float32)[:, None]
    scratch = LinearScratch.at(arrays.poisoned(LinearScratch.size(rows, k)).address, rows, k)
    buffer = arrays.put(np.full(LinearScratch.size(rows, k), 0xFF, np.uint8))
    scratch = LinearScratch.at(buffer.address, rows, k)
    source = arrays.put(x)
    arrays.run(
        lambda rec: row_to_half(
            rec, device.kernels, device.info, x=source.address, scratch=scratch, num_tokens=rows, k=k
        )
    )
    data = arrays.view(buffer, np.uint8)
    halves = data[: rows * k * 2].view(np.float16).reshape(rows, k).astype(np.float64)
    scales = data[scratch.scales - buffer.address :][: rows * 4].view(np.float32).astype(np.float64)
    assert (np.frexp(scales)[0] == 0.5).all()
    largest = np.abs(halves).max(axis=1)
    assert ((largest[:-1] >= 2**13) & (largest[:-1] <= 2**14)).all()
    assert largest[-1] == 0
    exact = x.astype(np.float64)
    assert (np.abs(halves * scales[:, None] - exact) <= np.abs(exact) * 2**-11 + scales[:, None] * 2**-25).all()


def test_prepared_kernels_are_those_that_linear_asks_for(device: Device) -> None:
    wanted = kernels_for(device.info, num_tokens=(1, 8, 64), n=96, dtype=DType.BF16)
    assert all(isinstance(request, KernelRequest) for request in wanted)
    device.kernels.prepare(wanted)
    built = device.kernels.num_kernels
    with GpuArrays(device) as arrays:
        for tokens in (1, 8, 64):
            case = Case(arrays, tokens, 96, 64, DType.BF16)
            if reads_half(device.info, tokens):
                scratch = case.scratch

                def record(rec, case=case, scratch=scratch) -> None:  # type: ignore[no-untyped-def]
                    row_to_half(
                        rec,
                        device.kernels,
                        device.info,
                        x=case.x.address,
                        scratch=scratch,
                        num_tokens=case.tokens,
                        k=64,
                    )

                arrays.run(record)
            arrays.run(
                lambda rec, case=case: linear(  # type: ignore[misc]
                    rec,
                    device.kernels,
                    device.info,
                    x=case.x.address,
                    weight=case.weight,
                    out_address=case.y.address,
                    num_tokens=case.tokens,
                    scratch=case.scratch,
                )
            )
    assert device.kernels.num_kernels == built


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (Tensor(0, (4, 12), DType.BF16), "multiple of 8"),
        (Tensor(0, (4, 16), DType.F32), "F32"),
        (Tensor(0, (64,), DType.F16), "two dimensions"),
    ],
)
def test_weights_that_no_kernel_takes_are_refused(device: Device, weight: Tensor, message: str) -> None:
    with GpuArrays(device) as arrays, pytest.raises(UnsupportedModelError, match=message):
        arrays.run(
            lambda rec: linear(rec, device.kernels, device.info, x=0, weight=weight, out_address=0, num_tokens=1)
        )
