"""New keys and values on their way into a paged cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from unicorn_async.config import KVDType
from unicorn_async.ops.kv_append import kv_append
from unicorn_async.ops.kv_cache import NO_SLOT, AttentionShape, KVCache

from .far_blocks import far_blocks
from .int8_cache import Int8Cache, check_codes, quantised

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device

    from .arrays import Arrays

FORMATS = {KVDType.F16: np.float16, KVDType.F32: np.float32}
BLOCKS, BLOCK_SIZE = 4, 8


@pytest.mark.parametrize("kv_dtype", FORMATS)
@pytest.mark.parametrize(("head_dim", "num_kv_heads"), [(32, 1), (80, 3), (128, 2), (256, 4), (512, 2)])
def test_tokens_reach_their_slots_and_nothing_else_changes(
    device: Device, arrays: Arrays, head_dim: int, num_kv_heads: int, kv_dtype: KVDType
) -> None:
    rng = np.random.default_rng(head_dim)
    shape = AttentionShape(2 * num_kv_heads, num_kv_heads, head_dim, BLOCK_SIZE, kv_dtype)
    slots = [5, 0, 31, NO_SLOT, 8, 23]
    before = rng.standard_normal((2, BLOCKS, num_kv_heads, BLOCK_SIZE, head_dim)).astype(FORMATS[kv_dtype])
    new = rng.standard_normal((2, len(slots), num_kv_heads, head_dim)).astype(FORMATS[kv_dtype])
    k_cache, v_cache = arrays.put(before[0]), arrays.put(before[1])
    k_new, v_new = arrays.put(new[0]), arrays.put(new[1])
    cache, first_block = far_blocks(k_cache.address, v_cache.address, shape)
    far = [slot if slot == NO_SLOT else slot + first_block * BLOCK_SIZE for slot in slots]
    slot_array = arrays.put(np.array(far, np.uint32))

    arrays.run(
        lambda rec: kv_append(
            rec,
            device.kernels,
            shape=shape,
            new=KVCache(k_new.address, v_new.address),
            cache=cache,
            slot_mapping=slot_array.address,
            num_tokens=len(slots),
        )
    )

    expected = before.copy()
    for token, slot in enumerate(slots):
        if slot != NO_SLOT:
            expected[:, slot // BLOCK_SIZE, :, slot % BLOCK_SIZE] = new[:, token]
    np.testing.assert_array_equal(k_cache.values, expected[0])
    np.testing.assert_array_equal(v_cache.values, expected[1])


@pytest.mark.parametrize(("head_dim", "num_kv_heads"), [(64, 3), (128, 2), (256, 1), (512, 1)])
def test_halves_become_int8_in_their_slots_and_nothing_else_changes(
    device: Device, arrays: Arrays, head_dim: int, num_kv_heads: int
) -> None:
    rng = np.random.default_rng(head_dim)
    shape = AttentionShape(num_kv_heads, num_kv_heads, head_dim, BLOCK_SIZE, KVDType.INT8)
    slots = [5, 0, 31, NO_SLOT, 8, 23]
    new = rng.standard_normal((2, len(slots), num_kv_heads, head_dim)).astype(np.float16)
    size = BLOCKS, num_kv_heads, BLOCK_SIZE, head_dim
    k_cache, v_cache = (arrays.put(Int8Cache(*size).memory) for _ in "kv")
    k_new, v_new = arrays.put(new[0]), arrays.put(new[1])
    cache, first_block = far_blocks(k_cache.address, v_cache.address, shape)
    far = [slot if slot == NO_SLOT else slot + first_block * BLOCK_SIZE for slot in slots]
    slot_array = arrays.put(np.array(far, np.uint32))
    arrays.run(
        lambda rec: kv_append(
            rec,
            device.kernels,
            shape=shape,
            new=KVCache(k_new.address, v_new.address),
            cache=cache,
            slot_mapping=slot_array.address,
            num_tokens=len(slots),
        )
    )
    for array, values in ((k_cache, new[0]), (v_cache, new[1])):
        cache = Int8Cache(*size, array.values)
        _, scales = quantised(values)
        untouched = np.ones((BLOCKS, BLOCK_SIZE), bool)
        for token, slot in enumerate(slots):
            if slot != NO_SLOT:
                place = slot // BLOCK_SIZE, slice(None), slot % BLOCK_SIZE
                untouched[slot // BLOCK_SIZE, slot % BLOCK_SIZE] = False
                check_codes(cache.codes[place], values[token])
                np.testing.assert_array_equal(cache.scales[place], scales[token])
        assert (cache.codes.swapaxes(1, 2)[untouched] == -1).all()
        assert np.isnan(cache.scales.swapaxes(1, 2)[untouched]).all()
