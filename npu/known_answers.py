"""Random questions for the NPU's attention, and their answers in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.npu.reference import exact_attention, to_bf16
from unicorn_async.npu.work import SequenceWork

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unicorn_async.npu.attention import AttentionService, PreparedStep
    from unicorn_async.npu.cache import NpuCache
    from unicorn_async.npu.work import AttentionHeads


class Question:
    """One sequence whose blocks lie in a random order, or in a row; q, k and v are normal, rounded to bf16."""

    def __init__(
        self,
        heads: AttentionHeads,
        context_len: int,
        queries: int,
        window: int,
        *,
        seed: int = 0,
        is_scattered: bool = True,
    ) -> None:
        rng = np.random.default_rng((context_len, queries, window, seed))
        dim = heads.layout.head_dim
        self.heads, self.context_len, self.queries, self.window = heads, context_len, queries, window
        self.q = to_bf16(rng.standard_normal((queries, heads.num_heads, dim)) / dim**0.5)
        self.k, self.v = (to_bf16(rng.standard_normal((context_len, heads.num_kv_heads, dim))) for _ in "kv")
        self.num_blocks = -(-context_len // heads.block_size)
        self.table = tuple(rng.permutation(self.num_blocks).tolist() if is_scattered else range(self.num_blocks))

    def __str__(self) -> str:
        return f"context {self.context_len}, {self.queries} queries, window {self.window}"

    def fill(self, attention: AttentionService) -> NpuCache:
        """Return a cache with all tokens; the caller closes it."""
        cache = attention.allocate_cache(self.num_blocks, name=str(self))
        tokens, size = np.arange(self.context_len), self.heads.block_size
        cache.write(self.k, self.v, np.array(self.table, np.int64)[tokens // size] * size + tokens % size)
        return cache

    def prepare(self, attention: AttentionService) -> PreparedStep:
        """Return the prepared step."""
        work = SequenceWork(0, self.queries, self.context_len, self.table)
        return attention.prepare([work], num_tokens=self.queries, num_blocks=self.num_blocks, window=self.window)

    def new_out(self) -> NDArray[np.float32]:
        """Return room for an answer, poisoned."""
        return np.full(self.q.shape, np.nan, np.float32)

    async def ask(self, attention: AttentionService) -> NDArray[np.float32]:
        """Return the NPU's answer."""
        cache, out = self.fill(attention), self.new_out()
        try:
            await attention.submit(self.prepare(attention), q=self.q, cache=cache, out=out)
        finally:
            await attention.drain()
            cache.close()
        return out

    def error(self, found: NDArray[np.float32]) -> float:
        """Return the mean error against the answer's mean size; infinite if something was not written."""
        expected = self.answer()
        error = float(np.abs(found - expected).mean() / np.abs(expected).mean())
        return error if np.isfinite(error) else float("inf")

    def answer(self) -> NDArray[np.float64]:
        """Return the answer in float64, (queries, heads, head_dim)."""
        return exact_attention(self.q, self.k, self.v, context_len=self.context_len, window=self.window)
