"""A key/value cache of int8 as the kernels lay it out, in NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK = 32  # elements with one scale
QUERY_BLOCK = 16  # elements of a query with one scale
LARGEST = 65468.5


def quantised(values: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Codes of rows (..., head_dim), and their scales (..., head_dim / 32)."""
    clamped = np.clip(values.astype(np.float32), -LARGEST, LARGEST)
    blocks = clamped.reshape(*values.shape[:-1], -1, BLOCK)
    magnitudes = np.abs(blocks).max(axis=-1)
    wanted = magnitudes / np.float32(127)
    scales = wanted.astype(np.float16)
    too_small = scales.astype(np.float32) < wanted
    scales = np.where(too_small, np.nextafter(scales, np.float16(np.inf)), scales)
    divisors = np.where(scales == 0, np.float32(1), scales.astype(np.float32))[..., None]
    codes = np.where(scales[..., None] == 0, np.float32(0), np.round(blocks / divisors))
    return codes.astype(np.int8).reshape(values.shape), scales


def dequantised(codes: NDArray[np.int8], scales: NDArray[np.float16]) -> NDArray[np.float64]:
    """What they stand for."""
    return codes.astype(np.float64) * np.repeat(scales.astype(np.float64), BLOCK, axis=-1)


def met(queries: NDArray[np.float32]) -> NDArray[np.float64]:
    """What queries (..., head_dim) are taken for by decoding, whose products with keys are those of bytes."""
    blocks = queries.reshape(*queries.shape[:-1], -1, QUERY_BLOCK).astype(np.float64)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    scales = np.exp2(np.maximum(np.frexp(largest)[1] - 1, -113) - 13.0)  # codes are below 2^14
    return (np.minimum(np.rint(blocks / scales), 16383) * scales).reshape(queries.shape)


def check_codes(found: NDArray[np.int8], values: NDArray[Any]) -> None:
    """Raise where codes are not those of the values; next to a tie a device whose division is not exact may differ."""
    codes, scales = quantised(values)
    exact = np.abs(values) / np.maximum(np.repeat(scales.astype(np.float64), BLOCK, axis=-1), 2**-30)
    tie = np.abs(exact - np.floor(exact) - 0.5) < 1e-4
    np.testing.assert_array_equal(found[~tie], codes[~tie])
    assert (np.abs(found.astype(int) - codes)[tie] <= 1).all()


class Int8Cache:
    """Views of a cache's memory: `codes` (blocks, kv heads, block size, head_dim), `scales` (…, head_dim / 32).

    What was not written is poisoned: its scales are NaNs.
    """

    def __init__(
        self,
        num_blocks: int,
        num_kv_heads: int,
        block_size: int,
        head_dim: int,
        memory: NDArray[np.uint8] | None = None,
    ) -> None:
        code_bytes, scale_bytes = block_size * head_dim, block_size * head_dim // 16
        if memory is None:
            memory = np.full((num_blocks, num_kv_heads, code_bytes + scale_bytes), 0xFF, np.uint8)
        self.memory = memory
        whole = (num_blocks, num_kv_heads, block_size, head_dim)
        strides = (*memory.strides[:2], head_dim, 1)
        self.codes = np.ndarray(whole, np.int8, memory.data, 0, strides)
        strides = (*memory.strides[:2], head_dim // 16, 2)
        self.scales = np.ndarray((*whole[:3], head_dim // BLOCK), np.float16, memory.data, code_bytes, strides)
