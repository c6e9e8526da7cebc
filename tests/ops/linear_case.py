"""One product on a device, and what it is in double precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.ops.arrays import bf16, from_bf16
from tests.ops.gguf_blocks import dequantize, random_blocks
from tests.ops.packed_arrays import PACKED, packed
from tests.ops.quant_arrays import quantized, read_back, relaid
from unicorn_async.config import Activation
from unicorn_async.ops.linear import NO_EPILOGUE, dispatch_plan, input_form, linear, prepare_input
from unicorn_async.ops.linear_plans.product import Product
from unicorn_async.ops.linear_scratch import LinearScratch
from unicorn_async.ops.rows import RowForm
from unicorn_async.ops.subgroups import matrix_subgroup_size
from unicorn_async.tensor import DType, QuantFormat, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.ops.arrays import Array, Arrays
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear import Epilogue
    from unicorn_async.ops.linear_plans.plan import LinearPlan
    from unicorn_async.ops.rows import BlockRows
    from unicorn_async.tensor import ElementType, QuantTensor

    Weights = tuple[Tensor | QuantTensor, NDArray[np.float64]]

GUARD = 64  # elements after an output that must stay as they were
SINGLE, QUANT_SINGLE = 3e-6, 5e-6  # of the sum of magnitudes: rounding of sums in single precision
HALF, QUANT_HALF = 1e-3, 2e-3  # the same: activations in half precision; of quantised weights scales and weights, too


def weights(arrays: Arrays, n: int, k: int, element: ElementType) -> Weights:
    """A tensor on the device and what it stands for."""
    if isinstance(element, QuantFormat) and element.source_bytes:
        blocks = random_blocks(element, n, k)
        exact = dequantize(element, blocks, n, k).astype(np.float64)
        return relaid(arrays, blocks, (n, k), element), exact
    if isinstance(element, QuantFormat) and element in PACKED:
        return packed(arrays, n, k, element)
    values = np.random.default_rng(n * k).standard_normal((n, k)).astype(np.float32)
    if isinstance(element, QuantFormat):
        tensor = quantized(arrays, values, element)
        return tensor, read_back(arrays, tensor).astype(np.float64)
    values *= 0.2
    bits: NDArray[Any] = {DType.F32: values, DType.F16: values.astype(np.float16), DType.BF16: bf16(values)}[element]
    exact = (from_bf16(bits) if element is DType.BF16 else bits).astype(np.float64)
    return arrays.put(bits).tensor, exact


class Case:
    """One product: its operands on the device, its result in double precision, and how far off it may be."""

    def __init__(
        self,
        arrays: Arrays,
        tokens: int,
        n: int,
        k: int,
        element: ElementType,
        *,
        weight: Weights | None = None,
        x: Array | None = None,
        magnitude: float = 1.0,
    ) -> None:
        rng = np.random.default_rng(tokens * 1_000_003 + n * 1009 + k)
        self.arrays, self.tokens, self.n, self.k = arrays, tokens, n, k
        self.product = Product.of(element, tokens, n, k)
        self.weight, self.exact = weight or weights(arrays, n, k, element)
        values = rng.standard_normal((tokens, k)) * np.exp(rng.standard_normal((tokens, k))) * magnitude
        self.x = x or arrays.put(values.astype(np.float32))
        self.bias = rng.standard_normal(n).astype(np.float32)
        values = self.x.values.astype(np.float64)
        self.expected = values @ self.exact.T
        self.magnitudes = np.abs(values) @ np.abs(self.exact).T
        self.rounding = np.zeros_like(self.expected)  # of activations to int8
        if self.product.is_quantised:
            step = np.abs(values.reshape(tokens, -1, 32)).max(axis=2) / 127
            self.rounding = np.repeat(step / 2, 32, axis=1) @ np.abs(self.exact).T
        self.y = arrays.poisoned(tokens * n + GUARD)
        room = arrays.put(np.full(LinearScratch.size(tokens, k), 0xFF, np.uint8))
        self.scratch = LinearScratch.at(room.address, tokens, k)

    @property
    def form(self) -> RowForm:
        """The form that `linear` reads."""
        return input_form(self.arrays.device.info, self.weight, self.tokens)

    def prepare(self, recorder: CommandRecorder, form: RowForm) -> None:
        """Record bringing the input into a form."""
        device, out = self.arrays.device, self.scratch.rows(self.x.tensor, form)
        if not isinstance(out, Tensor):
            prepare_input(recorder, device.kernels, device.info, x=self.x.tensor, out=out)
            recorder.barrier()

    def run(self, plan: LinearPlan, epilogue: Epilogue = NO_EPILOGUE) -> None:
        """Run one kernel by a plan of the test's own; what the output held before is gone."""
        self.y.values[:] = np.nan

        def record(recorder: CommandRecorder) -> None:
            self.prepare(recorder, plan.form)
            dispatch_plan(
                recorder,
                self.arrays.device.kernels,
                plan,
                x=self.scratch.rows(self.x.tensor, plan.form),
                weight=self.weight,
                out=self._out(epilogue),
                num_tokens=self.tokens,
                scratch=self.scratch,
                epilogue=epilogue,
            )

        self.arrays.run(record)

    def run_linear(self, epilogue: Epilogue = NO_EPILOGUE, *, out: Tensor | BlockRows | None = None) -> None:
        """Run what `linear` chooses, with an input in f32."""
        device = self.arrays.device
        self.arrays.run(
            lambda recorder: linear(
                recorder,
                device.kernels,
                device.info,
                x=self.x.tensor,
                weight=self.weight,
                out=self._out(epilogue) if out is None else out,
                num_tokens=self.tokens,
                scratch=self.scratch,
                epilogue=epilogue,
            )
        )

    def check(self, form: RowForm, expected: NDArray[np.float64] | None = None) -> None:
        """Raise where the output is off by more than rounding explains, with activations read in a form."""
        count = self.tokens * self.n
        assert np.isnan(self.y.values[count:]).all(), "wrote past the end of the output"
        found = self.y.values[:count].reshape(self.tokens, self.n)
        error = np.abs(found - (self.expected if expected is None else expected))
        worst = np.max(error / (self._allowed(form) + 1e-30))
        assert worst <= 1.0, f"error is {worst:.3g} times what rounding explains"

    def check_gated(self, activation: Activation) -> None:
        """Raise where the output is not act(gate) * up of the product's halves."""
        count = self.tokens * self.n // 2
        assert np.isnan(self.y.values[count:]).all(), "wrote past the end of the output"
        expected, allowed = self.gated(activation)
        assert (np.abs(self.y.values[:count].reshape(expected.shape) - expected) <= allowed).all()

    def gated(self, activation: Activation) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What a gate makes of the product, and how far off it may be."""
        half = self.n // 2
        gate, up = self.expected[:, :half], self.expected[:, half:]
        if activation is Activation.CLAMPED_SWIGLU:
            gate, up = np.minimum(gate, 7), np.clip(up, -7, 7) + 1
        inner = {
            Activation.SILU: gate,
            Activation.GELU_TANH: np.sqrt(8 / np.pi) * (gate + 0.044715 * gate**3),
            Activation.CLAMPED_SWIGLU: 1.702 * gate,
        }[activation]
        factor = gate / (1 + np.exp(-inner))
        off = 1.2 * self._allowed(RowForm.BLOCKS)  # no activation is steeper
        return factor * up, off[:, :half] * (np.abs(up) + off[:, half:]) + np.abs(factor) * off[:, half:] + 1e-5

    def _allowed(self, form: RowForm) -> NDArray[np.float64]:
        quantised = self.product.is_quantised
        if form in (RowForm.HALVES, RowForm.FRAGMENTS):
            return self.magnitudes * (QUANT_HALF if quantised else HALF)
        return self.magnitudes * (QUANT_SINGLE if quantised else SINGLE) + self.rounding

    def _out(self, epilogue: Epilogue) -> Tensor:
        width = self.n if epilogue.gate is None else self.n // 2
        return Tensor(self.y.address, (self.tokens, width), DType.F32)


def skip_without_matrices(info: DeviceInfo) -> None:
    if matrix_subgroup_size(info) is None:
        pytest.skip(f"{info.name} has no VK_KHR_cooperative_matrix of 16×16×16, f16 into f32")
