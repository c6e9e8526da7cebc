"""Attention in float64, over plain arrays, and bf16 as bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def to_bf16(values: NDArray[np.floating]) -> NDArray[np.uint16]:
    """Round to the nearest bf16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float64]:
    """Widen."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def attention(
    q: NDArray[np.float64], k: NDArray[np.float64], v: NDArray[np.float64], *, window: int = 0, soft_cap: float = 0.0
) -> NDArray[np.float64]:
    """The last queries of a context: q (queries, heads, dim), k and v (tokens, kv heads, dim)."""
    queries, heads, _ = q.shape
    group = heads // k.shape[1]
    out = np.empty_like(q)
    for row in range(queries):
        position = len(k) - queries + row
        first = max(0, position + 1 - window) if window else 0
        keys, values = (np.repeat(a[first : position + 1], group, axis=1) for a in (k, v))
        scores = np.einsum("hd,khd->hk", q[row], keys)
        if soft_cap:
            scores = soft_cap * np.tanh(scores / soft_cap)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        out[row] = np.einsum("hk,khd->hd", weights, values)
    return out


def mean_relative_error(found: NDArray[np.floating], expected: NDArray[np.float64]) -> float:
    """The mean error against the mean size of what is expected."""
    return float(np.abs(found - expected).mean() / np.abs(expected).mean())
