from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.ops.gguf_blocks import GGUF_FORMATS, dequantize, random_blocks
from tests.ops.quant_arrays import quantized, read_back, relaid
from unicorn_async.config import Activation
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.ops.linear import LinearScratch, row_to_half
from unicorn_async.ops.linear_plan import matrix_subgroup_size
from unicorn_async.ops.linear_quant import (
    dispatch_quant_plan,
    kernels_for,
    linear_quant,
    prepare_input,
    quantize_activations,
)
from unicorn_async.ops.linear_quant_plan import (
    QuantPlan,
    QuantTileTuning,
    QuantVecTuning,
    can_split,
    fuses_gate,
    plan_linear_quant,
    quant_coopmat_plan,
    quant_many_plan,
    quant_vec_plan,
    reads_half,
)
from unicorn_async.tensor import QuantFormat, QuantTensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.ops.arrays import Arrays
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.tensor import Tensor

FORMATS = [QuantFormat.NF4, *GGUF_FORMATS]
GUARD = 64  # elements after an output that must stay as they were
SINGLE = 5e-6  # of the sum of magnitudes: rounding of sums in single precision
HALF = 2e-3  # of the sum of magnitudes: activations, scales and weights in half precision

VEC = [QuantVecTuning(1, 1, 1), QuantVecTuning(1, 2, 2), QuantVecTuning(2, 4, 3), QuantVecTuning(8, 1, 4)]
MANY = [QuantTileTuning(0, 64, 64, 16, 16), QuantTileTuning(0, 16, 32, 4, 8)]
COOPMAT = [
    QuantTileTuning(0, 16, 64, 1, 4, 64),
    QuantTileTuning(0, 32, 64, 1, 4, 64, buffers=1),
    QuantTileTuning(0, 64, 64, 2, 2, 32, splits=3),
    QuantTileTuning(0, 128, 128, 2, 2, 32),
    QuantTileTuning(0, 16, 64, 1, 2, 128, splits=4),
]


def shapes(quant_format: QuantFormat) -> list[tuple[int, int]]:
    unit = quant_format.layout.unit
    return [(1, unit), (67, 5 * unit), (130, 3 * unit)]


def weights(arrays: Arrays, n: int, k: int, quant_format: QuantFormat) -> tuple[QuantTensor, NDArray[np.float64]]:
    """A tensor on the device and what it stands for."""
    if quant_format.source_bytes:
        blocks = random_blocks(quant_format, n, k)
        exact = dequantize(quant_format, blocks, n, k).astype(np.float64)
        return relaid(arrays, blocks, (n, k), quant_format), exact
    values = np.random.default_rng(n * k).standard_normal((n, k)).astype(np.float32)
    tensor = quantized(arrays, values, quant_format)
    return tensor, read_back(arrays, tensor).astype(np.float64)


class Case:
    """One product: its operands on the device, its result in double precision, and how far off it may be."""

    def __init__(
        self,
        arrays: Arrays,
        tokens: int,
        n: int,
        k: int,
        quant_format: QuantFormat,
        weight: tuple[QuantTensor, NDArray[np.float64]] | None = None,
    ) -> None:
        rng = np.random.default_rng(tokens * 1_000_003 + n * 1009 + k)
        self.arrays, self.tokens, self.n, self.k = arrays, tokens, n, k
        self.weight, self.exact = weight or weights(arrays, n, k, quant_format)
        x = rng.standard_normal((tokens, k)) * np.exp(rng.standard_normal((tokens, k)))
        self.x = arrays.put(x.astype(np.float32))
        self.bias = rng.standard_normal(n).astype(np.float32)
        x = self.x.values.astype(np.float64)
        self.expected = x @ self.exact.T
        self.magnitudes = np.abs(x) @ np.abs(self.exact).T
        step = np.abs(x.reshape(tokens, -1, 32)).max(axis=2) / 127
        self.rounding = np.repeat(step / 2, 32, axis=1) @ np.abs(self.exact).T  # of activations to int8
        self.y = arrays.poisoned(tokens * n + GUARD)
        room = arrays.put(np.full(LinearScratch.size(tokens, k), 0xFF, np.uint8))
        self.scratch = LinearScratch.at(room.address, tokens, k)

    def prepare(self, recorder: CommandRecorder, *, half: bool) -> None:
        device, scratch, tokens = self.arrays.device, self.scratch, self.tokens
        if half:
            row_to_half(
                recorder, device.kernels, device.info, x=self.x.address, scratch=scratch, num_tokens=tokens, k=self.k
            )
        else:
            quantize_activations(
                recorder, device.kernels, x=self.x.address, scratch=scratch, num_tokens=tokens, k=self.k
            )

    def run(self, plan: QuantPlan) -> None:
        """Run one kernel by a plan of the test's own."""

        def record(recorder: CommandRecorder) -> None:
            self.prepare(recorder, half=plan.reads_half)
            recorder.barrier()
            dispatch_quant_plan(
                recorder,
                self.arrays.device.kernels,
                plan,
                weight=self.weight,
                out_address=self.y.address,
                num_tokens=self.tokens,
                scratch=self.scratch,
            )

        self.arrays.run(record)
        self.check(half=plan.reads_half)

    def run_linear(self, *, bias: Tensor, soft_cap: float) -> None:
        """Run what `linear_quant` chooses."""
        device = self.arrays.device

        def record(recorder: CommandRecorder) -> None:
            prepare_input(
                recorder,
                device.kernels,
                device.info,
                x=self.x.tensor,
                scratch=self.scratch,
                num_tokens=self.tokens,
                k=self.k,
            )
            recorder.barrier()
            linear_quant(
                recorder,
                device.kernels,
                device.info,
                weight=self.weight,
                out_address=self.y.address,
                num_tokens=self.tokens,
                scratch=self.scratch,
                bias=bias,
                soft_cap=soft_cap,
            )

        self.arrays.run(record)

    def check(self, *, half: bool, expected: NDArray[np.float64] | None = None) -> None:
        count = self.tokens * self.n
        assert np.isnan(self.y.values[count:]).all(), "wrote past the end of the output"
        found = self.y.values[:count].reshape(self.tokens, self.n)
        error = np.abs(found - (self.expected if expected is None else expected))
        allowed = self.magnitudes * HALF if half else self.magnitudes * SINGLE + self.rounding
        worst = np.max(error / (allowed + 1e-30))
        assert worst <= 1.0, f"error is {worst:.3g} times what rounding explains"


