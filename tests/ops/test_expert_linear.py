"""Each pair of a token and an expert is multiplied by that expert's weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.ops.gguf_blocks import KERNEL_FORMATS
from tests.ops.linear_case import HALF, QUANT_HALF, QUANT_SINGLE, SINGLE, skip_without_matrices, weights
from tests.ops.quant_arrays import read_blocks
from unicorn_async.config import Activation
from unicorn_async.errors import ConfigError
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.expert_linear import ExpertRows, expert_linear, expert_linear_sum
from unicorn_async.ops.linear import prepare_input
from unicorn_async.ops.linear_plans.experts import MATRIX_PAIRS, expert_form
from unicorn_async.ops.routing import TiledPairs, expert_tiles, num_tiles
from unicorn_async.ops.rows import BlockRows, HalfRows, RowForm
from unicorn_async.tensor import DType, QuantFormat, QuantTensor, Tensor, element_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.ops.arrays import Arrays
    from tests.ops.linear_case import Weights
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.tensor import ElementType

ELEMENTS: list[ElementType] = [*DType, *KERNEL_FORMATS]
MATRIX_ELEMENTS = [element for element in ELEMENTS if element is not DType.F32]
EXPERTS, CHOSEN = 5, 2


def multiplied(
    arrays: Arrays,
    weight: Weights,
    x: NDArray[np.float32],
    chosen: NDArray[np.uint32],
    rows: ExpertRows,
    *,
    tile: int,
    shared_by: int,
    gate: Activation | None = None,
    info: DeviceInfo | None = None,
    blocked: bool = False,
    bias: NDArray[np.float32] | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What the device makes of rows and pairs, and of blocks their scales; nothing behind it may be written.

    With `info` it is taken for another device.
    """
    device, tensor, num_pairs = arrays.device, weight[0], chosen.size
    source, own = arrays.put(chosen), arrays.put(x)
    own_bias = None if bias is None else arrays.put(bias).tensor
    order = arrays.put(np.zeros(num_pairs, np.uint32))
    tiles = arrays.put(np.zeros((num_tiles(num_pairs, rows.num_experts, tile), 3), np.uint32))
    pairs = TiledPairs(num_pairs, tile, order.address, tiles.address)
    out = arrays.poisoned(num_pairs + 1, rows.n)
    form = expert_form(element_of(tensor), tile)
    kind = HalfRows if form is RowForm.HALVES else BlockRows
    room = arrays.put(np.zeros(kind.size(*x.shape), np.uint8))
    formed = None if form is RowForm.FLOATS else kind.at(room.address, *x.shape)

    def record(recorder: CommandRecorder) -> None:
        expert_tiles(
            recorder, device.kernels, device.info, num_experts=rows.num_experts, chosen=source.address, pairs=pairs
        )
        if formed is not None:
            prepare_input(recorder, device.kernels, device.info, x=own.tensor, out=formed)
        recorder.barrier()
        expert_linear(
            recorder,
            device.kernels,
            info or device.info,
            x=formed or own.tensor,
            weight=tensor,
            rows=rows,
            pairs=pairs,
            shared_by=shared_by,
            out=BlockRows.at(out.address, num_pairs, rows.n)
            if blocked
            else Tensor(out.address, (num_pairs, rows.n), DType.F32),
            gate=gate,
            bias=own_bias,
        )

    arrays.run(record)
    if blocked:
        codes, scales = read_blocks(out.values.view(np.uint8).ravel(), num_pairs, rows.n)
        return codes * np.repeat(scales, 32, axis=1), np.repeat(scales, 32, axis=1)
    assert np.isnan(out.values[-1]).all(), "wrote past the end of the output"
    return out.values[:-1], np.zeros(0, np.float32)


