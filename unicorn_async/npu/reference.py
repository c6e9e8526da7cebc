"""Attention in float64, and bf16 as bits: what kernels' answers are compared with. No token is ever made of this."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def to_bf16(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Round to the nearest bf16, ties to even; as bits."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float64]:
    """Widen."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def exact_attention(
    q: NDArray[np.uint16],
    k: NDArray[np.uint16],
    v: NDArray[np.uint16],
    *,
    context_len: int,
    window: int = 0,
    soft_cap: float = 0.0,
) -> NDArray[np.float64]:
    """Return softmax(q · Kᵀ) · V for the last queries of a context, (queries, heads, head_dim).

    `q` is (queries, heads, head_dim) bf16, scaled; `k` and `v` are (tokens, kv heads, head_dim) bf16, of which the
    first `context_len` tokens count. `window` in tokens and `soft_cap`, 0 = none.
    """
    queries, keys, values = (from_bf16(bits) for bits in (q, k, v))
    out = np.empty_like(queries)
    for row, heads in enumerate(queries):
        stop = context_len - len(queries) + row + 1
        seen = slice(max(0, stop - window) if window else 0, stop)
        scores = np.einsum("gjd,kgd->gjk", heads.reshape(keys.shape[1], -1, keys.shape[2]), keys[seen])
        if soft_cap:
            scores = soft_cap * np.tanh(scores / soft_cap)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[row] = np.einsum("gjk,kgd->gjd", weights, values[seen]).reshape(heads.shape)
    return out
