"""Steps of several sequences on the NPU's attention, with their answers in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.npu.reference import attention, from_bf16, to_bf16
from unicorn_async.npu.work import AttentionHeads, SequenceWork

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unicorn_async.npu.attention import AttentionService
    from unicorn_async.npu.cache import NpuCache


@dataclass(frozen=True)
class Query:
    """One sequence: tokens in all, and how many of them, the last ones, are queries."""

    context: int
    queries: int = 1


class Step:
    """q, caches whose blocks are handed out at random, and the answer."""

    def __init__(self, heads: AttentionHeads, sequences: list[Query], *, window: int = 0, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.heads, self.sequences, self.window = heads, sequences, window
        dim = heads.layout.head_dim
        self.starts = [3 + sum(s.queries for s in sequences[:i]) for i in range(len(sequences))]
        self.num_tokens = self.starts[-1] + sequences[-1].queries + 2
        self.q = to_bf16(rng.standard_normal((self.num_tokens, heads.num_heads, dim)) / dim**0.5)
        shapes = [(s.context, heads.num_kv_heads, dim) for s in sequences]
        self.k, self.v = ([to_bf16(rng.standard_normal(shape)) for shape in shapes] for _ in "kv")
        max_blocks = max(-(-s.context // heads.block_size) for s in sequences)
        self.num_blocks = len(sequences) * max_blocks
        order = rng.permutation(self.num_blocks).tolist()
        self.tables = [tuple(order.pop() for _ in range(-(-s.context // heads.block_size))) for s in sequences]

    @property
    def work(self) -> list[SequenceWork]:
        return [
            SequenceWork(start, s.queries, s.context, table)
            for start, s, table in zip(self.starts, self.sequences, self.tables, strict=True)
        ]

    def slots(self, row: int) -> NDArray[np.int64]:
        tokens, size = np.arange(self.sequences[row].context), self.heads.block_size
        return np.array(self.tables[row])[tokens // size] * size + tokens % size

    def fill(self, attention: AttentionService) -> NpuCache:
        """A cache with all tokens; the caller closes it."""
        cache = attention.allocate_cache(self.num_blocks)
        for row in range(len(self.sequences)):
            cache.write(self.k[row], self.v[row], self.slots(row))
        return cache

    async def run(self, attention: AttentionService) -> NDArray[np.float32]:
        """The whole way: cache, preparation, run."""
        cache = self.fill(attention)
        out = self.poisoned()
        try:
            await attention.submit(self.prepare(attention), q=self.q, cache=cache, out=out)
        finally:
            await attention.drain()
            cache.close()
        return out

    def prepare(self, attention: AttentionService) -> Any:
        return attention.prepare(self.work, num_tokens=self.num_tokens, num_blocks=self.num_blocks, window=self.window)

    def poisoned(self) -> NDArray[np.float32]:
        return np.full(self.q.shape, np.nan, np.float32)

    def expected(self, **options: Any) -> NDArray[np.float64]:
        """The answer; NaN where there is no query."""
        out = np.full(self.q.shape, np.nan)
        for row, (start, sequence) in enumerate(zip(self.starts, self.sequences, strict=True)):
            rows = slice(start, start + sequence.queries)
            k, v = from_bf16(self.k[row]), from_bf16(self.v[row])
            out[rows] = attention(from_bf16(self.q[rows]), k, v, window=self.window, **options)
        return out

    def check(self, found: NDArray[np.float32], **options: Any) -> None:
        expected = self.expected(**options)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        error = np.nanmean(np.abs(found - expected)) / np.nanmean(np.abs(expected))
        assert error <= 3e-3, error
