from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.ops.gguf_blocks import GGUF_FORMATS, dequantize, random_blocks
from tests.ops.quant_arrays import quantized, read_back, read_blocks, relaid
from unicorn_async.config import Activation
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.linear_held_plan import HeldTuning, held_plan
from unicorn_async.ops.linear_input import HalfRows, InputBlocks, InputForm, LinearScratch
from unicorn_async.ops.linear_plan import (
    FRAGMENTS_FEATURE,
    NARROW_FEATURE,
    TileTuning,
    can_split,
    coopmat_plan,
    many_plan,
    matrix_subgroup_size,
)
from unicorn_async.ops.linear_quant import (
    dispatch_quant_plan,
    input_kernels_for,
    kernels_for,
    linear_quant,
    prepare_input,
)
from unicorn_async.ops.linear_quant_plan import (
    QuantVecTuning,
    fragment_plan,
    fuses_gate,
    leaves_blocks,
    plan_linear_quant,
    quant_form,
    quant_vec_plan,
)
from unicorn_async.ops.quant_tiles import FragmentTuning
from unicorn_async.tensor import QuantFormat, QuantTensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.ops.arrays import Arrays
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plan import LinearPlan
    from unicorn_async.tensor import Tensor

FORMATS = [QuantFormat.NF4, *GGUF_FORMATS]
GUARD = 64  # elements after an output that must stay as they were
SINGLE = 5e-6  # of the sum of magnitudes: rounding of sums in single precision
HALF = 2e-3  # of the sum of magnitudes: activations, scales and weights in half precision

