from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.gpu.made_up import DISCRETE, SOFTWARE
from tests.ops.linear_case import GUARD, Case, weights
from tests.ops.quant_arrays import read_blocks
from unicorn_async.config import Activation
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.gpu.listing import KernelListing, unique_requests
from unicorn_async.ops.linear import (
    NO_EPILOGUE,
    Epilogue,
    dispatch_plan,
    fuses_gate,
    input_form,
    input_rows,
    leaves_blocks,
    linear,
    prepare_input,
)
from unicorn_async.ops.linear_plans.product import Product
from unicorn_async.ops.linear_plans.rules import plan_linear
from unicorn_async.ops.linear_scratch import LinearScratch
from unicorn_async.ops.rows import BlockRows, RowForm
from unicorn_async.tensor import DType, MixedTensor, QuantFormat, QuantTensor, Tensor

if TYPE_CHECKING:
    from tests.ops.arrays import Arrays
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.listing import ListedDispatch
    from unicorn_async.tensor import ElementType, Weight


@pytest.mark.combinations("every number of tokens with every type")
@pytest.mark.parametrize("element", [*DType, QuantFormat.INT8, QuantFormat.Q4_K], ids=lambda e: e.value)
@pytest.mark.parametrize("tokens", [1, 2, 7, 32, 40, 300])
def test_linear_adds_the_bias_and_caps(arrays: Arrays, element: ElementType, tokens: int) -> None:
    cap = 3.0
    case = Case(arrays, tokens, 67, 512, element)
    case.run_linear(Epilogue(arrays.put(case.bias).address, cap))
    case.magnitudes += 1.0  # of the bias and the cap
    case.check(case.form, cap * np.tanh((case.expected + case.bias) / cap))


@pytest.mark.combinations("either activation for every number of tokens, by the rules for either kind of device")
@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize(
    ("element", "tokens", "kind"),
    [
        (element, tokens, kind)
        for element, tokens in [(DType.F16, 1), *((QuantFormat.Q5_0, tokens) for tokens in (1, 2, 3, 8))]
        for kind in (DeviceType.SOFTWARE, DeviceType.DISCRETE)
    ],
)
def test_linear_applies_the_gate(
    arrays: Arrays,
    monkeypatch: pytest.MonkeyPatch,
    element: ElementType,
    tokens: int,
    activation: Activation,
    kind: DeviceType,
) -> None:
    """By the rules for either kind of device; those for GPUs hold one or two tokens in registers."""
    monkeypatch.setattr(arrays.device, "info", replace(arrays.device.info, type=kind))
    case = Case(arrays, tokens, 2 * 33, 256, element)
    if not fuses_gate(arrays.device.info, case.weight, tokens):
        pytest.skip("matrix kernels take so many tokens, and apply no gate")
    case.run_linear(Epilogue(gate=activation))
    case.check_gated(activation)


@pytest.mark.combinations("either width for every number of tokens")
@pytest.mark.parametrize("tokens", [1, 3, 8])
@pytest.mark.parametrize("width", [32, 160])
def test_a_gate_s_output_may_be_left_in_blocks(arrays: Arrays, tokens: int, width: int) -> None:
    case = Case(arrays, tokens, 2 * width, 512, QuantFormat.Q4_0)
    if not leaves_blocks(arrays.device.info, case.weight, tokens):
        pytest.skip("the output of so many tokens is left in floats")
    room = arrays.put(np.full(BlockRows.size(tokens, width) + GUARD, 0xFF, np.uint8))
    case.run_linear(Epilogue(gate=Activation.SILU), out=BlockRows.at(room.address, tokens, width))
    gates, allowed = case.gated(Activation.SILU)
    codes, scales = read_blocks(room.values, tokens, width)
    step = np.repeat(scales, 32, axis=1)
    assert (np.abs(codes * step - gates) <= allowed + 0.5001 * step).all()
    assert (room.values[BlockRows.size(tokens, width) :] == 0xFF).all()


@pytest.mark.parametrize("tokens", [2, 40])
@pytest.mark.parametrize(
    "elements",
    [(QuantFormat.Q8_0, QuantFormat.Q6_K), (QuantFormat.Q8_0, DType.BF16), (DType.F32, QuantFormat.Q3_K)],
    ids=lambda elements: "-".join(element.value for element in elements),
)
def test_weights_in_parts_leave_an_output_side_by_side(
    arrays: Arrays, elements: tuple[ElementType, ElementType], tokens: int
) -> None:
    first = Case(arrays, tokens, 67, 256, elements[0])
    parts = first, Case(arrays, tokens, 33, 256, elements[1], x=first.x)
    bias = arrays.put(np.concatenate([part.bias for part in parts]))
    out, device = arrays.poisoned(tokens + 1, 100), arrays.device
    whole = MixedTensor(tuple(part.weight for part in parts))
    arrays.run(
        lambda recorder: linear(
            recorder,
            device.kernels,
            device.info,
            x=first.x.tensor,
            weight=whole,
            out=Tensor(out.address, (tokens, 100), DType.F32),
            num_tokens=tokens,
            scratch=first.scratch,
            epilogue=Epilogue(bias.address),
        )
    )
    assert np.isnan(out.values[tokens]).all()
    for part, columns in zip(parts, (slice(67), slice(67, None)), strict=True):
        part.y.values[: tokens * part.n] = out.values[:tokens, columns].ravel()
        part.magnitudes += 1.0  # of the bias
        part.check(part.form, part.expected + part.bias)


