"""A step of attention on a cache whose dead places are poisoned, and its reference in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from unicorn_async.config import KVDType
from unicorn_async.ops.attention import GpuAttention
from unicorn_async.ops.attention_op import AttentionBatch, DecodeScratch

from .far_blocks import far_blocks
from .int8_cache import Int8Cache, dequantised, met, quantised

if TYPE_CHECKING:
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.attention_plan import AttentionPlan, DecodeCut
    from unicorn_async.ops.kv_cache import AttentionShape
    from unicorn_async.ops.rows import Rows

    from .arrays import Array, Arrays

NOWHERE = 0xFFFFFFF0  # in a table, behind its blocks
FORMATS = {KVDType.F16: np.float16, KVDType.F32: np.float32}


@dataclass(frozen=True)
class Query:
    """One sequence of a step: tokens in all, and how many of them, the last ones, are queries."""

    context: int
    queries: int = 1


def with_cut(plan: AttentionPlan, cut: DecodeCut) -> AttentionPlan:
    """The plan with this cut for any step."""
    return replace(plan, cuts=((1, cut),))


class Step:
    """A step's q, a cache whose dead places are poisoned, and the work lists."""

    def __init__(
        self,
        arrays: Arrays,
        shape: AttentionShape,
        sequences: list[Query],
        *,
        window: int = 0,
        seed: int = 0,
        has_sinks: bool = False,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.shape, self.sequences, self.window = shape, sequences, window
        self.starts = [3 + sum(s.queries for s in sequences[:i]) for i in range(len(sequences))]
        tokens = self.starts[-1] + sequences[-1].queries + 2
        self.k, self.v = (
            [rng.standard_normal((s.context, shape.num_kv_heads, shape.head_dim)) for s in sequences] for _ in "kv"
        )
        if shape.latent_dim:
            self.v = [keys[..., : shape.latent_dim] for keys in self.k]
        self.q = arrays.put(
            rng.standard_normal((tokens, shape.num_heads * shape.head_dim)).astype(np.float32)
            * 3
            / np.float32(shape.head_dim**0.5)
        )
        self.sinks = arrays.put(np.linspace(-4, 9, shape.num_heads, dtype=np.float32)) if has_sinks else None
        self.out = arrays.poisoned(tokens, shape.num_heads * shape.value_dim)
        self.max_blocks = max(-(-s.context // shape.block_size) for s in sequences) + 1
        self.k_cache, self.v_cache, self.table = self._fill(arrays, rng)
        self.cache, self.first_block = far_blocks(self.k_cache.address, self.v_cache.address, shape)
        self.table.values[self.table.values != NOWHERE] += self.first_block
        self.plan: AttentionPlan | None = None  # of the last run

    def first_live(self, sequence: Query) -> int:
        """The first key that any query of the sequence sees."""
        return max(0, sequence.context - sequence.queries + 1 - self.window) if self.window else 0

    def _fill(self, arrays: Arrays, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        shape, size = self.shape, self.shape.block_size
        num_blocks = len(self.sequences) * self.max_blocks
        free = list(rng.permutation(num_blocks))
        whole = (num_blocks, shape.num_kv_heads, size, shape.head_dim)
        is_int8 = shape.kv_dtype is KVDType.INT8
        bytewise = [Int8Cache(*whole) for _ in "kv"] if is_int8 else []
        caches = np.full((2, *whole), np.nan, FORMATS.get(shape.kv_dtype, np.float64))
        table = np.full((len(self.sequences), self.max_blocks), NOWHERE, np.uint32)
        for row, sequence in enumerate(self.sequences):
            for block in range(self.first_live(sequence) // size, -(-sequence.context // size)):
                table[row, block] = free.pop()
            kept = (self.k[row],) if shape.latent_dim else (self.k[row], self.v[row])
            for cache, values in zip(bytewise, kept, strict=False):
                codes, scales = quantised(values)
                values[...] = dequantised(codes, scales)
                for token in range(self.first_live(sequence), sequence.context):
                    place = table[row, token // size], slice(None), token % size
                    cache.codes[place], cache.scales[place] = codes[token], scales[token]
            for token in range(self.first_live(sequence), sequence.context):
                for cache, values in zip(caches, kept, strict=False):
                    cache[table[row, token // size], :, token % size] = values[token]
            for values in kept:
                values[...] = values.astype(caches.dtype)
        memory = [cache.memory for cache in bytewise] or caches
        return arrays.put(memory[0]), arrays.put(memory[1]), arrays.put(table)

    def batch(self, arrays: Arrays, plan: AttentionPlan) -> AttentionBatch:
        def words(values: Any) -> int:
            return arrays.put(np.array(values if len(values) else [0], np.uint32)).address

        decode = [(row, self.starts[row]) for row, s in enumerate(self.sequences) if s.queries == 1]
        tiles = [
            (row, first)
            for row, s in enumerate(self.sequences)
            if s.queries > 1
            for first in range(0, s.queries, plan.query_tile)
        ]
        grid = plan.decode_grid([self.sequences[row].context for row, _ in decode], self.window, len(self.q.values))
        sizes = arrays.put(np.array([grid, plan.prefill_grid(len(tiles))], np.uint32))
        partials = arrays.poisoned(max(1, plan.partials_nbytes(len(decode)) // 4))
        self.counters = arrays.put(np.zeros(max(1, plan.split_counters_nbytes(len(decode)) // 4), np.uint32))
        return AttentionBatch(
            query_start=words(self.starts),
            query_len=words([s.queries for s in self.sequences]),
            context_len=words([s.context for s in self.sequences]),
            block_table=self.table.address,
            max_blocks=self.max_blocks,
            decode_items=words(decode),
            prefill_tiles=words(tiles),
            scratch=DecodeScratch(partials.address, self.counters.address),
            grids=sizes.buffer,
            decode_grid_offset=0,
            prefill_grid_offset=12,
        )

    def run(
        self,
        device: Device,
        arrays: Arrays,
        *,
        soft_cap: float = 0.0,
        info: DeviceInfo | None = None,
        plan: AttentionPlan | None = None,
        out: Rows | None = None,
        times: int = 1,
        **flags: bool,
    ) -> np.ndarray[Any, Any]:
        """The result, after as many layers of this one work."""
        attention = GpuAttention(info or device.info, device.kernels, self.shape, soft_cap=soft_cap)
        attention.plan = plan or attention.plan
        self.plan = attention.plan
        batch = replace(self.batch(arrays, attention.plan), **flags)

        def record(recorder: CommandRecorder) -> None:
            for _ in range(times):
                attention.record(
                    recorder,
                    q=self.q.tensor,
                    cache=self.cache,
                    window=self.window,
                    batch=batch,
                    out=out or self.out.tensor,
                    sinks=None if self.sinks is None else self.sinks.tensor,
                )
                recorder.barrier()

        arrays.run(record)
        assert not self.counters.values.any()
        return self.out.values

    def expected(self, *, soft_cap: float = 0.0) -> np.ndarray[Any, Any]:
        """The same in float64; NaN where there is no query."""
        shape = self.shape
        queries = self.q.values.reshape(-1, shape.num_heads, shape.head_dim)
        out = np.full((len(queries), shape.num_heads, shape.value_dim), np.nan)
        for row, sequence in enumerate(self.sequences):
            bytewise = shape.kv_dtype is KVDType.INT8 and sequence.queries == 1
            q = (met if bytewise else np.float64)(queries)
            for i in range(sequence.queries):
                position = sequence.context - sequence.queries + i
                first = max(0, position + 1 - self.window) if self.window else 0
                keys = np.repeat(self.k[row][first : position + 1], shape.group, axis=1)
                values = np.repeat(self.v[row][first : position + 1], shape.group, axis=1)
                scores = np.einsum("hd,khd->hk", q[self.starts[row] + i], keys)
                if soft_cap:
                    scores = soft_cap * np.tanh(scores / soft_cap)
                if self.sinks is not None:
                    scores = np.concatenate([scores, self.sinks.values[:, None].astype(np.float64)], axis=1)
                weights = np.exp(scores - scores.max(axis=1, keepdims=True))
                weights /= weights.sum(axis=1, keepdims=True)
                weights = weights[:, : len(values)]
                out[self.starts[row] + i] = np.einsum("hk,khd->hd", weights, values)
        return out.reshape(self.out.values.shape)


def tolerance(plan: AttentionPlan | None) -> dict[str, float]:
    """A plan says whether matrix units were in use, which take queries and probabilities as halves.

    They also take what a cache in int8 stands for as halves, where a cache in halves is exact.
    """
    if plan is None or plan.matrix_subgroup is None:
        return {"rtol": 1e-5, "atol": 4e-6}
    return {"rtol": 3e-3, "atol": 5e-3 if plan.shape.kv_dtype is KVDType.INT8 else 3e-3}


def check(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], plan: AttentionPlan | None = None) -> None:
    np.testing.assert_allclose(found, expected, **tolerance(plan))


MIXED = [Query(37), Query(61, 25), Query(1), Query(150), Query(18, 18), Query(90, 2), Query(16)]
