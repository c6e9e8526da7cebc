from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unicorn_async.errors import ConfigError, UnsupportedModelError
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.norm import add_rms_norm, qk_norm, rms_norm
from unicorn_async.ops.rows import row_constants
from unicorn_async.tensor import DType, Tensor

from .formed_rows import FORMS, FormedRows

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device
    from unicorn_async.ops.rows import RowForm

    from .arrays import Arrays

EPS = 1e-6
LONG_ROWS = pytest.mark.whole("that a software device's workgroup takes long rows, too")


def reference(x: np.ndarray[Any, Any], weight: np.ndarray[Any, Any], *, plus_one: bool) -> np.ndarray[Any, Any]:
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    scale = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS)
    return x * scale * (weight + 1 if plus_one else weight)


def operands(columns: int, tokens: int, magnitude: float) -> tuple[np.ndarray[Any, Any], ...]:
    rng = np.random.default_rng(columns + tokens)
    x, hidden = (rng.standard_normal((2, tokens, columns)) * magnitude).astype(np.float32)
    post_weight, weight = rng.standard_normal((2, columns)).astype(np.float32)
    return x, hidden, post_weight, weight


@pytest.mark.combinations("every length of rows with every magnitude")
@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize(("columns", "tokens"), [(4, 1), (68, 5), (640, 3), pytest.param(8192, 2, marks=LONG_ROWS)])
@pytest.mark.parametrize("magnitude", [1e-3, 1.0, 1e5])
def test_rows_are_normalised(
    device: Device, arrays: Arrays, columns: int, tokens: int, magnitude: float, plus_one: bool
) -> None:
    x, _, _, weight = operands(columns, tokens, magnitude)
    given, weights, out = arrays.put(x), arrays.put(weight), arrays.poisoned(tokens, columns)
    arrays.run(
        lambda rec: rms_norm(
            rec,
            device.kernels,
            device.info,
            x=given.tensor,
            weight=weights.tensor,
            out=out.tensor,
            eps=EPS,
            plus_one=plus_one,
        )
    )
    np.testing.assert_allclose(out.values, reference(x, weight, plus_one=plus_one), rtol=2e-6, atol=1e-6)