def test_weights_in_parts_apply_no_gate(arrays: Arrays) -> None:
    part = QuantTensor(0, (64, 256), QuantFormat.Q8_0)
    whole, device = MixedTensor((part, part)), arrays.device
    assert not fuses_gate(device.info, whole, 1) and not leaves_blocks(device.info, whole, 1)
    scratch = LinearScratch.at(0, 1, 256)
    with pytest.raises(ValueError, match="no kernel applies the gate to weights in several parts"):
        linear(
            KernelListing(),
            KernelListing(),
            device.info,
            x=scratch.blocks(1, 256),
            weight=whole,
            out=Tensor(0, (1, 64), DType.F32),
            num_tokens=1,
            scratch=scratch,
            epilogue=Epilogue(gate=Activation.SILU),
        )


def test_rows_of_halves_are_scaled_by_a_power_of_two_each(arrays: Arrays) -> None:
    if not arrays.device.info.float16:
        pytest.skip(f"{arrays.device.info.name} has no shaderFloat16")
    factors = np.array([1, 1e5, 1e-5, 1e30, 1e-30, 3e4, 0], np.float32)
    rows, k = len(factors), 520
    case = Case(arrays, rows, 1, k, DType.F16)
    case.x.values[:] *= factors[:, None]
    room = arrays.put(np.full(LinearScratch.size(rows, k), 0xFF, np.uint8))
    case.scratch = LinearScratch.at(room.address, rows, k)
    arrays.run(lambda recorder: case.prepare(recorder, RowForm.HALVES))
    halves = room.values[: rows * k * 2].view(np.float16).reshape(rows, k).astype(np.float64)
    scales = room.values[case.scratch.scales - room.address :][: rows * 4].view(np.float32).astype(np.float64)
    assert (np.frexp(scales)[0] == 0.5).all()
    largest = np.abs(halves).max(axis=1)
    assert ((largest[:-1] >= 2**13) & (largest[:-1] <= 2**14)).all()
    assert largest[-1] == 0
    exact = case.x.values.astype(np.float64)
    assert (np.abs(halves * scales[:, None] - exact) <= np.abs(exact) * 2**-11 + scales[:, None] * 2**-25).all()


def test_activations_of_any_size_keep_a_scale_of_their_block(arrays: Arrays) -> None:
    case = Case(arrays, 4, 3, 128, QuantFormat.Q8_0)
    case.x.values[:] *= np.array([[1e-30], [0.0], [1e5], [1.0]], np.float32)
    case.x.values[3, :32] *= 1e4
    room = arrays.put(np.full(LinearScratch.size(4, 128), 0xFF, np.uint8))
    case.scratch = LinearScratch.at(room.address, 4, 128)
    case.arrays.run(lambda recorder: case.prepare(recorder, RowForm.BLOCKS))
    codes, scales = read_blocks(room.values, case.tokens, case.k)
    blocks = case.x.values.reshape(case.tokens, -1, 32)
    largest = np.abs(blocks).max(axis=2)
    np.testing.assert_allclose(scales, largest / np.float32(127), rtol=1e-6)
    errors = np.abs(codes.reshape(blocks.shape) * scales[:, :, None] - blocks)
    assert (errors <= 0.5001 * scales[:, :, None])[largest > 1e-30].all()


@pytest.mark.parametrize(("element", "sizes"), [(DType.BF16, (1, 8, 64)), (QuantFormat.INT4, (1, 4, 64))])
def test_what_a_dry_run_lists_is_all_that_linear_asks_for(
    arrays: Arrays, element: ElementType, sizes: tuple[int, ...]
) -> None:
    kernels, info = arrays.device.kernels, arrays.device.info
    weight = weights(arrays, 96, 256, element)
    listed = [dispatch.request for tokens in sizes for dispatch in dry_run(info, weight[0], tokens)]
    kernels.prepare(unique_requests(listed))
    built = kernels.num_kernels
    for tokens in sizes:
        case = Case(arrays, tokens, 96, 256, element, weight=weight)
        case.run_linear()
        case.check(case.form)
    assert kernels.num_kernels == built