def skip_without_matrices(info: DeviceInfo) -> None:
    if matrix_subgroup_size(info) is None:
        pytest.skip(f"{info.name} has no VK_KHR_cooperative_matrix of 16×16×16, f16 into f32")


@pytest.mark.parametrize("quant_format", FORMATS, ids=lambda f: f.value)
def test_linear_quant_vec_equals_the_product(arrays: Arrays, quant_format: QuantFormat) -> None:
    for n, k in shapes(quant_format):
        weight = weights(arrays, n, k, quant_format)
        for tuning in VEC:
            for tokens in sorted({1, tuning.tokens, tuning.tokens + 1}):
                case = Case(arrays, tokens, n, k, quant_format, weight)
                case.run(quant_vec_plan(arrays.device.info, tuning, tokens, n, quant_format))


@pytest.mark.parametrize("quant_format", FORMATS, ids=lambda f: f.value)
def test_linear_quant_many_equals_the_product(arrays: Arrays, quant_format: QuantFormat) -> None:
    for n, k in shapes(quant_format):
        weight = weights(arrays, n, k, quant_format)
        for tuning in MANY:
            for tokens in (1, 33, 70):
                case = Case(arrays, tokens, n, k, quant_format, weight)
                case.run(quant_many_plan(tuning, tokens, n, quant_format))


@pytest.mark.parametrize("quant_format", FORMATS, ids=lambda f: f.value)
def test_linear_quant_coopmat_equals_the_product(arrays: Arrays, quant_format: QuantFormat) -> None:
    skip_without_matrices(arrays.device.info)
    for n, k in shapes(quant_format):
        weight = weights(arrays, n, k, quant_format)
        for tuning in COOPMAT:
            for tokens in (1, 15, 33, 150):
                assert can_split(tuning, tokens, n)
                case = Case(arrays, tokens, n, k, quant_format, weight)
                case.run(quant_coopmat_plan(arrays.device.info, tuning, tokens, n, quant_format))


@pytest.mark.parametrize("quant_format", [QuantFormat.INT8, QuantFormat.Q4_K], ids=lambda f: f.value)
@pytest.mark.parametrize("tokens", [1, 2, 7, 32, 40, 300])
def test_linear_quant_adds_the_bias_and_caps(arrays: Arrays, quant_format: QuantFormat, tokens: int) -> None:
    cap = 3.0
    case = Case(arrays, tokens, 67, 512, quant_format)
    case.run_linear(bias=arrays.put(case.bias).tensor, soft_cap=cap)
    case.magnitudes += 1.0  # of the bias and the cap
    expected = cap * np.tanh((case.expected + case.bias) / cap)
    case.check(half=reads_half(arrays.device.info, tokens), expected=expected)


