from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.gpu.made_up import SOFTWARE
from unicorn_async.ops.rates import copy_rate, fma_rate, matrix_rate
from unicorn_async.ops.subgroups import MATRIX_FEATURE

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


class Noted:
    """What stands for a recorder, a library of kernels and a kernel: it keeps the arguments."""

    def get(self, *_: object, **__: object) -> Noted:
        return self

    def pack(self, **push: int) -> dict[str, int]:
        return push

    def dispatch(self, _: object, push: dict[str, int], x: int, y: int = 1) -> None:
        self.rounds, self.workgroups = push["rounds"], x * y


def test_operations_of_single_precision_are_two_for_each_of_the_eight_vectors_of_four_of_a_lane() -> None:
    noted: Any = Noted()
    flops = fma_rate(noted, noted, source=0, sums=0, workgroups=3, rounds=5)
    assert (noted.workgroups, noted.rounds) == (3, 5)
    assert flops == 3 * 256 * 5 * (8 * 4 * 2) == 245_760


@pytest.mark.parametrize("from_shared", [False, True])
def test_operations_of_matrices_are_those_of_the_fragments_that_four_subgroups_multiply(*, from_shared: bool) -> None:
    noted: Any = Noted()
    matrices = replace(SOFTWARE, features=SOFTWARE.features | {MATRIX_FEATURE})
    flops = matrix_rate(noted, noted, matrices, source=0, sums=0, workgroups=3, rounds=5, from_shared=from_shared)
    assert (noted.workgroups, noted.rounds) == (3, 5)
    fragments = 4 * 4 * 2  # of a subgroup and round: 4 × 4 sums, each of two products along the columns
    assert flops == 3 * 5 * 4 * fragments * (2 * 16 * 16 * 16) == 15_728_640
