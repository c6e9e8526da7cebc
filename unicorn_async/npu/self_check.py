"""Known questions for the kernels, asked at every start.

A wrong memory group, wrong kernels or a stale cache give no error: they give a wrong answer. The answers are compared
with float64's, value by value, and the rounding by its mean over many: where a core rounds down, every single weight is
right to its last bit, and all of them are too small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.errors import NpuSelfCheckError
from unicorn_async.npu.questions import light_question, needle_question, random_question
from unicorn_async.npu.reference import exact_attention
from unicorn_async.npu.work import SequenceWork

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from unicorn_async.npu.attention import AttentionService
    from unicorn_async.npu.cache import NpuCache
    from unicorn_async.npu.questions import Question

_NUM_WEIGHTS = 512  # that the bias is the mean of
_NEEDLE_QUERIES = 5
_ADVICE = "Build the kernels anew (`unicorn npu build`), and report what `unicorn npu validate` says"


async def self_check(attention: AttentionService) -> None:
    """Ask the known questions, decode and prefill, with and without a window; every core gets some of them.

    Raises:
        NpuSelfCheckError: an answer is wrong.
    """
    heads, rng = attention.heads, np.random.default_rng(0)
    keys = heads.layout.chunk_keys
    num_sequences = -(-heads.layout.chip.num_teams // heads.num_kv_heads)
    shapes = ((1, 1), (2 * keys + 1, 1), (keys + 3, 3))
    out, expected = await _ask(
        attention,
        [random_question(heads, rng, *shapes[row % 3]) for row in range(max(3, num_sequences))],
        window=0,
        what="random keys",
    )
    size, precision = np.abs(expected).mean(), attention.precision
    shift, error = float((out - expected).mean() / size), float(np.abs(out - expected).mean() / size)
    if error > precision.mean_error:
        raise NpuSelfCheckError(
            f"NPU self-check, random keys: results are wrong by {error:.1e} of their size on average, expected"
            f" {precision.mean_error} at most. {_ADVICE}"
        )
    window = keys + 2
    rows = heads.layout.chip.tile_n + 1  # more than one core's, so that all of a team have some
    num_needles = max(_NEEDLE_QUERIES, -(-rows // heads.group))
    needles = [needle_question(heads, rng, 4 * keys + 3, num_needles, window) for _ in range(num_sequences)]
    await _ask(attention, needles, window=window, what="one key among many")
    queries = -(-_NUM_WEIGHTS // (num_sequences * heads.num_heads))
    light = [light_question(heads, rng, queries, attention.soft_cap) for _ in range(num_sequences)]
    out, expected = await _ask(attention, light, window=2, what="a small weight")
    what, bias = (
        ("weights", float(((out - expected) / expected).mean())) if precision.weights_tell else ("answers", shift)
    )
    if abs(bias) > precision.bias:
        raise NpuSelfCheckError(
            f"NPU self-check: {what} are off by {bias:.1e} of their size on average, expected {precision.bias} at most:"
            f" the cores do not round to nearest. {_ADVICE}"
        )


async def _ask(
    attention: AttentionService, questions: Sequence[Question], *, window: int, what: str
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Ask the questions in one step; returns the answers and what they should be, (tokens, heads, head_dim)."""
    heads = attention.heads
    attention.poison_results()
    tables, num_blocks = _tables(questions, heads.block_size)
    cache = attention.allocate_cache(num_blocks, name="NPU self-check")
    try:
        q = np.concatenate([question.q for question in questions])
        out = np.full(q.shape, np.nan, np.float32)
        works, start = [], 0
        for question, table in zip(questions, tables, strict=True):
            works.append(SequenceWork(start, question.queries, question.context_len, table))
            start += question.queries
            _fill(cache, question, table)
        step = attention.prepare(works, num_tokens=len(q), num_blocks=num_blocks, window=window)
        await attention.submit(step, q=q, cache=cache, out=out)
    finally:
        try:
            await attention.drain()  # a cancelled call leaves its run, which reads the cache
        finally:
            cache.close()
    answers = [
        exact_attention(
            question.q,
            question.k,
            question.v,
            context_len=question.context_len,
            window=window,
            soft_cap=attention.soft_cap,
        )
        for question in questions
    ]
    expected = np.concatenate(answers)
    _compare(out, expected, attention.precision.largest, f"{what}, window {window}")
    return out, expected


def _tables(questions: Sequence[Question], block_size: int) -> tuple[list[tuple[int, ...]], int]:
    """Hand out blocks, backwards, so that a table which is not followed shows; returns them and their number."""
    sizes = [-(-(question.context_len + 1) // block_size) for question in questions]
    blocks = iter(reversed(range(sum(sizes))))
    return [tuple(next(blocks) for _ in range(size)) for size in sizes], sum(sizes)


def _fill(cache: NpuCache, question: Question, table: tuple[int, ...]) -> None:
    size, tokens = cache.heads.block_size, np.arange(len(question.k))
    cache.write(question.k, question.v, np.array(table, np.int64)[tokens // size] * size + tokens % size)


def _compare(out: NDArray[np.float32], expected: NDArray[np.float64], largest: float, what: str) -> None:
    untouched = int(np.isnan(out).sum())
    wrong = int((~(np.abs(out - expected) <= largest)).sum())
    if not wrong:
        return
    reason = (
        "nothing was written: the buffers are in the wrong memory group, or the kernels did not run"
        if untouched == out.size
        else f"{untouched} of them were not written; the largest of the others is {_largest(out)}"
    )
    raise NpuSelfCheckError(f"NPU self-check, {what}: {wrong} of {out.size} results are wrong; {reason}. {_ADVICE}")


def _largest(out: NDArray[np.float32]) -> float:
    known = out[~np.isnan(out)]
    return float(np.abs(known).max()) if known.size else float("nan")
