"""Embeddings of hidden states, against double precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from unicorn_async.errors import ConfigError
from unicorn_async.ops.pool_parts import BEGINS, ENDS, NORMALISES, POOL
from unicorn_async.ops.pooling import pool_rows
from unicorn_async.ops.sample_rows import NO_STATE
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from .arrays import Arrays

PADDING = (NO_STATE, 0, 0, 0, 0, 0.0)


def put_parts(arrays: Arrays, *parts: tuple[int, int, int, int, int, float]) -> tuple[int, int]:
    """Their address and number, with padding behind them."""
    return arrays.put(np.array([*parts, PADDING], POOL)).address, len(parts) + 1


@pytest.mark.parametrize("columns", [4, 64, 300, 5376])
def test_means_are_added_up_over_steps(arrays: Arrays, columns: int) -> None:
    rng = np.random.default_rng(columns)
    steps = [(rng.standard_normal((40, columns)) * 3 + 0.5).astype(np.float32) for _ in range(3)]
    sums, out = arrays.poisoned(4, columns), arrays.poisoned(4, columns)
    # State 2 has rows of all steps, state 0 some of the first and the second one, state 3 is of the last alone.
    for number, x in enumerate(steps):
        flags = BEGINS if number == 0 else ENDS if number == 2 else 0
        parts = [(2, 3, 20, flags, columns, 1 / 60)]
        if number < 2:
            parts.append((0, 30, 7, (BEGINS, ENDS | NORMALISES)[number], columns, 1 / 14))
        else:
            parts.append((3, 39, 1, BEGINS | ENDS | NORMALISES, max(1, columns // 3), 1.0))
        address, count = put_parts(arrays, *parts)
        array = arrays.put(x)
        arrays.run(
            lambda recorder, array=array, address=address, count=count: pool_rows(
                recorder,
                arrays.device.kernels,
                x=array.tensor,
                parts=address,
                num_parts=count,
                sums=sums.address,
                out=out.address,
            )
        )
        if number == 1:
            mean = np.concatenate([step[30:37] for step in steps[:2]]).astype(np.float64).mean(0)
            exact = mean / np.linalg.norm(mean)
            assert np.allclose(out.values[1], exact, rtol=1e-4, atol=1e-6)
            assert np.linalg.norm(out.values[1].astype(np.float64)) == pytest.approx(1.0, abs=1e-5)
    exact = np.concatenate([step[3:23] for step in steps]).astype(np.float64).mean(0)
    assert np.allclose(out.values[0], exact, rtol=1e-4, atol=1e-5)
    first = steps[2][39, : max(1, columns // 3)].astype(np.float64)
    assert np.allclose(out.values[1, : first.size], first / np.linalg.norm(first), rtol=1e-4, atol=1e-6)
    assert np.isnan(out.values[2:]).all() and np.isnan(sums.values[1]).all()


def test_hidden_states_of_nothing_have_no_direction(arrays: Arrays) -> None:
    sums, out, x = arrays.poisoned(1, 8), arrays.poisoned(2, 8), arrays.put(np.zeros((2, 8), np.float32))
    address, count = put_parts(arrays, (0, 0, 2, BEGINS | ENDS | NORMALISES, 8, 0.5))
    arrays.run(
        lambda recorder: pool_rows(
            recorder,
            arrays.device.kernels,
            x=x.tensor,
            parts=address,
            num_parts=count,
            sums=sums.address,
            out=out.address,
        )
    )
    assert not out.values[0].any()


def test_hidden_states_of_another_type_are_refused(arrays: Arrays) -> None:
    from typing import Any, cast

    with pytest.raises(ConfigError, match="F16"):
        x = Tensor(16, (1, 8), DType.F16)
        pool_rows(cast("Any", None), arrays.device.kernels, x=x, parts=0, num_parts=1, sums=0, out=0)
