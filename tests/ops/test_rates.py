from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from unicorn_async.ops.rates import copy_rate

if TYPE_CHECKING:
    from tests.ops.arrays import Arrays


@pytest.mark.parametrize("blocks", [1, 1023, 4096, 5000])
def test_the_kernel_that_copies_copies_every_block_once_and_no_more(arrays: Arrays, blocks: int) -> None:
    source = arrays.put(np.random.default_rng(blocks).integers(0, 256, 16 * blocks, np.uint8))
    target = arrays.put(np.full(16 * blocks + 64, 0xA5, np.uint8))
    kernels = arrays.device.kernels
    arrays.run(
        lambda recorder: copy_rate(
            recorder, kernels, source=source.address, target=target.address, num_bytes=source.values.nbytes
        )
    )
    assert (target.values[: 16 * blocks] == source.values).all()
    assert (target.values[16 * blocks :] == 0xA5).all()