def product(
    x: NDArray[np.float32],
    weight: Weights,
    chosen: NDArray[np.uint32],
    rows: ExpertRows,
    up: int = 0,
    *,
    halves: bool = False,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each pair's product in double precision, with rows `up` behind, and how far off it may be, also in `halves`."""
    begins, span = chosen.ravel().astype(np.int64) * rows.stride + up, rows.n * rows.step
    of_pairs = np.repeat(x.astype(np.float64), chosen.size // len(x), axis=0)
    off = np.abs(of_pairs) * SINGLE
    if halves:
        off = np.abs(of_pairs) * (HALF if isinstance(weight[0], Tensor) else QUANT_HALF)
    elif not isinstance(weight[0], Tensor):  # activations become int8
        step = np.abs(of_pairs.reshape(len(of_pairs), -1, 32)).max(axis=2) / 127
        off = np.abs(of_pairs) * QUANT_SINGLE + np.repeat(step / 2, 32, axis=1)
    matrices = np.stack([weight[1][begin : begin + span : rows.step] for begin in begins])
    found = np.einsum("pk,pnk->pn", of_pairs, matrices)
    return found, np.einsum("pk,pnk->pn", off, np.abs(matrices)) + 1e-30


def routes(num_tokens: int, case: str) -> NDArray[np.uint32]:
    """Experts of each token: of all kinds, one that all take, or none of the last."""
    rng = np.random.default_rng(num_tokens)
    if case == "one":
        return np.full((num_tokens, CHOSEN), 3, np.uint32)
    most = EXPERTS if case == "all" else EXPERTS - 1
    return np.stack([rng.permutation(most)[:CHOSEN] for _ in range(num_tokens)]).astype(np.uint32)


@pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.value)
def test_pairs_are_multiplied_by_their_experts_weights(arrays: Arrays, element: ElementType) -> None:
    unit = element.layout.unit if isinstance(element, QuantFormat) else 8
    n, k = 13, 3 * unit
    rows = ExpertRows(EXPERTS, n, n)
    weight = weights(arrays, EXPERTS * n, k, element)
    for num_tokens, tile, case in ((1, 1, "all"), (7, 8, "few"), (64, 8, "all"), (64, 8, "one")):
        chosen = routes(num_tokens, case)
        x = np.random.default_rng(k).standard_normal((num_tokens, k)).astype(np.float32)
        found, _ = multiplied(arrays, weight, x, chosen, rows, tile=tile, shared_by=CHOSEN)
        expected, allowed = product(x, weight, chosen, rows)
        assert (np.abs(found - expected) <= allowed).all()


@pytest.mark.parametrize("num_tokens", [1, 300])
@pytest.mark.parametrize("element", [DType.BF16, QuantFormat.Q4_0], ids=lambda element: element.value)
def test_more_experts_than_a_tile_has_pairs_share_a_dispatch(
    arrays: Arrays, element: ElementType, num_tokens: int
) -> None:
    experts, n, k = 40, 4, 64
    rows = ExpertRows(experts, n, n)
    weight = weights(arrays, experts * n, k, element)
    rng = np.random.default_rng(num_tokens)
    chosen = rng.integers(0, experts, (num_tokens, 3), dtype=np.uint32)
    x = rng.standard_normal((3 * num_tokens, k)).astype(np.float32)  # a row for each pair, as behind a gate
    found, _ = multiplied(arrays, weight, x, chosen, rows, tile=4, shared_by=1)
    expected, allowed = product(x, weight, chosen, rows)
    assert (np.abs(found - expected) <= allowed).all()


@pytest.mark.parametrize("layout", ["side_by_side", "gates_first"])
@pytest.mark.parametrize("element", [DType.F32, QuantFormat.Q4_K], ids=lambda element: element.value)
def test_gates_are_applied_wherever_they_lie(arrays: Arrays, element: ElementType, layout: str) -> None:
    n, k = 11, 256
    rows = ExpertRows(EXPERTS, n, 2 * n, n) if layout == "side_by_side" else ExpertRows(EXPERTS, n, n, EXPERTS * n)
    weight = weights(arrays, 2 * EXPERTS * n, k, element)
    for num_tokens, tile in ((1, 1), (7, 4)):
        chosen = routes(num_tokens, "all")
        x = (0.1 * np.random.default_rng(k).standard_normal((num_tokens, k))).astype(np.float32)
        found, _ = multiplied(arrays, weight, x, chosen, rows, tile=tile, shared_by=CHOSEN, gate=Activation.SILU)
        gate, off = product(x, weight, chosen, rows)
        up, up_off = product(x, weight, chosen, rows, rows.up)
        factor = gate / (1 + np.exp(-gate))
        allowed = 1.2 * off * (np.abs(up) + up_off) + np.abs(factor) * up_off + 1e-5
        assert (np.abs(found - factor * up) <= allowed).all()


def biases_of(
    bias: NDArray[np.float32], chosen: NDArray[np.uint32], rows: ExpertRows, up: int = 0
) -> NDArray[np.float64]:
    """The biases of each pair's outputs."""
    begins = chosen.ravel().astype(np.int64) * rows.stride + up
    return bias[begins[:, None] + np.arange(rows.n) * rows.step].astype(np.float64)


def check_clamped(arrays: Arrays, element: ElementType, routed: NDArray[np.uint32], *, tile: int, halves: bool) -> None:
    """Gates and what they are for lie by turns, have biases, and are clamped for the most part."""
    n, k = 32, 256
    rows, blocked = ExpertRows(EXPERTS, n, 2 * n, 1, 2), tile == 1 and isinstance(element, QuantFormat)
    weight, rng = weights(arrays, 2 * EXPERTS * n, k, element), np.random.default_rng(k)
    bias = (4 * rng.standard_normal(2 * EXPERTS * n)).astype(np.float32)
    x = (0.1 * rng.standard_normal((len(routed), k))).astype(np.float32)
    gate, gate_off = product(x, weight, routed, rows, halves=halves)
    up, up_off = product(x, weight, routed, rows, rows.up, halves=halves)
    gate, up = gate + biases_of(bias, routed, rows), up + biases_of(bias, routed, rows, rows.up)
    assert (gate > 7).any() and (gate < 7).any() and (up > 7).any() and (up < -7).any()
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7) + 1
    factor = gate / (1 + np.exp(-1.702 * gate))
    found, scales = multiplied(
        arrays,
        weight,
        x,
        routed,
        rows,
        tile=tile,
        shared_by=CHOSEN,
        gate=Activation.CLAMPED_SWIGLU,
        bias=bias,
        blocked=blocked,
    )
    allowed = 1.2 * gate_off * (np.abs(up) + up_off) + np.abs(factor) * up_off + 1e-4
    assert (np.abs(found - factor * up) <= allowed + (0.5001 * scales if blocked else 0.0)).all()