@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_linear_quant_applies_the_gate(arrays: Arrays, tokens: int, activation: Activation) -> None:
    device, half = arrays.device, 33
    assert fuses_gate(device.info, tokens)
    case = Case(arrays, tokens, 2 * half, 256, QuantFormat.Q5_0)

    def record(recorder: CommandRecorder) -> None:
        case.prepare(recorder, half=False)
        recorder.barrier()
        linear_quant(
            recorder,
            device.kernels,
            device.info,
            weight=case.weight,
            out_address=case.y.address,
            num_tokens=tokens,
            scratch=case.scratch,
            activation=activation,
        )

    arrays.run(record)
    gate, up = case.expected[:, :half], case.expected[:, half:]
    inner = gate if activation is Activation.SILU else np.sqrt(8 / np.pi) * (gate + 0.044715 * gate**3)
    factor = gate / (1 + np.exp(-inner))
    rounding = 1.2 * case.rounding  # neither activation is steeper
    allowed = rounding[:, :half] * (np.abs(up) + rounding[:, half:]) + np.abs(factor) * rounding[:, half:] + 1e-5
    found = case.y.values[: tokens * half].reshape(tokens, half)
    assert (np.abs(found - factor * up) <= allowed).all()
    assert np.isnan(case.y.values[tokens * half :]).all()


@pytest.mark.parametrize("tokens", [2, 40])
def test_parts_of_an_output_leave_the_rest_alone(arrays: Arrays, tokens: int) -> None:
    device, stride, first = arrays.device, 200, 50
    case = Case(arrays, tokens, 67, 256, QuantFormat.Q8_0)
    wide = arrays.poisoned(tokens, stride)

    def record(recorder: CommandRecorder) -> None:
        case.prepare(recorder, half=reads_half(device.info, tokens))
        recorder.barrier()
        linear_quant(
            recorder,
            device.kernels,
            device.info,
            weight=case.weight,
            out_address=wide.address + 4 * first,
            num_tokens=tokens,
            scratch=case.scratch,
            stride=stride,
        )

    arrays.run(record)
    assert np.isnan(wide.values[:, :first]).all()
    assert np.isnan(wide.values[:, first + 67 :]).all()
    case.y.values[: tokens * 67] = wide.values[:, first : first + 67].ravel()
    case.check(half=reads_half(device.info, tokens))


def test_activations_of_any_size_keep_a_scale_of_their_block(arrays: Arrays) -> None:
    case = Case(arrays, 4, 3, 128, QuantFormat.Q8_0)
    case.x.values[:] *= np.array([[1e-30], [0.0], [1e5], [1.0]], np.float32)
    case.x.values[3, :32] *= 1e4
    case.arrays.run(lambda recorder: case.prepare(recorder, half=False))
    count = case.tokens * case.k
    mapped = next(a for a in case.arrays._arrays if a.address == case.scratch.halves).values
    codes = mapped[:count].view(np.int8).reshape(-1, 8, 4)[:, :, [0, 2, 1, 3]].reshape(-1, 32)
    records = mapped[count : count + count // 4].view(np.uint32).reshape(-1, 2)
    scales = records[:, 0].view(np.float32)
    blocks = case.x.values.reshape(-1, 32)
    np.testing.assert_allclose(scales, np.abs(blocks).max(axis=1) / np.float32(127), rtol=1e-6)
    kept = np.abs(blocks).max(axis=1) > 1e-30
    assert (np.abs(codes * scales[:, None] - blocks)[kept] <= 0.5001 * scales[kept, None]).all()
    sums = records[:, 1].copy().view(np.int16).reshape(-1, 2)
    np.testing.assert_array_equal(sums, codes.reshape(-1, 2, 16).sum(axis=2))


@pytest.mark.parametrize(
    ("quant_format", "k"),
    [(QuantFormat.INT8, 48), (QuantFormat.NF4, 96), (QuantFormat.Q4_K, 384), (QuantFormat.Q4_0, 0)],
)
def test_rows_that_are_no_whole_units_are_refused(device_info: DeviceInfo, quant_format: QuantFormat, k: int) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{k} elements, expected a multiple of"):
        plan_linear_quant(device_info, num_tokens=1, n=8, k=k, quant_format=quant_format)


@pytest.fixture
def device_info(arrays: Arrays) -> DeviceInfo:
    return arrays.device.info


def test_the_pipelines_of_a_step_are_named_beforehand(arrays: Arrays) -> None:
    info = arrays.device.info
    names = [r.name for r in kernels_for(info, num_tokens=(1, 4, 512), n=64, k=256, quant_format=QuantFormat.INT4)]
    assert names[0] == "linear_quant_vec_q4"
    assert "quantize_activations" in names
    assert ("row_to_half" in names) == reads_half(info, 512)