def test_a_row_shared_by_many_subgroups_is_normalised(device: Device, arrays: Arrays) -> None:
    x, hidden, post_weight, weight = operands(5376, 3, 1.0)
    given, stream, out = arrays.put(x), arrays.put(hidden), arrays.poisoned(3, 5376)
    post, weights = arrays.put(post_weight), arrays.put(weight)
    arrays.run(
        lambda rec: add_rms_norm(
            rec,
            device.kernels,
            replace(device.info, type=DeviceType.DISCRETE),
            x=given.tensor,
            hidden=stream.tensor,
            post_weight=post.tensor,
            weight=weights.tensor,
            out=out.tensor,
            eps=EPS,
        )
    )
    expected = hidden + reference(x, post_weight, plus_one=False)
    np.testing.assert_allclose(out.values, reference(expected, weight, plus_one=False), rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("columns", [128, 640, 1152, 5376, 8192])
def test_a_lane_of_a_software_device_holds_few_vectors_because_many_are_slow_to_compile(
    device: Device, columns: int
) -> None:
    info = replace(device.info, type=DeviceType.SOFTWARE)
    cut = row_constants(info, columns)
    assert cut["WORKGROUP"] * cut["VECTORS"] * 4 >= columns
    assert cut["VECTORS"] <= 16
    assert cut["WORKGROUP"] == info.subgroup_size or cut["WORKGROUP"] * 16 * 4 < 2 * columns, "more lanes than it takes"


def test_a_row_of_zeros_stays_zero_and_out_may_be_x(device: Device, arrays: Arrays) -> None:
    given, weights = arrays.put(np.zeros((2, 64), np.float32)), arrays.put(np.ones(64, np.float32))
    given.values[1] = 1
    arrays.run(
        lambda rec: rms_norm(
            rec, device.kernels, device.info, x=given.tensor, weight=weights.tensor, out=given.tensor, eps=EPS
        )
    )
    np.testing.assert_allclose(given.values, np.repeat([[0.0], [1.0]], 64, axis=1), rtol=1e-6)


@pytest.mark.combinations("every length of rows with every magnitude and norm")
@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("post_norm", [False, True])
@pytest.mark.parametrize(("columns", "tokens"), [(68, 5), pytest.param(5376, 2, marks=LONG_ROWS)])
@pytest.mark.parametrize("magnitude", [1.0, 1e5])
def test_the_residual_is_added_before_the_norm(
    device: Device, arrays: Arrays, columns: int, tokens: int, magnitude: float, post_norm: bool, plus_one: bool
) -> None:
    x, hidden, post_weight, weight = operands(columns, tokens, magnitude)
    given, stream, out = arrays.put(x), arrays.put(hidden), arrays.poisoned(tokens, columns)
    post, weights = arrays.put(post_weight), arrays.put(weight)
    arrays.run(
        lambda rec: add_rms_norm(
            rec,
            device.kernels,
            device.info,
            x=given.tensor,
            hidden=stream.tensor,
            post_weight=post.tensor if post_norm else None,
            weight=weights.tensor,
            out=out.tensor,
            eps=EPS,
            plus_one=plus_one,
        )
    )
    added = reference(x, post_weight, plus_one=plus_one) if post_norm else x.astype(np.float64)
    expected = hidden + added
    np.testing.assert_allclose(stream.values, expected, rtol=2e-6, atol=1e-6 * magnitude)
    np.testing.assert_allclose(out.values, reference(expected, weight, plus_one=plus_one), rtol=1e-5, atol=3e-6)
    np.testing.assert_array_equal(given.values, x)


def test_without_a_norm_only_the_residual_changes(device: Device, arrays: Arrays) -> None:
    x, hidden, _, _ = operands(64, 3, 1.0)
    given, stream = arrays.put(x), arrays.put(hidden)
    arrays.run(
        lambda rec: add_rms_norm(
            rec,
            device.kernels,
            device.info,
            x=given.tensor,
            hidden=stream.tensor,
            post_weight=None,
            weight=None,
            out=None,
            eps=EPS,
        )
    )
    np.testing.assert_array_equal(stream.values, x + hidden)


@pytest.mark.parametrize("post_norm", [False, True])
def test_selected_rows_leave_the_residual_alone_and_may_repeat(device: Device, arrays: Arrays, post_norm: bool) -> None:
    x, hidden, post_weight, weight = operands(640, 9, 1.0)
    selected = np.array([8, 0, 3, 3, 0, 0], np.uint32)
    given, stream, out = arrays.put(x), arrays.put(hidden), arrays.poisoned(selected.size, 640)
    post, weights, rows = arrays.put(post_weight), arrays.put(weight), arrays.put(selected)
    arrays.run(
        lambda rec: add_rms_norm(
            rec,
            device.kernels,
            device.info,
            x=given.tensor,
            hidden=stream.tensor,
            post_weight=post.tensor if post_norm else None,
            weight=weights.tensor,
            out=out.tensor,
            eps=EPS,
            rows=rows.address,
            num_rows=selected.size,
        )
    )
    added = reference(x, post_weight, plus_one=False) if post_norm else x.astype(np.float64)
    expected = reference(hidden + added, weight, plus_one=False)[selected]
    np.testing.assert_allclose(out.values, expected, rtol=1e-5, atol=3e-6)
    np.testing.assert_array_equal(stream.values, hidden)


@pytest.mark.combinations("every form of every length of rows, by either cut")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("columns", "tokens", "software"),
    [
        *((columns, tokens, software) for columns, tokens in [(128, 1), (1152, 3)] for software in (True, False)),
        *(pytest.param(5376, 18, software, marks=LONG_ROWS) for software in (True, False)),
    ],
)
def test_the_output_has_the_form_that_a_linear_reads(
    device: Device, arrays: Arrays, form: RowForm, columns: int, tokens: int, software: bool
) -> None:
    x, hidden, post_weight, weight = operands(columns, tokens, 100.0)
    given, stream, rows = arrays.put(x), arrays.put(hidden), FormedRows(arrays, form, tokens, columns)
    post, weights = arrays.put(post_weight), arrays.put(weight)
    info = device.info if software else replace(device.info, type=DeviceType.DISCRETE)
    arrays.run(
        lambda rec: add_rms_norm(
            rec,
            device.kernels,
            info,
            x=given.tensor,
            hidden=stream.tensor,
            post_weight=post.tensor,
            weight=weights.tensor,
            out=rows.place,
            eps=EPS,
        )
    )
    expected = hidden + reference(x, post_weight, plus_one=False)
    rows.check(reference(expected, weight, plus_one=False))