@pytest.mark.parametrize("element", [DType.BF16, QuantFormat.MXFP4], ids=lambda element: element.value)
def test_gates_by_turns_have_biases_before_they_are_clamped(arrays: Arrays, element: ElementType) -> None:
    for num_tokens, tile in ((1, 1), (7, 4)):
        check_clamped(arrays, element, routes(num_tokens, "all"), tile=tile, halves=False)


@pytest.mark.parametrize("tile", MATRIX_PAIRS)
@pytest.mark.parametrize("element", [DType.F16, QuantFormat.MXFP4], ids=lambda element: element.value)
def test_gates_by_turns_are_clamped_sums_of_matrix_units(arrays: Arrays, element: ElementType, tile: int) -> None:
    skip_without_matrices(arrays.device.info)
    check_clamped(arrays, element, routes(45, "all"), tile=tile, halves=True)


@pytest.mark.parametrize("element", [DType.F16, QuantFormat.MXFP4], ids=lambda element: element.value)
def test_what_an_expert_makes_has_its_bias_alone_and_in_the_sum(arrays: Arrays, element: ElementType) -> None:
    n, k, num_tokens = 13, 128, 3
    rows, rng, info = ExpertRows(EXPERTS, n, n), np.random.default_rng(n), arrays.device.info
    weight, chosen = weights(arrays, EXPERTS * n, k, element), routes(num_tokens, "all")
    x = rng.standard_normal((chosen.size, k)).astype(np.float32)
    bias = (3 * rng.standard_normal(EXPERTS * n)).astype(np.float32)
    alone, _ = multiplied(arrays, weight, x, chosen, rows, tile=2, shared_by=1)
    found, _ = multiplied(arrays, weight, x, chosen, rows, tile=2, shared_by=1, bias=bias)
    own = biases_of(bias, chosen, rows)
    np.testing.assert_allclose(found, alone + own, atol=1e-5)
    if isinstance(element, QuantFormat):
        factors = rng.random((num_tokens, CHOSEN), np.float32)
        for kind in (info, replace(info, type=DeviceType.DISCRETE)):
            alone = summed(arrays, weight, x, chosen, factors, rows, kind)
            found = summed(arrays, weight, x, chosen, factors, rows, kind, bias=bias)
            expected = np.einsum("tsn,ts->tn", own.reshape(num_tokens, CHOSEN, n), factors)
            np.testing.assert_allclose(found, alone + expected, atol=1e-5)


