"""Decoding that rotates, and stores, in passing: against the kernel that does it otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unicorn_async.config import KVDType
from unicorn_async.errors import ConfigError, UnsupportedModelError
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.attention import GpuAttention
from unicorn_async.ops.attention_op import AttentionBatch, DecodeScratch
from unicorn_async.ops.attention_plan import AttentionPlan
from unicorn_async.ops.kv_cache import NO_SLOT, AttentionShape
from unicorn_async.ops.rotary import HeadNorms, HeadRotation, frequencies, rope_cache
from unicorn_async.rotary import RotaryConfig

from .far_blocks import far_blocks

if TYPE_CHECKING:
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device

    from .arrays import Array, Arrays

CONTEXTS = (1, 64, 65, 700, 17, 129, 2)
FEW_LANES = pytest.mark.whole("a workgroup of one subgroup that has two heads")
INT8_CUT = pytest.mark.whole("a cache in int8 with a GPU's cut, a window and a cap")
BLOCK_SIZE = 16
PADDING = 2  # rows of a step without a sequence


class Decoding:
    """One step of a token for each of CONTEXTS, on a cache that is random but for its newest places."""

    def __init__(
        self, arrays: Arrays, shape: AttentionShape, *, norm: str = "none", window: int = 0, soft_cap: float = 0.0
    ) -> None:
        rng = np.random.default_rng(shape.head_dim)
        self.shape, self.window, self.soft_cap, self._arrays = shape, window, soft_cap, arrays
        tokens, num_blocks = len(CONTEXTS) + PADDING, sum(-(-context // BLOCK_SIZE) for context in CONTEXTS)
        columns = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
        self.qkv = arrays.put((rng.standard_normal((tokens, columns)) * 2).astype(np.float32))
        self.tokens, self.max_blocks = tokens, max(-(-context // BLOCK_SIZE) for context in CONTEXTS)
        free = list(rng.permutation(num_blocks))
        self.table = np.zeros((len(CONTEXTS), self.max_blocks), np.uint32)
        for row, context in enumerate(CONTEXTS):
            for block in range(-(-context // BLOCK_SIZE)):
                self.table[row, block] = free.pop()
        slots = [
            self.table[row, (c - 1) // BLOCK_SIZE] * BLOCK_SIZE + (c - 1) % BLOCK_SIZE for row, c in enumerate(CONTEXTS)
        ]
        self.slots = np.array(slots, np.uint32)
        self.cache = self._random_cache(rng, num_blocks)
        weights = rng.standard_normal((2, shape.head_dim)).astype(np.float32)
        q_weight, k_weight = (arrays.put(weight).tensor for weight in weights)
        norms = None if norm == "none" else HeadNorms(q_weight, k_weight, 1e-6, norm == "plus_one")
        freqs = arrays.put(np.frombuffer(frequencies(RotaryConfig(base=10000.0), shape.head_dim), np.uint32))
        self.rotation = HeadRotation(freqs.address, 1 / shape.head_dim**0.5, norms)
        self.sinks: Array | None = None

    def _random_cache(self, rng: np.random.Generator, num_blocks: int) -> np.ndarray[Any, Any]:
        """K and V as bytes; in int8 the codes' bytes are read as scales, too, if they are small positive halves."""
        nbytes = num_blocks * self.shape.block_nbytes
        if self.shape.kv_dtype is KVDType.INT8:
            return rng.integers(0, 0x28, (2, nbytes), np.uint8)
        dtype = np.float16 if self.shape.kv_dtype is KVDType.F16 else np.float32
        values = rng.standard_normal((2, nbytes // np.dtype(dtype).itemsize))
        return values.astype(dtype).view(np.uint8)

    def run(
        self, device: Device, plan: AttentionPlan, *, in_passing: bool
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The result and the cache; `in_passing` says which kernel rotates."""
        arrays, shape = self._arrays, self.shape
        attention = GpuAttention(device.info, device.kernels, shape, soft_cap=self.soft_cap)
        attention.plan = plan
        cache = arrays.put(self.cache)
        kv, first_block = far_blocks(cache.address, cache.address + self.cache.shape[1], shape)
        q, out = (arrays.poisoned(self.tokens, shape.num_heads * shape.head_dim) for _ in range(2))
        positions = self._words([*(context - 1 for context in CONTEXTS), *[0] * PADDING])
        far = self.slots + np.uint32(first_block * BLOCK_SIZE)
        slot_mapping, batch = self._words([*far, *[NO_SLOT] * PADDING]), self._batch(plan, first_block)

        def record(recorder: CommandRecorder) -> None:
            heads, rotation = self.qkv.tensor, self.rotation
            if not in_passing:
                rope_cache(
                    recorder,
                    device.kernels,
                    device.info,
                    shape=shape,
                    qkv=heads,
                    q=q.tensor,
                    cache=kv,
                    rotation=rotation,
                    positions=positions.address,
                    slot_mapping=slot_mapping.address,
                )
                recorder.barrier()
                heads = q.tensor
            attention.record(
                recorder,
                q=heads,
                cache=kv,
                window=self.window,
                batch=batch,
                out=out.tensor,
                rotation=rotation if in_passing else None,
                sinks=None if self.sinks is None else self.sinks.tensor,
            )

        arrays.run(record)
        return out.values.copy(), cache.values.copy()

    def _batch(self, plan: AttentionPlan, first_block: int) -> AttentionBatch:
        count = len(CONTEXTS)
        grid = plan.decode_grid(CONTEXTS, self.window, count)
        grids = self._arrays.put(np.array([grid, (0, 0, 0)], np.uint32))
        return AttentionBatch(
            query_start=0,
            query_len=0,
            context_len=self._words(CONTEXTS).address,
            block_table=self._words(self.table + first_block).address,
            max_blocks=self.max_blocks,
            decode_items=self._words([(row, row) for row in range(count)]).address,
            prefill_tiles=0,
            scratch=DecodeScratch(
                self._arrays.poisoned(plan.partials_nbytes(count) // 4).address,
                self._words(np.zeros(plan.split_counters_nbytes(count) // 4)).address,
            ),
            grids=grids.buffer,
            decode_grid_offset=0,
            prefill_grid_offset=12,
            has_prefill=False,
        )

    def _words(self, values: Any) -> Array:
        return self._arrays.put(np.array(values, np.uint32))


def check(device: Device, step: Decoding, plan: AttentionPlan) -> None:
    expected, expected_cache = step.run(device, plan, in_passing=False)
    found, found_cache = step.run(device, plan, in_passing=True)
    assert np.isfinite(found[: len(CONTEXTS)]).all() and np.isnan(found[len(CONTEXTS) :]).all()
    assert not np.array_equal(found_cache, step.cache)
    np.testing.assert_array_equal(found_cache, expected_cache)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.combinations("heads, norms and types of a cache, paired otherwise")
@pytest.mark.parametrize(
    ("head_dim", "group", "kv_dtype", "norm"),
    [
        (32, 1, KVDType.F16, "none"),
        (40, 3, KVDType.F16, "plus_one"),
        (64, 2, KVDType.F32, "plain"),
        (64, 4, KVDType.INT8, "none"),
        (128, 2, KVDType.F16, "plain"),
        (128, 1, KVDType.INT8, "plain"),
        (256, 2, KVDType.F16, "plus_one"),
        (512, 4, KVDType.F16, "plain"),
    ],
)
def test_results_and_cache_are_those_of_a_kernel_apart(
    device: Device, arrays: Arrays, head_dim: int, group: int, kv_dtype: KVDType, norm: str
) -> None:
    shape = AttentionShape(2 * group, 2, head_dim, BLOCK_SIZE, kv_dtype)
    check(device, Decoding(arrays, shape, norm=norm), AttentionPlan.of(device.info, shape))


@pytest.mark.combinations("cuts and types of a cache, paired otherwise")
@pytest.mark.parametrize(
    ("workgroup", "heads", "kv_dtype"),
    [pytest.param(8, 2, KVDType.F16, marks=FEW_LANES), *((64, 1, kind) for kind in KVDType), (32, 4, KVDType.INT8)],
)
def test_workgroups_that_share_a_kv_head_store_it_once_and_agree(
    device: Device, arrays: Arrays, workgroup: int, heads: int, kv_dtype: KVDType
) -> None:
    shape = AttentionShape(8, 2, 64, BLOCK_SIZE, kv_dtype)
    plan = AttentionPlan.of(device.info, shape)
    subgroups = -(-workgroup // device.info.min_subgroup_size)
    cut = replace(plan.cut(1), workgroup=workgroup, subgroups=subgroups, tile=32)
    plan = replace(plan, cuts=((1, cut),), decode_heads=heads, max_splits=40)
    check(device, Decoding(arrays, shape, norm="plain"), plan)


@pytest.mark.parametrize("kv_dtype", [KVDType.F16, pytest.param(KVDType.INT8, marks=INT8_CUT)])
def test_the_constants_of_a_gpu_a_window_and_a_soft_cap_change_nothing_of_that(
    device: Device, arrays: Arrays, kv_dtype: KVDType
) -> None:
    shape = AttentionShape(4, 2, 128, BLOCK_SIZE, kv_dtype)
    plan = AttentionPlan.of(replace(device.info, type=DeviceType.DISCRETE), shape)
    check(device, Decoding(arrays, shape, window=60, soft_cap=5.0), plan)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_amplitudes_and_growing_queries_change_nothing_of_that(device: Device, arrays: Arrays, head_dim: int) -> None:
    shape = AttentionShape(4, 2, head_dim, BLOCK_SIZE, KVDType.F16)
    step = Decoding(arrays, shape, norm="plain")
    extras = {"amplitude": 1.19, "num_pairs": head_dim // 4, "q_growth": 0.1, "q_period": 100}
    step.rotation = replace(step.rotation, **extras)
    check(device, step, AttentionPlan.of(device.info, shape))


def test_sinks_change_nothing_of_that_and_are_refused_beside_norms(device: Device, arrays: Arrays) -> None:
    shape = AttentionShape(4, 2, 64, BLOCK_SIZE, KVDType.F16)
    plan = AttentionPlan.of(device.info, shape)
    step = Decoding(arrays, shape, window=60)
    without, _ = step.run(device, plan, in_passing=True)
    step.sinks = arrays.put(np.linspace(-2, 4, 4, dtype=np.float32))
    check(device, step, plan)
    found, _ = step.run(device, plan, in_passing=True)
    assert (np.abs(found) < np.abs(without))[: len(CONTEXTS)].all()
    step = Decoding(arrays, shape, norm="plain")
    step.sinks = arrays.put(np.zeros(4, np.float32))
    with pytest.raises(UnsupportedModelError, match="sinks beside norms of q and k"):
        step.run(device, plan, in_passing=True)


@pytest.mark.parametrize(
    ("head_dim", "from_k", "kv_dtype"), [(64, True, KVDType.INT8), (256, False, KVDType.F16), (512, True, KVDType.F16)]
)
def test_normed_values_that_may_be_keys_change_nothing_of_that(
    device: Device, arrays: Arrays, head_dim: int, from_k: bool, kv_dtype: KVDType
) -> None:
    shape = AttentionShape(8, 2, head_dim, BLOCK_SIZE, kv_dtype)
    step = Decoding(arrays, shape, norm="plain")
    step.rotation = replace(step.rotation, v_norm=True, v_from_k=from_k)
    if from_k:
        step.qkv = arrays.put(np.ascontiguousarray(step.qkv.values[:, : 10 * head_dim]))
    check(device, step, AttentionPlan.of(device.info, shape))


def test_heads_of_another_shape_are_refused(device: Device, arrays: Arrays) -> None:
    shape = AttentionShape(2, 1, 64, BLOCK_SIZE, KVDType.F16)
    step = Decoding(arrays, shape)
    step.qkv = arrays.put(np.zeros((len(CONTEXTS) + PADDING, 128), np.float32))
    with pytest.raises(ConfigError, match=r"q: expected .*256"):
        step.run(device, AttentionPlan.of(device.info, shape), in_passing=True)
