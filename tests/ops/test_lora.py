from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from unicorn_async.ops.lora import LowRankChange, add_change

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.ops.arrays import Array, Arrays

SHAPES = [(1, 1, 1), (3, 5, 2), (17, 300, 8), (40, 257, 1), (9, 1030, 64), (700, 16, 4)]
MARGIN = 8  # elements before and after those that are changed


def linear(left: Array, right: Array, columns: int, rank: int, scale: float) -> LowRankChange:
    """A change by factors (rows, rank) and (rank, columns) as they lie in a file for a linear layer."""
    return LowRankChange(left.address, right.address, columns, rank, rank, 1, columns, 1, scale)


def drawn(rows: int, columns: int, rank: int) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    rng = np.random.default_rng([rows, columns, rank])
    weights = rng.standard_normal((rows, columns)).astype(np.float32)
    left = rng.standard_normal((rows, rank)).astype(np.float32)
    return weights, left, rng.standard_normal((rank, columns)).astype(np.float32)


def changed(arrays: Arrays, weights: NDArray[np.float32], change: LowRankChange, first: int, count: int) -> Array:
    """Elements `first` to `first + count` of the weights with the change, between margins of NaN."""
    padded = np.full(count + 2 * MARGIN, np.nan, np.float32)
    padded[MARGIN:-MARGIN] = weights.reshape(-1)[first : first + count]
    target = arrays.put(padded)
    arrays.run(
        lambda recorder: add_change(
            recorder,
            arrays.device.kernels,
            weights=target.address + 4 * MARGIN,
            change=change,
            first_element=first,
            num_elements=count,
        )
    )
    return target


@pytest.mark.parametrize(("rows", "columns", "rank"), SHAPES)
def test_a_part_that_begins_and_ends_anywhere_is_as_in_float64(
    arrays: Arrays, rows: int, columns: int, rank: int
) -> None:
    weights, left, right = drawn(rows, columns, rank)
    change = linear(arrays.put(left), arrays.put(right), columns, rank, -0.75)
    exact = (weights - 0.75 * (left.astype(np.float64) @ right)).reshape(-1)
    magnitude = (np.abs(weights) + 0.75 * (np.abs(left).astype(np.float64) @ np.abs(right))).reshape(-1)
    size = rows * columns
    for first, count in {(0, size), (size // 3, size - size // 3), (size // 2, 1), (size - 1, 1), (0, size // 2 + 1)}:
        found = changed(arrays, weights, change, first, count).values
        error = np.abs(found[MARGIN:-MARGIN] - exact[first : first + count])
        assert (error <= (rank + 2) * 2**-24 * magnitude[first : first + count] + 1e-30).all()
        assert np.isnan(found[:MARGIN]).all() and np.isnan(found[-MARGIN:]).all()


def test_a_sum_does_not_depend_on_how_a_matrix_is_cut(arrays: Arrays) -> None:
    weights, left, right = drawn(33, 270, 16)
    change = linear(arrays.put(left), arrays.put(right), 270, 16, 0.3)
    whole = changed(arrays, weights, change, 0, weights.size).values[MARGIN:-MARGIN]
    for first, count in ((0, 4000), (4000, weights.size - 4000), (269, 2)):
        part = changed(arrays, weights, change, first, count).values[MARGIN:-MARGIN]
        np.testing.assert_array_equal(part, whole[first : first + count])


def test_factors_may_lie_transposed(arrays: Arrays) -> None:
    """As those of embeddings do."""
    weights, left, right = drawn(50, 24, 4)
    change = linear(arrays.put(left), arrays.put(right), 24, 4, 2.0)
    plain = changed(arrays, weights, change, 100, 700).values[MARGIN:-MARGIN].copy()
    turned = replace(
        change,
        left=arrays.put(np.ascontiguousarray(left.T)).address,
        right=arrays.put(np.ascontiguousarray(right.T)).address,
        left_row=1,
        left_rank=50,
        right_rank=1,
        right_column=4,
    )
    np.testing.assert_array_equal(changed(arrays, weights, turned, 100, 700).values[MARGIN:-MARGIN], plain)