@pytest.mark.parametrize("element", [QuantFormat.Q4_0, QuantFormat.Q6_K], ids=lambda element: element.value)
def test_what_is_gated_is_left_in_blocks(arrays: Arrays, element: ElementType) -> None:
    n, k = 96, 256
    rows = ExpertRows(EXPERTS, n, n, EXPERTS * n)
    weight = weights(arrays, 2 * EXPERTS * n, k, element)
    info = arrays.device.info
    for num_tokens, tile, kind in ((1, 1, info), (7, 1, info), (7, 1, replace(info, type=DeviceType.DISCRETE))):
        chosen = routes(num_tokens, "all")
        x = (0.1 * np.random.default_rng(k).standard_normal((num_tokens, k))).astype(np.float32)
        found, scales = multiplied(
            arrays, weight, x, chosen, rows, tile=tile, shared_by=CHOSEN, gate=Activation.SILU, info=kind, blocked=True
        )
        gate, off = product(x, weight, chosen, rows)
        up, up_off = product(x, weight, chosen, rows, rows.up)
        factor = gate / (1 + np.exp(-gate))
        allowed = 1.2 * off * (np.abs(up) + up_off) + np.abs(factor) * up_off + 1e-5
        assert (np.abs(found - factor * up) <= allowed + 0.5001 * scales).all()


