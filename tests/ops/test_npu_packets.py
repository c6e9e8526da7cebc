"""What a Vulkan device writes for an NPU is what the host would write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.npu.reference import to_bf16
from unicorn_async.npu.geometry import CORE_BUFFER_BYTES, NPU1, NPU2, HeadLayout
from unicorn_async.npu.packets import write_tokens
from unicorn_async.npu.schedule import PACKET_BYTES
from unicorn_async.npu.work import AttentionHeads
from unicorn_async.ops.kv_cache import NO_SLOT, KVCache
from unicorn_async.ops.npu_packets import ROW, PacketShape, npu_new_tokens, npu_queries, npu_results

if TYPE_CHECKING:
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.npu.geometry import Chip

    from .arrays import Arrays

CASES = [(NPU1, 64, 4, 2), (NPU2, 128, 3, 3), (NPU1, 256, 8, 1)]
ROWS = [(0, 0), (0, 1), (3, 0), None, (6, 0)]  # (item, query in it) of each token; one is padding
SLOTS = [37, 38, 5, 0, 63]


def places(heads: AttentionHeads, stride: int) -> np.ndarray:
    rows = np.zeros(len(ROWS), ROW)
    rows["slot"] = NO_SLOT
    for token, place in enumerate(ROWS):
        if place is not None:
            rows[token] = (place[0], place[1] * heads.group, stride, SLOTS[token])
    return rows


def shape_of(heads: AttentionHeads) -> PacketShape:
    return PacketShape(heads.num_kv_heads, heads.group, heads.layout.head_dim, heads.layout.chip.tile_n)


@pytest.mark.parametrize(("chip", "head_dim", "group", "num_kv_heads"), CASES)
def test_queries_reach_the_rows_of_their_items_and_results_come_back(
    device: Device, arrays: Arrays, chip: Chip, head_dim: int, group: int, num_kv_heads: int
) -> None:
    heads = AttentionHeads(HeadLayout(chip, head_dim), num_kv_heads * group, num_kv_heads, 64)
    layout, rng = heads.layout, np.random.default_rng(head_dim)
    num_items = 6 + num_kv_heads
    q = rng.standard_normal((len(ROWS), heads.num_heads, head_dim)).astype(np.float32)
    results = rng.standard_normal((num_items, layout.num_strips, head_dim, chip.tile_n)).astype(np.float32)
    rows = places(heads, results[0].size)
    expected = np.full((num_items, 3 * layout.core_strips, head_dim, chip.tile_n), 0x1234, np.uint16)
    gathered = np.zeros_like(q)
    for token, place in enumerate(ROWS):
        for head in range(heads.num_heads if place else 0):
            item, row = place[0] + head // group, place[1] * group + head % group
            strip, lane = divmod(row, chip.tile_n)
            expected[item, layout.core_strips + strip, :, lane] = to_bf16(q[token, head])
            gathered[token, head] = results[item, strip, :, lane]
    packets = arrays.put(np.full(num_items * PACKET_BYTES // 2, 0x1234, np.uint16))
    q_array, row_array, result_array = arrays.put(q), arrays.put(rows.view(np.uint32)), arrays.put(results)
    attended = arrays.poisoned(*q.shape)

    def record(rec: CommandRecorder) -> None:
        tokens = {"rows": row_array.address, "num_tokens": len(ROWS)}
        shape = shape_of(heads)
        npu_queries(rec, device.kernels, shape, q=q_array.address, packets=packets.address, **tokens)
        npu_results(rec, device.kernels, shape, results=result_array.address, attended=attended.address, **tokens)

    arrays.run(record)
    np.testing.assert_array_equal(packets.values, expected.ravel())
    np.testing.assert_array_equal(attended.values, gathered)


@pytest.mark.parametrize(("chip", "head_dim", "group", "num_kv_heads"), CASES)
def test_new_tokens_reach_their_slots_as_the_host_would_write_them(
    device: Device, arrays: Arrays, chip: Chip, head_dim: int, group: int, num_kv_heads: int
) -> None:
    heads = AttentionHeads(HeadLayout(chip, head_dim), num_kv_heads * group, num_kv_heads, 64)
    rng = np.random.default_rng(head_dim)
    k, v = (rng.standard_normal((len(ROWS), num_kv_heads, head_dim)).astype(np.float32) for _ in "kv")
    before = rng.integers(0, 1 << 16, heads.cache_bytes(1) // 2, np.uint16)
    cache, expected = arrays.put(before), before.copy()
    used = [token for token, place in enumerate(ROWS) if place]
    write_tokens(expected, heads, to_bf16(k[used]), to_bf16(v[used]), np.array(SLOTS)[used])
    k_array, v_array, row_array = arrays.put(k), arrays.put(v), arrays.put(places(heads, 0).view(np.uint32))
    arrays.run(
        lambda rec: npu_new_tokens(
            rec,
            device.kernels,
            shape_of(heads),
            new=KVCache(k_array.address, v_array.address),
            rows=row_array.address,
            cache=cache.address,
            num_chunks=heads.cache_bytes(1) // num_kv_heads // CORE_BUFFER_BYTES,
            num_tokens=len(ROWS),
        )
    )
    np.testing.assert_array_equal(cache.values, expected)