def dry_run(
    info: DeviceInfo, weight: Weight, tokens: int, epilogue: Epilogue = NO_EPILOGUE, *, floats: bool = True
) -> tuple[ListedDispatch, ...]:
    """What `linear` would dispatch, of operands without memory; with an input in f32, or as it reads it."""
    listing, (n, k) = KernelListing(), weight.shape
    x, scratch = Tensor(0, (tokens, k), DType.F32), LinearScratch.at(0, tokens, k)
    linear(
        listing,
        listing,
        info,
        x=x if floats else input_rows(info, weight, tokens, floats=x, scratch=scratch),
        weight=weight,
        out=Tensor(0, (tokens, n if epilogue.gate is None else n // 2), DType.F32),
        num_tokens=tokens,
        scratch=scratch,
        epilogue=epilogue,
    )
    return listing.take()


@pytest.mark.parametrize("tokens", [1, 8, 64, 512])
@pytest.mark.parametrize(
    ("weight", "names"),
    [
        (Tensor(0, (64, 256), DType.BF16), ["bf16"]),
        (QuantTensor(0, (64, 256), QuantFormat.Q4_0), ["q4"]),
        (
            MixedTensor(tuple(QuantTensor(0, (64, 256), kind) for kind in (QuantFormat.Q5_1, QuantFormat.Q6_K))),
            ["q5_1", "q6_k"],
        ),
    ],
    ids=["dense", "quantised", "parts"],
)
def test_what_is_recorded_of_weights_without_memory_names_kernels_and_products(
    tokens: int, weight: Any, names: list[str]
) -> None:
    for info in (SOFTWARE, DISCRETE):
        fuses = fuses_gate(info, weight, tokens)
        epilogue = Epilogue(gate=Activation.SILU) if fuses else Epilogue(bias=0)
        dispatches = dry_run(info, weight, tokens, epilogue, floats=False)
        products = [Product.recorded(found.request.name, found.request.constants, found.fields) for found in dispatches]
        assert products == [Product(name, tokens, 64, 256, gated=fuses) for name in names]
        assert all(("HAS_BIAS" in found.request.constants) is not fuses for found in dispatches)


@pytest.mark.parametrize("tokens", [1, 64, 512])
def test_parts_that_read_several_forms_are_given_floats(tokens: int) -> None:
    first, last = (QuantTensor(0, (64, 256), kind) for kind in (QuantFormat.Q8_0, QuantFormat.Q4_0))
    parts = first, Tensor(0, (64, 256), DType.F32), last
    for info in (SOFTWARE, DISCRETE):
        assert input_form(info, MixedTensor(parts), tokens) is RowForm.FLOATS
        found = dry_run(info, MixedTensor(parts), tokens, floats=False)
        products = [Product.recorded(each.request.name, each.request.constants, each.fields) for each in found]
        assert [product and product.weights for product in products] == [None, "q8", "f32", None, "q4"]
        assert {each.fields["stride"] for each, product in zip(found, products, strict=True) if product} == {192}


def test_kernels_that_make_no_product_have_none() -> None:
    assert Product.recorded("embed_quant_q4", {}, {"blocks": 8, "vocab": 2}) is None


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (Tensor(0, (4, 12), DType.BF16), "rows of weights have 12 elements, expected a multiple of 8"),
        (QuantTensor(0, (4, 48), QuantFormat.Q8_0), "rows of Q8_0 weights have 48 elements, expected a multiple of 32"),
        (Tensor(0, (64,), DType.F16), "two dimensions"),
    ],
)
def test_weights_that_no_kernel_takes_are_refused(arrays: Arrays, weight: Tensor | QuantTensor, message: str) -> None:
    k = weight.shape[-1]
    scratch = LinearScratch.at(0, 1, 64)
    x = scratch.half_rows(1, k) if isinstance(weight, QuantTensor) else Tensor(0, (1, k), DType.F32)
    with pytest.raises(UnsupportedModelError, match=message):
        linear(
            KernelListing(),
            KernelListing(),
            arrays.device.info,
            x=x,
            weight=weight,
            out=Tensor(0, (1, 4), DType.F32),
            num_tokens=1,
            scratch=scratch,
        )


def test_dense_weights_read_and_write_floats() -> None:
    out, plan = BlockRows(0, 0), plan_linear(SOFTWARE, Product("f32", 1, 64, 64))
    scratch = LinearScratch.at(0, 1, 64)
    x, weight = Tensor(0, (1, 64), DType.F32), Tensor(0, (64, 64), DType.F32)
    listing = KernelListing()
    with pytest.raises(ValueError, match="linear_vec_f32 can't write 64 columns"):
        dispatch_plan(listing, listing, plan, x=x, weight=weight, out=out, num_tokens=1, scratch=scratch)
    with pytest.raises(ValueError, match="can't read"):
        wrong = scratch.half_rows(1, 64)
        dispatch_plan(listing, listing, plan, x=wrong, weight=weight, out=out, num_tokens=1, scratch=scratch)


def test_an_input_that_is_no_whole_unit_is_refused(arrays: Arrays) -> None:
    with pytest.raises(UnsupportedModelError, match="multiple of 8, got 12"):
        x, out = Tensor(0, (1, 12), DType.F32), LinearScratch.at(0, 1, 16).half_rows(1, 12)
        prepare_input(KernelListing(), KernelListing(), arrays.device.info, x=x, out=out)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "soft cap"])
def test_a_gate_with_what_kernels_would_do_to_one_half_alone_is_refused(*, bias: bool) -> None:
    with pytest.raises(ValueError, match=f"no kernel applies a gate with a {'bias' if bias else 'soft cap'}"):
        Epilogue(0 if bias else None, 0.0 if bias else 1.0, Activation.SILU)
