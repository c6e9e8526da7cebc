from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from unicorn_async.ops.transpose import transpose
from unicorn_async.tensor import DType

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device

    from .arrays import Arrays

SHAPE = (3, 10, 14)  # matrices, rows, columns


@pytest.mark.parametrize("dtype", DType)
def test_parts_of_matrices_come_to_their_places_with_rows_for_columns(
    device: Device, arrays: Arrays, dtype: DType
) -> None:
    kind = np.float32 if dtype is DType.F32 else np.float16
    values = np.arange(np.prod(SHAPE)).astype(kind).reshape(SHAPE)
    out = arrays.put(np.full(values.size + 8, -1, kind))
    for first, last in ((300, 420), (0, 8), (8, 300)):
        part = arrays.put(values.ravel()[first:last])
        arrays.run(
            lambda rec, part=part, first=first, last=last: transpose(  # type: ignore[misc]
                rec,
                device.kernels,
                src=part.address,
                dst=out.address,
                dtype=dtype,
                shape=SHAPE,
                first_element=first,
                num_elements=last - first,
            )
        )
    np.testing.assert_array_equal(out.values[: values.size], values.swapaxes(1, 2).ravel())
    assert (out.values[values.size :] == -1).all()


@pytest.mark.parametrize(("first", "count"), [(-1, 2), (0, 0), (419, 2)])
def test_elements_outside_of_the_matrices_are_refused(device: Device, arrays: Arrays, first: int, count: int) -> None:
    with pytest.raises(ValueError, match=r"transpose: elements .* of \(3, 10, 14\)"):
        arrays.run(
            lambda rec: transpose(
                rec,
                device.kernels,
                src=0,
                dst=0,
                dtype=DType.F32,
                shape=SHAPE,
                first_element=first,
                num_elements=count,
            )
        )
