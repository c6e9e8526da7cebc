"""Questions whose answers differ wherever a kernel may go wrong: by query, head, dimension, key and sequence. Pure.

Values lie within ±1, so an answer's error is bounded by that of its weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.npu.reference import to_bf16

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    from unicorn_async.npu.work import AttentionHeads

_NEEDLE_SCORE = 64.0  # 8 deviations of the other keys' scores for the smallest head_dim
_SPREAD = 2.0  # deviation of random scores


@dataclass(frozen=True, slots=True)
class Question:
    """One sequence: its queries are its last tokens; one token lies past it, which nobody may see.

    `q` is (queries, heads, head_dim), `k` and `v` are (tokens + 1, kv heads, head_dim), all bf16.
    """

    q: NDArray[np.uint16]
    k: NDArray[np.uint16]
    v: NDArray[np.uint16]

    @property
    def queries(self) -> int:
        """Queries asked."""
        return len(self.q)

    @property
    def context_len(self) -> int:
        """Tokens that count."""
        return len(self.k) - 1


def random_question(heads: AttentionHeads, rng: Generator, context_len: int, queries: int) -> Question:
    """Random q, k and v; every key has a part in the answers, the one past the context would have the largest."""
    dim = heads.layout.head_dim
    q = rng.uniform(-1, 1, (queries, heads.num_heads, dim)) * 3 * _SPREAD / dim**0.5
    k, v = (rng.uniform(-1, 1, (context_len + 1, heads.num_kv_heads, dim)) for _ in "kv")
    k[-1] *= 8
    return Question(to_bf16(q), to_bf16(k), to_bf16(v))


def needle_question(heads: AttentionHeads, rng: Generator, context_len: int, queries: int, window: int) -> Question:
    """One key's value is the answer to a query of a head: the signs of all dimensions of both agree.

    Keys that a query must not see agree with it as well: those next to what it sees on either side, and more before
    the first window and past the context. One query at least sees what the others do; the window is smaller than the
    context.
    """
    dim, num_kv_heads, group = heads.layout.head_dim, heads.num_kv_heads, heads.group
    k = rng.choice([-1.0, 1.0], (context_len + 1, num_kv_heads, dim))
    v = rng.uniform(-1, 1, k.shape)
    first_query = context_len - queries
    needles = rng.integers(context_len - window, first_query + 1, (queries, num_kv_heads, group))
    q = k[needles, np.arange(num_kv_heads)[:, None]]  # (queries, kv heads, group, dim)
    for query in range(queries):
        last = first_query + query
        k[last + 1] = q[query, :, query % group]
        k[last - window] = q[query, :, (query + 1) % group]
    for token in range(first_query - window):
        k[token] = q[token % queries, :, token % group]
    q = q.reshape(queries, heads.num_heads, dim) * _NEEDLE_SCORE / dim
    return Question(to_bf16(q), to_bf16(k), to_bf16(v))


def light_question(heads: AttentionHeads, rng: Generator, queries: int, soft_cap: float) -> Question:
    """For a window of two tokens: one of them scores 0 and has values of 0, the other scores -6 to -2.

    So the answer is the other's weight, times its value: neither other keys nor the sum of weights average out how that
    weight was rounded. With a `soft_cap` (0 = none) scores stay where it leaves them apart.
    """
    dim, num_kv_heads = heads.layout.head_dim, heads.num_kv_heads
    scale = min(1.0, soft_cap / 8) if soft_cap else 1.0
    signs = rng.choice([-1.0, 1.0], (num_kv_heads, dim))
    size = rng.uniform(1.5, 2.5, (queries, heads.num_heads, 1))
    q = -scale * size * signs.repeat(heads.group, axis=0) / dim
    k = rng.uniform(1.5, 2.5, (queries + 2, num_kv_heads, 1)) * signs
    v = rng.choice([-1.0, 1.0], k.shape) * rng.uniform(0.5, 1, k.shape)
    k[::2], v[::2] = 0, 0
    return Question(to_bf16(q), to_bf16(k), to_bf16(v))