def summed(
    arrays: Arrays,
    weight: Weights,
    x: NDArray[np.float32],
    chosen: NDArray[np.uint32],
    factors: NDArray[np.float32],
    rows: ExpertRows,
    info: DeviceInfo,
    shared: NDArray[np.float32] | None = None,
    gates: NDArray[np.float32] | None = None,
    bias: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """What the device makes of each token's pairs and adds up; nothing behind it may be written."""
    device, (tensor, _), source, own = arrays.device, weight, arrays.put(chosen), arrays.put(x)
    assert isinstance(tensor, QuantTensor)
    room = arrays.put(np.zeros(BlockRows.size(*x.shape), np.uint8))
    blocks, own_factors = BlockRows.at(room.address, *x.shape), arrays.put(factors)
    own_shared = None if shared is None else arrays.put(shared).tensor
    own_gates = None if gates is None else arrays.put(gates).tensor
    own_bias = None if bias is None else arrays.put(bias).tensor
    out = arrays.poisoned(len(chosen) + 1, rows.n)

    def record(recorder: CommandRecorder) -> None:
        prepare_input(recorder, device.kernels, device.info, x=own.tensor, out=blocks)
        recorder.barrier()
        expert_linear_sum(
            recorder,
            device.kernels,
            info,
            x=blocks,
            weight=tensor,
            rows=rows,
            chosen=source.address,
            weights=own_factors.tensor,
            out=Tensor(out.address, (len(chosen), rows.n), DType.F32),
            shared=own_shared,
            gates=own_gates,
            bias=own_bias,
        )

    arrays.run(record)
    assert np.isnan(out.values[-1]).all(), "wrote past the end of the output"
    return out.values[:-1]


@pytest.mark.parametrize("element", KERNEL_FORMATS, ids=lambda element: element.value)
def test_what_a_token_s_experts_make_is_added_up_at_once(arrays: Arrays, element: ElementType) -> None:
    assert isinstance(element, QuantFormat)
    info, n, k = arrays.device.info, 13, 3 * element.layout.unit
    rows = ExpertRows(EXPERTS, n, n)
    weight = weights(arrays, EXPERTS * n, k, element)
    for num_tokens, kind in ((1, info), (5, info), (5, replace(info, type=DeviceType.DISCRETE))):
        rng = np.random.default_rng(num_tokens)
        chosen = routes(num_tokens, "all")
        factors = rng.random((num_tokens, CHOSEN), np.float32)
        x = rng.standard_normal((chosen.size, k)).astype(np.float32)  # a row for each pair, as behind a gate
        found = summed(arrays, weight, x, chosen, factors, rows, kind)
        made, off = product(x, weight, chosen, rows)
        shape = (num_tokens, CHOSEN, n)
        expected = np.einsum("tsn,ts->tn", made.reshape(shape), factors.astype(np.float64))
        allowed = np.einsum("tsn,ts->tn", off.reshape(shape), factors.astype(np.float64))
        assert (np.abs(found - expected) <= allowed).all()


@pytest.mark.parametrize("is_gated", [False, True], ids=["plain", "gated"])
def test_what_all_tokens_expert_has_made_is_added_to_the_sum(arrays: Arrays, *, is_gated: bool) -> None:
    n, k, num_tokens = 13, 128, 3
    rows, rng = ExpertRows(EXPERTS, n, n), np.random.default_rng(n)
    weight, chosen = weights(arrays, EXPERTS * n, k, QuantFormat.Q4_0), routes(num_tokens, "all")
    x = rng.standard_normal((chosen.size, k)).astype(np.float32)
    factors = rng.random((num_tokens, CHOSEN), np.float32)
    shared = rng.standard_normal((num_tokens, n)).astype(np.float32)
    gates = (30 * rng.standard_normal((num_tokens, 3))).astype(np.float32)
    alone = summed(arrays, weight, x, chosen, factors, rows, arrays.device.info)
    given = {"shared": shared, "gates": gates if is_gated else None}
    found = summed(arrays, weight, x, chosen, factors, rows, arrays.device.info, **given)
    factor = 1 / (1 + np.exp(-gates[:, :1].astype(np.float64))) if is_gated else 1.0
    np.testing.assert_allclose(found, alone + shared * factor, atol=3e-6, rtol=3e-6)


@pytest.mark.parametrize("tile", MATRIX_PAIRS)
@pytest.mark.parametrize("element", MATRIX_ELEMENTS, ids=lambda element: element.value)
def test_matrix_units_multiply_pairs_by_their_experts_weights(arrays: Arrays, element: ElementType, tile: int) -> None:
    skip_without_matrices(arrays.device.info)
    unit = element.layout.unit if isinstance(element, QuantFormat) else 8
    n, k = 70, max(3 * unit, 96)
    rows = ExpertRows(EXPERTS, n, n)
    weight = weights(arrays, EXPERTS * n, k, element)
    for num_tokens, case, shared_by in ((1, "all", CHOSEN), (45, "few", CHOSEN), (70, "one", 1)):
        chosen = routes(num_tokens, case)
        num_rows = chosen.size // shared_by
        x = np.random.default_rng(k).standard_normal((num_rows, k)).astype(np.float32)
        found, _ = multiplied(arrays, weight, x, chosen, rows, tile=tile, shared_by=shared_by)
        expected, allowed = product(x, weight, chosen, rows, halves=True)
        assert (np.abs(found - expected) <= allowed).all()


@pytest.mark.parametrize("layout", ["side_by_side", "gates_first"])
@pytest.mark.parametrize("tile", MATRIX_PAIRS)
@pytest.mark.parametrize("element", [DType.F16, QuantFormat.Q4_K], ids=lambda element: element.value)
def test_gates_are_applied_to_sums_of_matrix_units(
    arrays: Arrays, element: ElementType, tile: int, layout: str
) -> None:
    skip_without_matrices(arrays.device.info)
    n, k = 75, 256
    rows = ExpertRows(EXPERTS, n, 2 * n, n) if layout == "side_by_side" else ExpertRows(EXPERTS, n, n, EXPERTS * n)
    weight = weights(arrays, 2 * EXPERTS * n, k, element)
    chosen = routes(45, "all")
    x = (0.1 * np.random.default_rng(k).standard_normal((45, k))).astype(np.float32)
    found, _ = multiplied(arrays, weight, x, chosen, rows, tile=tile, shared_by=CHOSEN, gate=Activation.SILU)
    gate, off = product(x, weight, chosen, rows, halves=True)
    up, up_off = product(x, weight, chosen, rows, rows.up, halves=True)
    factor = gate / (1 + np.exp(-gate))
    allowed = 1.2 * off * (np.abs(up) + up_off) + np.abs(factor) * up_off + 1e-5
    assert (np.abs(found - factor * up) <= allowed).all()


def test_operands_that_do_not_fit_are_refused(arrays: Arrays) -> None:
    weight = weights(arrays, 20, 64, DType.F16)
    x = np.zeros((1, 64), np.float32)
    chosen = np.zeros((1, 2), np.uint32)
    with pytest.raises(ConfigError, match="weights of 20 rows do not hold"):
        multiplied(arrays, weight, x, chosen, ExpertRows(3, 8, 8), tile=1, shared_by=2)
    with pytest.raises(ConfigError, match=r"no kernel for TiledPairs\(num_pairs=2, tile=9"):
        multiplied(arrays, weight, x, chosen, ExpertRows(2, 8, 8), tile=9, shared_by=2)
