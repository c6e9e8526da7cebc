"""Columns are sorted by their groups, and rows of activations follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from unicorn_async.ops.columns import column_order, gather_columns

if TYPE_CHECKING:
    from tests.ops.arrays import Arrays


@pytest.mark.parametrize(("columns", "group"), [(32, 32), (192, 64), (328, 64)])
@pytest.mark.parametrize("rows", [1, 5])
def test_a_product_of_gathered_rows_and_sorted_columns_is_the_product(
    arrays: Arrays, columns: int, group: int, rows: int
) -> None:
    rng = np.random.default_rng(columns)
    groups = (rng.permutation(columns) // group).astype(np.int32)
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    source, rows_in = arrays.put(groups), arrays.put(x)
    order, out = arrays.poisoned(columns), arrays.poisoned(rows, columns)
    kernels = arrays.device.kernels
    arrays.run(
        lambda recorder: column_order(
            recorder, kernels, groups=source.address, out=order.address, columns=columns, group=group
        )
    )
    arrays.run(lambda recorder: gather_columns(recorder, kernels, x=rows_in.tensor, order=order.tensor, out=out.tensor))
    expected = np.argsort(groups, kind="stable")
    np.testing.assert_array_equal(order.values.astype(int), expected)
    weights = rng.standard_normal((7, columns))
    product = out.values.astype(np.float64) @ weights[:, expected].T
    np.testing.assert_allclose(product, x.astype(np.float64) @ weights.T, rtol=1e-12, atol=1e-12)
