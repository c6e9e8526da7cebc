from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.ops.arrays import bf16, from_bf16
from tests.ops.quant_arrays import quant_tensor, quantized, read_back
from unicorn_async.ops.quantize import quantize, quantize_kernel, relayout, relayout_kernel
from unicorn_async.tensor import DType, QuantFormat

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.ops.arrays import Arrays

NF4 = np.array([-127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127]) / 127
SOURCES = [DType.F32, DType.F16, DType.BF16]


def stored(values: NDArray[np.float64], dtype: DType) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """The values' bits in a type, and what these bits stand for."""
    if dtype is DType.BF16:
        return bf16(values), from_bf16(bf16(values)).astype(np.float64)
    bits = values.astype(np.float32 if dtype is DType.F32 else np.float16)
    return bits, bits.astype(np.float64)


def sample(rows: int = 9, columns: int = 320) -> NDArray[np.float64]:
    """Weights of many sizes, with rows of zeros, of tiny values and of one large value among small ones."""
    rng = np.random.default_rng(rows * columns)
    values = rng.standard_normal((rows, columns)) * np.logspace(-3, 1, rows)[:, None]
    values[0] = 0
    values[1] = rng.standard_normal(columns) * 1e-7
    values[2, ::50] = 30
    return values


def largest(values: NDArray[np.float64], block: int) -> NDArray[np.float64]:
    """The largest magnitude of each element's block."""
    rows, columns = values.shape
    magnitudes = np.abs(values.reshape(rows, columns // block, block)).max(axis=2)
    return np.repeat(magnitudes, block, axis=1)


@pytest.mark.parametrize("dtype", SOURCES, ids=lambda d: d.value)
def test_int8_is_off_by_half_a_step_at_most(arrays: Arrays, dtype: DType) -> None:
    bits, exact = stored(sample(), dtype)
    found = read_back(arrays, quantized(arrays, bits, QuantFormat.INT8))
    step = largest(exact, 32) / 127 * (1 + 2**-10) + 2**-24  # the scale is rounded up to a half
    assert (np.abs(found - exact) <= step / 2 * (1 + 1e-6)).all()


@pytest.mark.parametrize("dtype", SOURCES, ids=lambda d: d.value)
def test_int4_has_no_larger_error_than_with_an_eighth_of_the_extreme(arrays: Arrays, dtype: DType) -> None:
    bits, exact = stored(sample(), dtype)
    found = read_back(arrays, quantized(arrays, bits, QuantFormat.INT4))
    blocks = exact.reshape(-1, 32)
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
    scale = np.where(extreme == 0, 1, extreme / -8)
    simple = np.clip(np.rint(blocks / scale), -8, 7) * scale
    error = ((found.reshape(-1, 32) - blocks) ** 2).sum(axis=1)
    bound = ((simple - blocks) ** 2).sum(axis=1)
    # The exact eighth differs from the half that stands for it by up to 2^-10 of it, or a subnormal step.
    slack = np.abs(extreme[:, 0]) * 2**-9 + 2**-20
    assert (np.sqrt(error) <= np.sqrt(bound) * (1 + 2**-9) + slack).all()
    assert error.sum() < 0.97 * bound.sum()


@pytest.mark.parametrize("dtype", SOURCES, ids=lambda d: d.value)
def test_nf4_takes_the_nearest_level(arrays: Arrays, dtype: DType) -> None:
    bits, exact = stored(sample(), dtype)
    found = read_back(arrays, quantized(arrays, bits, QuantFormat.NF4))
    magnitude = largest(exact, 64)
    levels = magnitude[:, :, None] * NF4
    nearest = np.abs(levels - exact[:, :, None]).min(axis=2)
    assert (np.abs(found - exact) <= nearest + magnitude * 2**-10 + 2**-17).all()


@pytest.mark.parametrize("quant_format", [QuantFormat.INT8, QuantFormat.INT4, QuantFormat.NF4], ids=lambda f: f.value)
def test_what_no_half_can_hold_saturates(arrays: Arrays, quant_format: QuantFormat) -> None:
    values = np.zeros((1, 64), np.float32)
    values[0, :4] = 1e30, -1e30, 60000, 0
    found = read_back(arrays, quantized(arrays, values, quant_format))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[0, :4], [65000, -65000, 60000, 0], atol=9300)


@pytest.mark.parametrize("quant_format", [QuantFormat.INT8, QuantFormat.INT4, QuantFormat.NF4], ids=lambda f: f.value)
@pytest.mark.parametrize("dtype", SOURCES, ids=lambda d: d.value)
def test_what_no_half_can_hold_is_counted(arrays: Arrays, dtype: DType, quant_format: QuantFormat) -> None:
    values = np.full((3, 128), 1.0)
    values[0, 0] = -65000
    beyond = [np.inf, -np.inf, np.nan] if dtype is DType.F16 else [1e6, np.inf, np.nan]
    values[1, 63:66] = beyond
    bits = stored(values, dtype)[0]
    source, out_of_range = arrays.put(bits), arrays.put(np.array([5], np.uint32))
    arrays.run(
        lambda recorder: quantize(
            recorder,
            arrays.device.kernels,
            src=source.address,
            src_dtype=dtype,
            dst=quant_tensor(arrays, (3, 128), quant_format),
            first_element=0,
            num_elements=values.size,
            out_of_range=out_of_range.address,
        )
    )
    assert out_of_range.values[0] == 5 + len(beyond)


def test_parts_that_are_no_whole_units_are_refused(arrays: Arrays) -> None:
    tensor = quant_tensor(arrays, (2, 256), QuantFormat.NF4)
    for first, count in ((0, 96), (32, 64), (448, 128), (0, 0)):
        with pytest.raises(ValueError, match="no whole units of 64"):
            arrays.run(
                lambda recorder, first=first, count=count: quantize(  # type: ignore[misc]
                    recorder,
                    arrays.device.kernels,
                    src=0,
                    src_dtype=DType.F16,
                    dst=tensor,
                    first_element=first,
                    num_elements=count,
                )
            )


def test_formats_are_made_from_what_they_come_from(arrays: Arrays) -> None:
    assert quantize_kernel(DType.BF16, QuantFormat.INT4).name == "quantize_bf16_int4"
    assert relayout_kernel(QuantFormat.IQ4_NL).name == "relayout_iq4_nl"
    with pytest.raises(ValueError, match="Q4_K"):
        quantize_kernel(DType.F32, QuantFormat.Q4_K)
    with pytest.raises(ValueError, match="nf4"):
        relayout(
            None,  # type: ignore[arg-type]
            arrays.device.kernels,
            src=0,
            dst=quant_tensor(arrays, (1, 64), QuantFormat.NF4),
            first_element=0,
            num_elements=64,
        )
