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


@pytest.mark.parametrize(("dst", "count"), [(DType.BF16, 8), (DType.F32, 0), (DType.F32, 1 << 31)])
def test_what_no_kernel_does_is_refused(arrays: Arrays, dst: DType, count: int) -> None:
    with pytest.raises(ValueError, match="convert: expected"):
        arrays.run(
            lambda recorder: convert(
                recorder, arrays.device.kernels, src=0, src_dtype=DType.F32, dst=0, dst_dtype=dst, num_elements=count
            )
        )
