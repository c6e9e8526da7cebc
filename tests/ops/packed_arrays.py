"""Packed weights of checkpoints that are quantised already: random ones, on the device and as what they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.engine.packed_files import E4M3
from tests.ops.quant_arrays import quant_tensor
from unicorn_async.ops.packed import PlanePart, relayout_codes, relayout_plane
from unicorn_async.packing import Codes, Plane, PlaneUse
from unicorn_async.tensor import QuantFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tests.ops.arrays import Arrays
    from unicorn_async.tensor import QuantTensor

PACKED = [QuantFormat.F8_E4M3, QuantFormat.UINT4]


def plane(use: PlaneUse, values: NDArray[Any], dtype: str, **own: Any) -> Plane:
    """A plane of which a line is a row of `values`."""
    return Plane(use, "plane", dtype, 0, 0, values.nbytes, values.shape[1], **own)


def bring_codes(arrays: Arrays, codes: Codes, values: NDArray[Any], tensor: QuantTensor) -> int:
    """Bring codes by rows to a tensor in two parts; returns how many are no numbers."""
    source, counter = arrays.put(values), arrays.put(np.zeros(4, np.uint32))
    half = tensor.num_elements // 128 * 64
    for first, count in ((0, half), (half, tensor.num_elements - half)):
        if count:
            arrays.run(
                lambda recorder, first=first, count=count: relayout_codes(  # type: ignore[misc]
                    recorder,
                    arrays.device.kernels,
                    src=source.address + first // 32 * codes.source_bytes,
                    codes=codes,
                    dst=tensor,
                    first_element=first,
                    num_elements=count,
                    out_of_range=counter.address,
                )
            )
    return int(counter.values[0])


def bring_plane(
    arrays: Arrays,
    plane: Plane,
    values: NDArray[Any],
    tensor: QuantTensor,
    *,
    codes: Codes = Codes.NIBBLES,
    cuts: Sequence[int] = (),
    runs: Sequence[tuple[int, int, int]] = (),
) -> int:
    """Bring a plane to a tensor, its lines in parts that end at `cuts`; returns how many are not as they have to be."""
    source, counter = arrays.put(values), arrays.put(np.zeros(4, np.uint32))
    lines = values.nbytes // plane.line_bytes
    rows, columns = tensor.shape
    for first, end in zip((0, *cuts), (*cuts, lines), strict=True):
        for file_row, row, count in runs or ((0, 0, rows),):
            part = PlanePart(
                source.address + first * plane.line_bytes, first, end - first, file_row, row, count, columns
            )
            arrays.run(
                lambda recorder, part=part: relayout_plane(  # type: ignore[misc]
                    recorder,
                    arrays.device.kernels,
                    plane=plane,
                    codes=codes,
                    part=part,
                    dst=tensor,
                    unexpected=counter.address,
                )
            )
    return int(counter.values[0])


def packed(arrays: Arrays, n: int, k: int, element: QuantFormat) -> tuple[QuantTensor, NDArray[np.float64]]:
    """Random weights on the device, and what they stand for."""
    rng, tensor = np.random.default_rng([n, k]), quant_tensor(arrays, (n, k), element)
    if element is QuantFormat.F8_E4M3:
        codes = rng.integers(0, 0x7F, (n, k), dtype=np.uint8) | rng.integers(0, 2, (n, k), dtype=np.uint8) << 7
        scales = (rng.standard_normal((n, k // 64)) * 1e-3).astype(np.float32)
        bring_codes(arrays, Codes.E4M3, codes, tensor)
        bring_plane(arrays, plane(PlaneUse.SCALES, scales, "F32", row_block=1, column_block=64), scales, tensor)
        return tensor, (E4M3[codes] * np.repeat(scales, 64, axis=1)).astype(np.float64)
    codes, zeros = rng.integers(0, 16, (n, k)), rng.integers(0, 16, (-(-n // 8) * 8, k // 32))
    halves = (rng.standard_normal((n, k // 32)) * 0.01).astype(np.float16)
    words = words_of(zeros.reshape(-1, 8, k // 32), axis=1)
    bring_codes(arrays, Codes.NIBBLES, (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8), tensor)
    bring_plane(arrays, plane(PlaneUse.SCALES, halves, "F16", row_block=1, column_block=32), halves, tensor)
    bring_plane(arrays, plane(PlaneUse.ZEROS, words, "I32", row_block=8, column_block=32), words, tensor)
    exact = (codes - np.repeat(zeros[:n], 32, axis=1)) * np.repeat(halves.astype(np.float64), 32, axis=1)
    return tensor, exact


def words_of(nibbles: NDArray[Any], axis: int) -> NDArray[np.uint32]:
    """Words of eight nibbles each, which lie along an axis, the first in the lowest bits."""
    shifted = np.moveaxis(nibbles.astype(np.uint32), axis, -1) << np.arange(0, 32, 4, dtype=np.uint32)
    return np.ascontiguousarray(np.bitwise_or.reduce(shifted, axis=-1))
