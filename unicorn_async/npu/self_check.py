"""A known question for the kernels, asked at every start.

A wrong memory group, wrong kernels or a stale cache give no error: they give a wrong answer.

The answer needs no arithmetic. In every head one key scores so high that it takes all the weight, and the answer is its
value. Keys that must not be seen (after the query, before the window, past the context) score higher still. Another
head's queries are zero, which makes the answer the mean of values that come in equal numbers of +1 and -1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.errors import NpuSelfCheckError
from unicorn_async.npu.work import SequenceWork

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unicorn_async.npu.attention import NpuAttention
    from unicorn_async.npu.work import AttentionHeads

_TOLERANCE = 1e-3
_EIGHT, _TRAP, _ONE = 0x4100, 0x4180, 0x3F80  # 8, 16 and 1 in bf16: scores of 64 and 128
_SIGN = 0x8000


async def self_check(attention: NpuAttention) -> None:
    """Ask the known questions, decode and prefill, with and without a window; every lane gets some of them.

    Raises:
        NpuSelfCheckError: an answer is wrong.
    """
    chunk = attention.heads.layout.chunk_keys
    for context_len, queries, window in ((1, 1, 0), (2 * chunk + 1, 1, 0), (4 * chunk + 3, 5, chunk + 2)):
        attention.poison_results()
        await _ask(attention, context_len, queries, window)


async def _ask(attention: NpuAttention, context_len: int, queries: int, window: int) -> None:
    heads, lanes = attention.heads, attention.heads.layout.chip.num_lanes
    num_sequences = -(-lanes // heads.num_kv_heads)
    blocks = -(-(context_len + 1) // heads.block_size)
    cache = attention.allocate_cache(num_sequences * blocks, name="NPU self-check")
    try:
        shape = (num_sequences * queries, heads.num_heads, heads.layout.head_dim)
        out, expected = np.full(shape, np.nan, np.float32), np.empty(shape, np.float32)
        q = np.zeros(shape, np.uint16)
        q[:, :, 0] = _EIGHT
        if heads.num_heads > 1:
            q[:, -1, 0] = 0
        sequences = []
        for row in range(num_sequences):
            # Blocks are handed out backwards, so that a table which is not followed shows.
            table = tuple(reversed(range(row * blocks, (row + 1) * blocks)))
            start = row * queries
            sequences.append(SequenceWork(start, queries, context_len, table))
            k, v, answer = _question(heads, context_len, queries, window)
            expected[start : start + queries] = answer
            tokens = np.arange(len(k))
            slots = np.array(table, np.int64)[tokens // heads.block_size] * heads.block_size + tokens % heads.block_size
            cache.write(k, v, slots)
        step = attention.prepare(sequences, num_tokens=len(q), num_blocks=cache.num_blocks, window=window)
        await attention.submit(step, q=q, cache=cache, out=out)
    finally:
        try:
            await attention.drain()  # a cancelled call leaves its run, which reads the cache
        finally:
            cache.close()
    _compare(out, expected, f"context {context_len}, {queries} queries, window {window}")


def _question(
    heads: AttentionHeads, context_len: int, queries: int, window: int
) -> tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[np.float32]]:
    """Keys and values of a context and of one token past it, and the answer to each query."""
    shape = (context_len + 1, heads.num_kv_heads, heads.layout.head_dim)
    k, v = np.zeros(shape, np.uint16), np.zeros(shape, np.uint16)
    signs = np.where(np.arange(context_len + 1) % 2, _SIGN, 0).astype(np.uint16)
    v[:] = _ONE | signs[:, None, None]
    first_query = context_len - queries
    first_seen = max(0, context_len - window) if window else 0  # by the last query
    answer = np.empty((queries, heads.num_heads, heads.layout.head_dim), np.float32)
    needle = (first_seen + first_query) // 2
    k[needle, :, 0] = _EIGHT
    k[context_len, :, 0] = _TRAP
    if window and first_query + 1 - window > 0:
        k[: first_query + 1 - window, :, 0] = _TRAP
    answer[:] = -1.0 if needle % 2 else 1.0
    for query in range(queries if heads.num_heads > 1 else 0):
        position = first_query + query
        first = max(0, position + 1 - window) if window else 0
        odd = (position + 1) // 2 - first // 2
        count = position + 1 - first
        answer[query, -1] = (count - 2 * odd) / count
    return k, v, answer


def _compare(out: NDArray[np.float32], expected: NDArray[np.float32], what: str) -> None:
    untouched = int(np.isnan(out).sum())
    wrong = int((~(np.abs(out - expected) <= _TOLERANCE)).sum())
    if not wrong:
        return
    reason = (
        "nothing was written: the buffers are in the wrong memory group, or the kernels did not run"
        if untouched == out.size
        else f"{untouched} of them were not written; the largest of the others is {_largest(out)}"
    )
    raise NpuSelfCheckError(
        f"NPU self-check, {what}: {wrong} of {out.size} results are wrong; {reason}. Build the kernels anew"
        " (`unicorn npu build`), and report what `unicorn npu validate` says"
    )


def _largest(out: NDArray[np.float32]) -> float:
    known = out[~np.isnan(out)]
    return float(np.abs(known).max()) if known.size else float("nan")
