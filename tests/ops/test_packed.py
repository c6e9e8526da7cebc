"""Packed weights come to the device with every value that they stand for, and what is wrong with them is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.engine.packed_files import E4M3
from tests.ops.packed_arrays import PACKED, bring_codes, bring_plane, packed, plane
from tests.ops.quant_arrays import quant_tensor, read_back
from unicorn_async.packing import Codes, PlaneUse
from unicorn_async.tensor import QuantFormat

if TYPE_CHECKING:
    from tests.ops.arrays import Arrays

ROWS, COLUMNS = 40, 320


@pytest.mark.parametrize("element", PACKED, ids=lambda element: element.value)
def test_every_value_is_what_was_meant(arrays: Arrays, element: QuantFormat) -> None:
    tensor, exact = packed(arrays, ROWS, COLUMNS, element)
    np.testing.assert_array_equal(read_back(arrays, tensor), exact.astype(np.float32))


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_scales_of_blocks_come_to_rows_in_another_order_and_all_codes_of_e4m3_are_exact(
    arrays: Arrays, dtype: str
) -> None:
    """Blocks of 16 rows and 128 columns, of which the last is half of one; the file's halves change places."""
    codes = np.resize(np.delete(np.arange(256, dtype=np.uint8), [0x7F, 0xFF]), (ROWS, COLUMNS))
    scales = np.random.default_rng(3).standard_normal((3, 3)).astype(np.float32) * np.float32(1e-4)
    bits = scales.view(np.uint32) >> 16
    stored = scales if dtype == "F32" else bits.astype(np.uint16)
    meant = scales if dtype == "F32" else (bits << 16).view(np.float32)
    tensor, half = quant_tensor(arrays, (ROWS, COLUMNS), QuantFormat.F8_E4M3), ROWS // 2
    assert bring_codes(arrays, Codes.E4M3, np.roll(codes, half, axis=0), tensor) == 0
    own = plane(PlaneUse.SCALES, stored, dtype, row_block=16, column_block=128)
    runs = ((0, half, half), (half, 0, half))
    assert bring_plane(arrays, own, stored, tensor, cuts=(1, 2), runs=runs) == 0
    expected = E4M3[codes] * np.repeat(np.repeat(meant, 16, axis=0), 128, axis=1)[:ROWS, :COLUMNS]
    np.testing.assert_array_equal(read_back(arrays, tensor), np.roll(expected, half, axis=0))


def test_what_is_no_number_or_too_large_is_counted(arrays: Arrays) -> None:
    tensor = quant_tensor(arrays, (2, 128), QuantFormat.F8_E4M3)
    codes = np.resize(np.array([0x7F, 0xFF, 0x7E, 0], np.uint8), (2, 128))
    assert bring_codes(arrays, Codes.E4M3, codes, tensor) == 128
    scales = np.array([[np.inf, np.nan], [145.0, 145.1]], np.float32)  # 448 times as much is below 65000, or beyond
    own = plane(PlaneUse.SCALES, scales, "F32", row_block=1, column_block=64)
    assert bring_plane(arrays, own, scales, tensor) == 3