VEC = [
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
MANY = [TileTuning(0, 64, 64, 16, 16), TileTuning(0, 16, 32, 4, 8)]
COOPMAT = [
    TileTuning(0, 16, 64, 1, 4, 64),
    TileTuning(0, 32, 64, 1, 4, 64, buffers=1),
    TileTuning(0, 64, 64, 2, 2, 32, splits=3),
    TileTuning(0, 128, 128, 2, 2, 32),
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

    def rows(self, form: InputForm) -> HalfRows | InputBlocks:
        """Where the input lies in the form that a kernel reads."""
        if form is InputForm.BLOCKS:
            return self.scratch.blocks(self.tokens, self.k)
        return self.scratch.half_rows(self.tokens, self.k, form)

    def prepare(self, recorder: CommandRecorder, form: InputForm) -> None:
        device = self.arrays.device
        prepare_input(recorder, device.kernels, device.info, x=self.x.tensor, out=self.rows(form))
        recorder.barrier()

    def run(self, plan: LinearPlan) -> None:
        """Run one kernel by a plan of the test's own."""

        def record(recorder: CommandRecorder) -> None:
            self.prepare(recorder, plan.form)
            dispatch_quant_plan(
                recorder,
                self.arrays.device.kernels,
                plan,
                x=self.rows(plan.form),
                weight=self.weight,
                out=self.y.address,
                num_tokens=self.tokens,
                scratch=self.scratch,
            )

        self.arrays.run(record)
        self.check(plan.form)

    def run_linear(
        self,
        *,
        out: int | InputBlocks | None = None,
        bias: Tensor | None = None,
        soft_cap: float = 0.0,
        activation: Activation | None = None,
        stride: int | None = None,
    ) -> None:
        """Run what `linear_quant` chooses."""
        device = self.arrays.device
        form = quant_form(device.info, self.tokens, self.k)

        def record(recorder: CommandRecorder) -> None:
            self.prepare(recorder, form)
            linear_quant(
                recorder,
                device.kernels,
                device.info,
                x=self.rows(form),
                weight=self.weight,
                out=self.y.address if out is None else out,
                num_tokens=self.tokens,
                scratch=self.scratch,
                bias=bias,
                soft_cap=soft_cap,
                activation=activation,
                stride=stride,
            )

        self.arrays.run(record)

    def check(self, form: InputForm, expected: NDArray[np.float64] | None = None) -> None:
        count = self.tokens * self.n
        assert np.isnan(self.y.values[count:]).all(), "wrote past the end of the output"
        found = self.y.values[:count].reshape(self.tokens, self.n)
        error = np.abs(found - (self.expected if expected is None else expected))
        allowed = self.magnitudes * HALF
        if form is InputForm.BLOCKS:
            allowed = self.magnitudes * SINGLE + self.rounding
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
def test_linear_quant_held_equals_the_product(arrays: Arrays, quant_format: QuantFormat) -> None:
    for n, k in shapes(quant_format):
        weight = weights(arrays, n, k, quant_format)
        for tuning in HELD:
            for tokens in sorted({1, tuning.tokens, tuning.tokens + 1}):
                case = Case(arrays, tokens, n, k, quant_format, weight)
                case.run(held_plan(arrays.device.info, tuning, tokens, n, k, quant_format))


@pytest.mark.parametrize("quant_format", FORMATS, ids=lambda f: f.value)
def test_linear_quant_many_equals_the_product(arrays: Arrays, quant_format: QuantFormat) -> None:
    entry = f"linear_quant_many_{quant_format.layout.name}"
    for n, k in shapes(quant_format):
        weight = weights(arrays, n, k, quant_format)
        for tuning in MANY:
            for tokens in (1, 33, 70):
                case = Case(arrays, tokens, n, k, quant_format, weight)
                case.run(many_plan(tuning, tokens, n, entry, (), InputForm.BLOCKS))


@pytest.mark.parametrize("quant_format", FORMATS, ids=lambda f: f.value)
def test_linear_quant_coopmat_equals_the_product(arrays: Arrays, quant_format: QuantFormat) -> None:
    skip_without_matrices(arrays.device.info)
    entry = f"linear_quant_coopmat_{quant_format.layout.name}"
    for n, k in shapes(quant_format):
        weight = weights(arrays, n, k, quant_format)
        for tuning in COOPMAT:
            for tokens in (1, 15, 33, 150):
                assert can_split(tuning, tokens, n)
                case = Case(arrays, tokens, n, k, quant_format, weight)
                case.run(coopmat_plan(arrays.device.info, tuning, tokens, n, entry))


@pytest.mark.parametrize("quant_format", FORMATS, ids=lambda f: f.value)
def test_linear_quant_fragments_equals_the_product(arrays: Arrays, quant_format: QuantFormat) -> None:
    info = arrays.device.info
    if FRAGMENTS_FEATURE not in info.features:
        pytest.skip(f"{info.name} has no matrices of which lanes hold the elements that the kernel needs")
    for n, k in ((1, 256), (67, 5 * 256), (130, 3 * 256)):
        weight = weights(arrays, n, k, quant_format)
        for tuning in FRAGMENTS:
            for tokens in (1, 15, 33, 150):
                case = Case(arrays, tokens, n, k, quant_format, weight)
                case.run(fragment_plan(info, tuning, tokens, n, quant_format))


@pytest.mark.parametrize("quant_format", FORMATS, ids=lambda f: f.value)
def test_matrices_of_eight_tokens_give_the_same_product(arrays: Arrays, quant_format: QuantFormat) -> None:
    info = arrays.device.info
    if NARROW_FEATURE not in info.features:
        pytest.skip(f"{info.name} has no matrices of 8 columns of which lanes hold the elements that the kernel needs")
    for n, k in ((1, 256), (67, 5 * 256), (130, 3 * 256)):
        weight = weights(arrays, n, k, quant_format)
        for tuning in NARROW:
            for tokens in (1, 3, 8):
                case = Case(arrays, tokens, n, k, quant_format, weight)
                case.run(fragment_plan(info, tuning, tokens, n, quant_format))


@pytest.mark.parametrize("quant_format", [QuantFormat.INT8, QuantFormat.Q4_K], ids=lambda f: f.value)
@pytest.mark.parametrize("tokens", [1, 2, 7, 32, 40, 300])
def test_linear_quant_adds_the_bias_and_caps(arrays: Arrays, quant_format: QuantFormat, tokens: int) -> None:
    cap = 3.0
    case = Case(arrays, tokens, 67, 512, quant_format)
    case.run_linear(bias=arrays.put(case.bias).tensor, soft_cap=cap)
    case.magnitudes += 1.0  # of the bias and the cap
    expected = cap * np.tanh((case.expected + case.bias) / cap)
    case.check(quant_form(arrays.device.info, tokens, case.k), expected=expected)


@pytest.mark.parametrize("kind", [DeviceType.SOFTWARE, DeviceType.DISCRETE], ids=lambda kind: f"as_{kind.name.lower()}")
@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("tokens", [1, 2, 3, 8])
def test_linear_quant_applies_the_gate(
    arrays: Arrays, monkeypatch: pytest.MonkeyPatch, tokens: int, activation: Activation, kind: DeviceType
) -> None:
    """By the rules for either kind of device; those for GPUs hold one or two tokens in registers."""
    half = 33
    monkeypatch.setattr(arrays.device, "info", replace(arrays.device.info, type=kind))
    if not fuses_gate(arrays.device.info, tokens, 256):
        pytest.skip("matrix kernels take so many tokens, and apply no gate")
    case = Case(arrays, tokens, 2 * half, 256, QuantFormat.Q5_0)
    case.run_linear(activation=activation)
    gates, allowed = gated(case, activation)
    found = case.y.values[: tokens * half].reshape(tokens, half)
    assert (np.abs(found - gates) <= allowed).all()
    assert np.isnan(case.y.values[tokens * half :]).all()


@pytest.mark.parametrize("tokens", [1, 3, 8])
@pytest.mark.parametrize("width", [32, 160])
def test_a_gate_s_output_may_be_left_in_blocks(arrays: Arrays, tokens: int, width: int) -> None:
    if not leaves_blocks(arrays.device.info, tokens, 512):
        pytest.skip("the output of so many tokens is left in floats")
    case = Case(arrays, tokens, 2 * width, 512, QuantFormat.Q4_0)
    room = arrays.put(np.full(InputBlocks.size(tokens, width) + GUARD, 0xFF, np.uint8))
    case.run_linear(activation=Activation.SILU, out=InputBlocks.at(room.address, tokens, width))
    gates, allowed = gated(case, Activation.SILU)
    codes, scales = read_blocks(room.values, tokens, width)
    step = np.repeat(scales, 32, axis=1)
    assert (np.abs(codes * step - gates) <= allowed + 0.5001 * step).all()
    assert (room.values[InputBlocks.size(tokens, width) :] == 0xFF).all()


def gated(case: Case, activation: Activation) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What a gate makes of a product, and how far off it may be."""
    half = case.n // 2
    gate, up = case.expected[:, :half], case.expected[:, half:]
    inner = gate if activation is Activation.SILU else np.sqrt(8 / np.pi) * (gate + 0.044715 * gate**3)
    factor = gate / (1 + np.exp(-inner))
    rounding = 1.2 * case.rounding  # neither activation is steeper
    allowed = rounding[:, :half] * (np.abs(up) + rounding[:, half:]) + np.abs(factor) * rounding[:, half:] + 1e-5
    return factor * up, allowed


@pytest.mark.parametrize("tokens", [2, 40])
def test_parts_of_an_output_leave_the_rest_alone(arrays: Arrays, tokens: int) -> None:
    stride, first = 200, 50
    case = Case(arrays, tokens, 67, 256, QuantFormat.Q8_0)
    wide = arrays.poisoned(tokens, stride)
    case.run_linear(out=wide.address + 4 * first, stride=stride)
    assert np.isnan(wide.values[:, :first]).all()
    assert np.isnan(wide.values[:, first + 67 :]).all()
    case.y.values[: tokens * 67] = wide.values[:, first : first + 67].ravel()
    case.check(quant_form(arrays.device.info, tokens, case.k))


def test_activations_of_any_size_keep_a_scale_of_their_block(arrays: Arrays) -> None:
    case = Case(arrays, 4, 3, 128, QuantFormat.Q8_0)
    case.x.values[:] *= np.array([[1e-30], [0.0], [1e5], [1.0]], np.float32)
    case.x.values[3, :32] *= 1e4
    case.arrays.run(lambda recorder: case.prepare(recorder, InputForm.BLOCKS))
    mapped = next(a for a in case.arrays._arrays if a.address == case.scratch.values).values
    codes, scales = read_blocks(mapped, case.tokens, case.k)
    blocks = case.x.values.reshape(case.tokens, -1, 32)
    largest = np.abs(blocks).max(axis=2)
    np.testing.assert_allclose(scales, largest / np.float32(127), rtol=1e-6)
    errors = np.abs(codes.reshape(blocks.shape) * scales[:, :, None] - blocks)
    assert (errors <= 0.5001 * scales[:, :, None])[largest > 1e-30].all()


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
    assert names[0] == ("linear_quant_vec_q4" if info.is_software else "linear_quant_held_q4")
    names = [r.name for r in input_kernels_for(info, num_tokens=(1, 4, 512), k=256)]
    assert "quantize_activations" in names
    form = quant_form(info, 512, 256)
    assert (f"row_to_half_{form.value}" in names) == (form is not InputForm.BLOCKS)
