"""How many workgroups a dispatch has along each dimension."""

from __future__ import annotations

MAX_GRID_X = 32768  # any device takes 65535; the rest goes along y


def split_grid(count: int) -> tuple[int, int]:
    """Spread `count` workgroups along x and y; the product may exceed the count."""
    x = min(count, MAX_GRID_X)
    return x, -(-count // x)