def layer_norm(x: np.ndarray[Any, Any], weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    x = x.astype(np.float64)
    x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS) * weight


@pytest.mark.combinations("every length of rows by either cut")
@pytest.mark.parametrize(("columns", "tokens"), [(4, 1), (68, 5), (640, 3), pytest.param(8192, 2, marks=LONG_ROWS)])
@pytest.mark.parametrize("software", [True, False])
def test_rows_are_centred_and_scaled(device: Device, arrays: Arrays, columns: int, tokens: int, software: bool) -> None:
    x, _, bias, weight = operands(columns, tokens, 1.0)
    x += 3
    biases = arrays.put(bias) if tokens > 1 else None
    given, weights, out = arrays.put(x), arrays.put(weight), arrays.poisoned(tokens, columns)
    info = device.info if software else replace(device.info, type=DeviceType.DISCRETE)
    arrays.run(
        lambda rec: rms_norm(
            rec,
            device.kernels,
            info,
            x=given.tensor,
            weight=weights.tensor,
            out=out.tensor,
            eps=EPS,
            centred=True,
            bias=None if biases is None else biases.tensor,
            scale=0.3,
        )
    )
    expected = layer_norm(x, weight) + (0 if biases is None else bias)
    np.testing.assert_allclose(out.values, 0.3 * expected, rtol=1e-5, atol=2e-6)


@pytest.mark.combinations("every form with and without an addition")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("added", [False, True])
def test_without_a_weight_the_stream_itself_has_the_form_that_a_linear_reads(
    device: Device, arrays: Arrays, form: RowForm, added: bool
) -> None:
    x, hidden, post_weight, _ = operands(1152, 3, 100.0)
    given, stream, post = arrays.put(x), arrays.put(hidden), arrays.put(post_weight)
    rows = FormedRows(arrays, form, 3, 1152)
    if not added:
        arrays.run(
            lambda rec: rms_norm(rec, device.kernels, device.info, x=given.tensor, weight=None, out=rows.place, eps=EPS)
        )
        rows.check(x)
        return
    arrays.run(
        lambda rec: add_rms_norm(
            rec,
            device.kernels,
            device.info,
            x=given.tensor,
            hidden=stream.tensor,
            post_weight=post.tensor,
            weight=None,
            out=rows.place,
            eps=EPS,
        )
    )
    expected = hidden + reference(x, post_weight, plus_one=False)
    np.testing.assert_allclose(stream.values, expected, rtol=2e-6, atol=1e-4)
    rows.check(expected)


