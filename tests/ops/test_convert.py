from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.ops.arrays import bf16, from_bf16
from unicorn_async.ops.convert import convert
from unicorn_async.tensor import DType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.ops.arrays import Arrays

LARGEST_HALF = 65504.0


def skip_without_half(arrays: Arrays) -> None:
    if not arrays.device.info.float16:
        pytest.skip(f"{arrays.device.info.name} has no shaderFloat16")


@pytest.mark.parametrize("count", [1, 7, 8, 513, 70_001])
@pytest.mark.parametrize("dst", [DType.F32, DType.F16], ids=lambda d: f"to_{d.value}")
@pytest.mark.parametrize("src", list(DType), ids=lambda d: d.value)
def test_values_survive_and_nothing_past_them_is_written(arrays: Arrays, src: DType, dst: DType, count: int) -> None:
    if dst is DType.F16:
        skip_without_half(arrays)
    values = np.random.default_rng(count).standard_normal(count).astype(np.float32) * 100
    sources: dict[DType, NDArray[Any]] = {
        DType.F32: values,
        DType.F16: values.astype(np.float16),
        DType.BF16: bf16(values),
    }
    source = sources[src]
    exact = from_bf16(source) if src is DType.BF16 else source.astype(np.float32)
    target = arrays.put(np.full(count + 32, np.nan, np.float32 if dst is DType.F32 else np.float16))
    given = arrays.put(source)
    arrays.run(
        lambda recorder: convert(
            recorder,
            arrays.device.kernels,
            src=given.address,
            src_dtype=src,
            dst=target.address,
            dst_dtype=dst,
            num_elements=count,
        )
    )
    np.testing.assert_array_equal(target.values[:count], exact.astype(target.values.dtype))
    assert np.isnan(target.values[count:]).all()


@pytest.mark.parametrize("src", [DType.F32, DType.BF16], ids=lambda d: d.value)
def test_what_a_half_cannot_hold_becomes_the_largest_half(arrays: Arrays, src: DType) -> None:
    skip_without_half(arrays)
    values = np.array([1e5, -1e5, 3e38, -np.inf, np.inf, 65504.0, 1e-7, -1e-9, 0.0], np.float32)
    source = arrays.put(values if src is DType.F32 else bf16(values))
    exact = values if src is DType.F32 else from_bf16(bf16(values))
    target = arrays.put(np.full(len(values), np.nan, np.float16))
    arrays.run(
        lambda recorder: convert(
            recorder,
            arrays.device.kernels,
            src=source.address,
            src_dtype=src,
            dst=target.address,
            dst_dtype=DType.F16,
            num_elements=len(values),
        )
    )
    expected = np.clip(exact, -LARGEST_HALF, LARGEST_HALF)
    np.testing.assert_allclose(target.values.astype(np.float64), expected, rtol=2**-11, atol=2**-25)


@pytest.mark.parametrize("src", [DType.F32, DType.BF16], ids=lambda d: d.value)
def test_bf16_is_the_nearest_and_even_where_two_are(arrays: Arrays, src: DType) -> None:
    words = np.random.default_rng(7).integers(0, 1 << 32, 5003, np.uint32)
    words[:4] = 0x3F808000, 0x3F818000, 0x3F808001, 0x80000000  # ties to even below and above, no tie, minus zero
    words = words[(words & 0x7FFFFFFF) <= 0x7F7F7FFF]
    source = words.view(np.float32) if src is DType.F32 else (words >> 16).astype(np.uint16)
    found, out_of_range = converted(arrays, source, src, DType.BF16)
    nearest = (words.astype(np.uint64) + 0x7FFF + (words >> 16 & 1)) >> 16
    np.testing.assert_array_equal(found, nearest if src is DType.F32 else words >> 16)
    assert out_of_range == 0


@pytest.mark.parametrize("count", [16, 4091])
@pytest.mark.parametrize("dst", [DType.F16, DType.BF16], ids=lambda d: f"to_{d.value}")
def test_what_does_not_fit_is_counted(arrays: Arrays, dst: DType, count: int) -> None:
    if dst is DType.F16:
        skip_without_half(arrays)
    values = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    values[:4] = (LARGEST_HALF, -LARGEST_HALF, 0, 1e-30) if dst is DType.F16 else (3.3895e38, -3.3895e38, 0, 1e-45)
    assert converted(arrays, values, DType.F32, dst)[1] == 0
    beyond = [65505.0, -1e30, np.nan, np.inf, -np.inf] if dst is DType.F16 else [3.4e38, -3.4e38, np.nan, np.inf]
    places = np.linspace(0, count - 1, len(beyond)).astype(int)  # first and last of all
    values[places] = beyond
    assert converted(arrays, values, DType.F32, dst)[1] == len(beyond)


def test_a_conversion_to_f32_counts_nothing(arrays: Arrays) -> None:
    assert converted(arrays, np.array([np.nan, np.inf, 1] * 8, np.float32), DType.F32, DType.F32)[1] == 0


def converted(arrays: Arrays, source: NDArray[Any], src: DType, dst: DType) -> tuple[NDArray[Any], int]:
    """What elements become, and how many of them did not fit."""
    kind = {DType.F16: np.float16, DType.BF16: np.uint16, DType.F32: np.float32}[dst]
    given, target = arrays.put(source), arrays.put(np.zeros(len(source), kind))
    out_of_range = arrays.put(np.zeros(1, np.uint32))
    arrays.run(
        lambda recorder: convert(
            recorder,
            arrays.device.kernels,
            src=given.address,
            src_dtype=src,
            dst=target.address,
            dst_dtype=dst,
            num_elements=len(source),
            out_of_range=out_of_range.address,
        )
    )
    return target.values, int(out_of_range.values[0])


@pytest.mark.parametrize("count", [0, 1 << 31])
def test_more_elements_than_a_dispatch_can_count_are_refused(arrays: Arrays, count: int) -> None:
    with pytest.raises(ValueError, match="convert: expected"):
        arrays.run(
            lambda recorder: convert(
                recorder,
                arrays.device.kernels,
                src=0,
                src_dtype=DType.F32,
                dst=0,
                dst_dtype=DType.F16,
                num_elements=count,
            )
        )
