"""How the tests' own encoder of blocks finds codes."""

from __future__ import annotations

import numpy as np
import pytest

from .encoders import IQ4_NL_LEVELS, Nearest

SIX_BITS = np.arange(-32, 32, dtype=np.float32)


@pytest.mark.parametrize("levels", [IQ4_NL_LEVELS, SIX_BITS])
def test_the_nearest_level_is_found_and_the_lower_one_of_two(levels: np.ndarray) -> None:
    edges = (levels[1:] + levels[:-1]) / 2
    beside = [np.nextafter(edges, np.float32(sign * np.inf)) for sign in (-1, 1)]
    random = np.random.default_rng(0).uniform(-200, 200, 10_000).astype(np.float32)
    values = np.concatenate([edges, *beside, levels, random, np.array([-1e30, -1e-30, 0, 1e-30, 1e30], np.float32)])
    expected = np.searchsorted(edges, values)
    nearest = Nearest(levels)
    assert (nearest.indices(values) == expected).all()
    assert (nearest.levels(values) == levels[expected]).all()
