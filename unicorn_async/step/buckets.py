"""Sizes for which steps are recorded; a step is padded up to the next one."""

from __future__ import annotations


def bucket_sizes(largest: int) -> tuple[int, ...]:
    """Return 1, 2, 4, 8, 12, 16, 24, 32, 48, … up to `largest`, which is always among them."""
    sizes = [size for size in (1, 2, 4) if size < largest]
    size = 8
    while size < largest:
        sizes.append(size)
        if size + size // 2 < largest:
            sizes.append(size + size // 2)
        size *= 2
    return (*sizes, largest)


def bucket_for(count: int, sizes: tuple[int, ...]) -> int:
    """Return the smallest of `sizes` that holds `count`."""
    return next(size for size in sizes if size >= count)
