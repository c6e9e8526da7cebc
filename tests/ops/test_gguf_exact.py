"""Blocks of GGUF files on the device, bit for bit what the PyPI package gguf makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from tests.ops.gguf_blocks import (
    DEFINED_HERE,
    GGUF_FORMATS,
    MXFP4_EXPONENTS,
    dequantize,
    num_scales,
    put_scales,
    random_blocks,
)
from tests.ops.quant_arrays import quant_tensor, read_back, relaid
from unicorn_async.ops.quantize import relayout
from unicorn_async.tensor import BlockPlane, QuantFormat

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.ops.arrays import Arrays

ROWS, COLUMNS = 37, 1280  # columns that no tile divides
SCALES = (0.0, -0.0, 2.0**-24, -(2.0**-15), 2.0**-14, 1.0, -1.0, 1000.0)  # subnormal ones too


def blocks_of(quant_format: QuantFormat, *, scales: str) -> NDArray[np.uint8]:
    """Any bits, with scales of a sensible size or such that are seldom."""
    blocks = random_blocks(quant_format, ROWS, COLUMNS, seed=5)
    if scales == "seldom":
        for number in range(num_scales(quant_format)):
            chosen = np.resize(np.roll(SCALES, number), len(blocks)).astype(np.float16)
            put_scales(quant_format, blocks, number, chosen)
        if quant_format is QuantFormat.MXFP4:
            blocks[:, 0] = np.resize(MXFP4_EXPONENTS[1], len(blocks))
    return blocks


def reference(quant_format: QuantFormat, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """What the package makes of the blocks."""
    kind = GGMLQuantizationType[quant_format.value]
    result: NDArray[np.float32] = quants.dequantize(blocks.reshape(ROWS, -1), kind)
    assert result.shape == (ROWS, COLUMNS) and result.dtype == np.float32
    return result


def bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    return np.ascontiguousarray(values).view(np.uint32)


@pytest.mark.parametrize("scales", ["sensible", "seldom"])
@pytest.mark.parametrize("quant_format", GGUF_FORMATS, ids=lambda f: f.value)
def test_the_device_has_the_package_s_values_to_the_last_bit(
    arrays: Arrays, quant_format: QuantFormat, scales: str
) -> None:
    blocks = blocks_of(quant_format, scales=scales)
    found = read_back(arrays, relaid(arrays, blocks, (ROWS, COLUMNS), quant_format))
    np.testing.assert_array_equal(bits(found), bits(reference(quant_format, blocks)))


@pytest.mark.parametrize("scales", ["sensible", "seldom"])
@pytest.mark.parametrize("quant_format", DEFINED_HERE, ids=lambda f: f.value)
def test_the_reference_of_the_matrix_kernels_is_the_package_s(quant_format: QuantFormat, scales: str) -> None:
    blocks = blocks_of(quant_format, scales=scales)
    found = dequantize(quant_format, blocks, ROWS, COLUMNS)
    np.testing.assert_array_equal(bits(found), bits(reference(quant_format, blocks)))


def test_codes_and_scales_apart_are_laid_out_as_a_file_s_blocks_are(arrays: Arrays) -> None:
    blocks = blocks_of(QuantFormat.MXFP4, scales="seldom")
    nibbles = np.concatenate([blocks[:, 1:] & 15, blocks[:, 1:] >> 4], axis=1)
    pairs = arrays.put(nibbles[:, ::2] | nibbles[:, 1::2] << 4)
    scales = arrays.put(np.ascontiguousarray(blocks[:, 0]))
    tensor, half = quant_tensor(arrays, (ROWS, COLUMNS), QuantFormat.MXFP4), len(blocks) // 2 // 8 * 8
    for plane, source, first, count in (
        (BlockPlane.MXFP4_SCALES, scales, 0, half),
        (BlockPlane.MXFP4_CODES, pairs, 0, len(blocks)),
        (BlockPlane.MXFP4_SCALES, scales, half, len(blocks) - half),
    ):
        arrays.run(
            lambda recorder, plane=plane, source=source, first=first, count=count: relayout(  # type: ignore[misc]
                recorder,
                arrays.device.kernels,
                src=source.address + first * plane.source_bytes,
                dst=tensor,
                first_element=32 * first,
                num_elements=32 * count,
                plane=plane,
            )
        )
    np.testing.assert_array_equal(bits(read_back(arrays, tensor)), bits(reference(QuantFormat.MXFP4, blocks)))


def test_what_no_half_holds_of_mxfp4_s_scales_is_zero_or_infinite(arrays: Arrays) -> None:
    blocks = np.full((ROWS * COLUMNS // 32, 17), 0x22, np.uint8)  # all codes are 2
    blocks[:, 0] = np.resize([0, 103, 104, 143, 144, 254], len(blocks))
    found = read_back(arrays, relaid(arrays, blocks, (ROWS, COLUMNS), QuantFormat.MXFP4)).reshape(-1, 32)
    assert set(found[0::6].flat) == set(found[1::6].flat) == {0.0}
    assert set(found[2::6].flat) == {2.0**-23} and set(found[3::6].flat) == {2.0**16}
    assert np.isposinf(found[4::6]).all() and np.isposinf(found[5::6]).all()