@pytest.mark.parametrize("post_norm", [False, True])
def test_a_branch_a_result_and_the_stream_are_scaled(device: Device, arrays: Arrays, post_norm: bool) -> None:
    x, hidden, post_weight, weight = operands(640, 3, 1.0)
    given, stream, out = arrays.put(x), arrays.put(hidden), arrays.poisoned(3, 640)
    post, weights, factor = arrays.put(post_weight), arrays.put(weight), arrays.put(np.array([0.375], np.float32))
    arrays.run(
        lambda rec: add_rms_norm(
            rec,
            device.kernels,
            device.info,
            x=given.tensor,
            hidden=stream.tensor,
            post_weight=post.tensor if post_norm else None,
            weight=weights.tensor,
            out=out.tensor,
            eps=EPS,
            branch_scale=0.22,
            factor=factor.tensor,
            scale=0.0625,
        )
    )
    branch = reference(x, post_weight, plus_one=False) if post_norm else x.astype(np.float64)
    expected = 0.375 * (hidden + 0.22 * branch)
    np.testing.assert_allclose(stream.values, expected, rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(out.values, 0.0625 * reference(expected, weight, plus_one=False), rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("centred", [False, True])
def test_an_addition_after_the_norm_leaves_its_result_alone(device: Device, arrays: Arrays, centred: bool) -> None:
    x, hidden, bias, weight = operands(640, 5, 1.0)
    given, stream, out, weights = arrays.put(x), arrays.put(hidden), arrays.poisoned(5, 640), arrays.put(weight)
    biases = arrays.put(bias) if centred else None
    arrays.run(
        lambda rec: add_rms_norm(
            rec,
            device.kernels,
            device.info,
            x=given.tensor,
            hidden=stream.tensor,
            post_weight=None,
            weight=weights.tensor,
            out=out.tensor,
            eps=EPS,
            centred=centred,
            bias=None if biases is None else biases.tensor,
            adds_after=True,
        )
    )
    expected = layer_norm(hidden, weight) + bias if centred else reference(hidden, weight, plus_one=False)
    np.testing.assert_array_equal(stream.values, hidden + x)
    np.testing.assert_allclose(out.values, expected, rtol=1e-5, atol=3e-6)


@pytest.mark.combinations("every length of rows by either cut")
@pytest.mark.parametrize("software", [True, False])
@pytest.mark.parametrize(("queries", "keys", "tokens"), [(128, 128, 1), (640, 64, 5), (5120, 1024, 2)])
def test_queries_and_keys_are_normalised_over_all_heads(
    device: Device, arrays: Arrays, queries: int, keys: int, tokens: int, software: bool
) -> None:
    rng = np.random.default_rng(queries)
    qkv = rng.standard_normal((tokens, queries + 2 * keys)).astype(np.float32)
    q_weight, k_weight = rng.standard_normal(queries), rng.standard_normal(keys)
    given = arrays.put(qkv)
    q_weights, k_weights = (arrays.put(weight.astype(np.float32)) for weight in (q_weight, k_weight))
    arrays.run(
        lambda rec: qk_norm(
            rec,
            device.kernels,
            device.info if software else replace(device.info, type=DeviceType.DISCRETE),
            qkv=given.tensor,
            q_weight=q_weights.tensor,
            k_weight=k_weights.tensor,
            eps=EPS,
        )
    )
    q, k, v = np.split(qkv, [queries, queries + keys], axis=1)
    normed = [reference(q, q_weight, plus_one=False), reference(k, k_weight, plus_one=False)]
    np.testing.assert_allclose(given.values, np.concatenate([*normed, v], axis=1), rtol=2e-6, atol=1e-6)


def test_operands_of_other_shapes_are_refused(device: Device, arrays: Arrays) -> None:
    x, weight = Tensor(0, (2, 64), DType.F32), Tensor(0, (32,), DType.F32)
    with pytest.raises(ConfigError, match=r"weight: expected \(64,\)"):
        arrays.run(lambda rec: rms_norm(rec, device.kernels, device.info, x=x, weight=weight, out=x, eps=EPS))
    odd = Tensor(0, (2, 6), DType.F32)
    with pytest.raises(UnsupportedModelError, match="multiple of 4, got 6"):
        arrays.run(lambda rec: rms_norm(rec, device.kernels, device.info, x=odd, weight=weight, out=odd, eps=EPS))
