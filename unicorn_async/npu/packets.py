"""Moves queries, keys, values and results between their usual layouts and the kernels'. Copies alone, no arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from unicorn_async.errors import ConfigError
from unicorn_async.npu.geometry import SLOT_BYTES, TILE_DEPTH, TILE_M
from unicorn_async.npu.schedule import PACKET_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unicorn_async.npu.step import PreparedPart
    from unicorn_async.npu.work import AttentionHeads, Item

Bf16Bits: TypeAlias = "NDArray[np.uint16]"

_PARAMETER_WORDS = 16


def parameters(heads: AttentionHeads, item: Item, *, strips: int, window: int, soft_cap: float) -> NDArray[np.int32]:
    """Return an item's parameters: `Parameters` in npu/kernels/tile_shape.h.

    `window` in tokens and `soft_cap`, 0 = none. Rows without a query see nothing.
    """
    layout = heads.layout
    row_lanes = layout.num_strips * layout.chip.tile_lanes
    words = np.zeros(_PARAMETER_WORDS + 2 * row_lanes, np.int32)
    words[:3] = item.num_chunks, strips, item.base
    words[3:4].view(np.float32)[0] = soft_cap
    rows = item.num_queries * heads.group
    first, last = np.ones(layout.rows, np.int32), np.zeros(layout.rows, np.int32)
    last[:rows] = np.repeat(item.position + np.arange(item.num_queries, dtype=np.int32), heads.group)
    first[:rows] = np.maximum(0, last[:rows] + 1 - window) if window else 0
    bounds = words[_PARAMETER_WORDS:].reshape(2, layout.num_strips, TILE_M, layout.chip.tile_n)
    bounds[0], bounds[1] = (rows.reshape(layout.num_strips, 1, layout.chip.tile_n) for rows in (first, last))
    return words


def write_parameters(packets: NDArray[np.uint8], part: PreparedPart) -> None:
    """Write the parameters of all of a part's items; `packets` is (items, 2 slots) of bytes, flat."""
    slots = packets.view(np.int32).reshape(-1, PACKET_BYTES // 4)
    slots[: len(part.items), : part.parameters.shape[1]] = part.parameters


def write_queries(packets: NDArray[np.uint8], heads: AttentionHeads, part: PreparedPart, q: Bf16Bits) -> None:
    """Write the queries of all of a part's items, out of `q`, (tokens, num_heads, head_dim) bf16."""
    layout, items = heads.layout, len(part.items)
    slots = packets.view(np.uint16).reshape(-1, 2, layout.num_strips, layout.head_dim, layout.chip.tile_n)
    rows = q[part.tokens, part.heads].reshape(items, part.strips, layout.chip.tile_n, layout.head_dim)
    slots[:items, 1, : part.strips] = rows.transpose(0, 1, 3, 2)


def read_results(
    results: NDArray[np.uint8], heads: AttentionHeads, part: PreparedPart, out: NDArray[np.float32]
) -> None:
    """Copy the results of all of a part's items to their rows of `out`, (tokens, num_heads, head_dim)."""
    layout, items = heads.layout, len(part.items)
    values = results[: part.result_bytes * items].view(np.float32)
    values = values.reshape(items, part.strips, layout.head_dim, layout.chip.tile_n).transpose(0, 1, 3, 2)
    rows = values.reshape(items, part.strips * layout.chip.tile_n, layout.head_dim)
    out[part.tokens[part.used], part.heads[part.used]] = rows[part.used]


def write_tokens(
    cache: Bf16Bits, heads: AttentionHeads, k: Bf16Bits, v: Bf16Bits, slots: NDArray[np.int64]
) -> list[tuple[int, int]]:
    """Write tokens' keys and values into a layer's cache.

    `cache` is all of it, flat; `k` and `v` are (tokens, num_kv_heads, head_dim) bf16, `slots` (tokens) says block *
    block_size + place in the block. Returns what has changed, as (offset, size) in bytes, in order and disjoint.

    Raises:
        ConfigError: shapes that don't fit, or a slot outside of the cache.
    """
    layout = heads.layout
    keys = layout.chunk_keys
    tiles = cache.reshape(heads.num_kv_heads, -1, 2, keys * layout.head_dim)
    num_chunks = tiles.shape[1]
    shape = (len(slots), heads.num_kv_heads, layout.head_dim)
    if k.shape != shape or v.shape != shape:
        raise ConfigError(f"NPU cache: expected keys and values of shape {shape}, got {k.shape} and {v.shape}")
    if not len(slots):
        return []
    if slots.min() < 0 or slots.max() >= num_chunks * keys:
        raise ConfigError(
            f"NPU cache: expected slots from 0 to {num_chunks * keys - 1}, got {slots.min()} to {slots.max()}"
        )
    chunk, key = np.divmod(slots, keys)
    key_tiles = tiles.reshape(heads.num_kv_heads, num_chunks, 2, *layout.key_tile_shape)[:, :, 0]
    key_tiles[:, chunk, key // TILE_M, :, key % TILE_M] = k.reshape(*shape[:2], -1, TILE_DEPTH)
    value_tiles = tiles.reshape(heads.num_kv_heads, num_chunks, 2, *layout.value_tile_shape)[:, :, 1]
    value_tiles[:, chunk, key // TILE_DEPTH, :, :, key % TILE_DEPTH] = v.reshape(*shape[:2], -1, TILE_M)
    return _changed(np.unique(chunk), heads.num_kv_heads, num_chunks)


def _changed(chunks: NDArray[np.int64], num_kv_heads: int, num_chunks: int) -> list[tuple[int, int]]:
    breaks = np.flatnonzero(np.diff(chunks) != 1) + 1
    runs = [(int(run[0]), len(run)) for run in np.split(chunks, breaks)]
    return [
        (SLOT_BYTES * (head * num_chunks + first), SLOT_BYTES * length)
        for head in range(num_kv_heads)
        for first, length in runs
    ]
