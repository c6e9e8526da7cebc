from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.gpu.made_up import SOFTWARE
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.page_touch import pays_to_touch, touch_pages
from unicorn_async.tensor import DType, MixedTensor, QuantFormat, QuantTensor, Tensor

if TYPE_CHECKING:
    from tests.ops.arrays import Arrays

PAGE = 1 << 18  # words
NOTED = 0x9E3779B9  # what the kernel writes down when it comes upon it
GPU = replace(SOFTWARE, type=DeviceType.DISCRETE)


@pytest.mark.parametrize(
    ("size", "place", "found"),
    [
        (3, 0, True),
        (3, 2, True),  # the last word
        (3, 1, False),
        (2 * PAGE + 5, PAGE, True),
        (2 * PAGE + 5, 2 * PAGE + 4, True),
        (2 * PAGE + 5, PAGE + 1, False),
        (70 * PAGE, 69 * PAGE, True),  # more places than a workgroup has lanes
        (70 * PAGE, 70 * PAGE - 1, True),
    ],
)
def test_a_word_of_every_page_is_read_and_the_last_one(arrays: Arrays, size: int, place: int, *, found: bool) -> None:
    values = np.zeros(size, np.uint32)
    values[place] = NOTED
    weight = arrays.put(values)
    others = [arrays.put(np.zeros(4, np.uint32)) for _ in range(5)]
    sink = arrays.put(np.zeros(4, np.uint32))
    matrices = [Tensor(each.address, (each.values.size,), DType.F32) for each in (*others, weight)]
    arrays.run(lambda recorder: touch_pages(recorder, arrays.device.kernels, matrices, sink=sink.address))
    assert sink.values.tolist() == [NOTED if found else 0, 0, 0, 0]
    assert (weight.values == values).all()


def test_it_pays_on_gpus_for_models_of_more_than_they_remember() -> None:
    small, large = (QuantTensor(0, (rows, 1 << 15), QuantFormat.Q8_0) for rows in (1 << 16, 1 << 18))
    assert not pays_to_touch(GPU, [small])
    assert not pays_to_touch(GPU, [small, small])
    assert pays_to_touch(GPU, [small, small, small])
    assert pays_to_touch(GPU, [large])
    assert pays_to_touch(GPU, [MixedTensor((small, small, small))])
    assert not pays_to_touch(SOFTWARE, [large])
