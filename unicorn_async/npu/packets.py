"""Moves queries, keys, values and results between their usual layouts and the kernels'. Copies alone, no arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from unicorn_async.errors import ConfigError
from unicorn_async.npu.geometry import CORE_BUFFER_BYTES, PARAMETER_WORDS, TILE_DEPTH, TILE_M
from unicorn_async.npu.schedule import PACKET_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from unicorn_async.npu.part import PreparedPart
    from unicorn_async.npu.work import AttentionHeads, Item

Bf16Bits: TypeAlias = "NDArray[np.uint16]"


def parameters(
    heads: AttentionHeads, items: Sequence[Item], *, strips: Sequence[int], window: int, soft_cap: float
) -> NDArray[np.int32]:
    """Return the parameters of items with so many strips, (items, words): `Parameters` in npu/kernels/tile_shape.h.

    `window` in tokens and `soft_cap`, 0 = none. Rows without a query see nothing.
    """
    layout = heads.layout
    facts = [(item.num_chunks, count, item.base) for item, count in zip(items, strips, strict=True)]
    rows = np.arange(layout.rows, dtype=np.int32)
    used = rows < np.array([item.num_queries * heads.group for item in items])[:, None]
    last = np.where(used, np.array([item.position for item in items], np.int32)[:, None] + rows // heads.group, 0)
    first = np.where(used, np.maximum(0, last + 1 - window) if window else 0, 1)
    bounds = np.stack((first, last), 1).reshape(len(items), 2, layout.num_strips, 1, layout.chip.tile_n)
    lanes = bounds.repeat(TILE_M, axis=3).reshape(len(items), -1)
    words = np.zeros((len(items), PARAMETER_WORDS + lanes.shape[1]), np.int32)
    words[:, :3] = facts
    words[:, 3] = np.float32(soft_cap).view(np.int32)
    words[:, 4] = soft_cap != 0.0
    words[:, PARAMETER_WORDS:] = lanes
    return words


def write_parameters(packets: NDArray[np.uint8], part: PreparedPart) -> None:
    """Write the parameters of all of a part's items; `packets` is (items, 3 buffers) of bytes, flat."""
    items = packets.view(np.int32).reshape(-1, PACKET_BYTES // 4)[part.first : part.first + len(part.items)]
    items[:, : part.parameters.shape[1]] = part.parameters


def write_queries(packets: NDArray[np.uint8], heads: AttentionHeads, part: PreparedPart, q: Bf16Bits) -> None:
    """Write the queries of all of a part's items, out of `q`, (tokens, num_heads, head_dim) bf16."""
    layout, items = heads.layout, len(part.items)
    strips = packets.view(np.uint16).reshape(
        -1, PACKET_BYTES // CORE_BUFFER_BYTES * layout.core_strips, layout.head_dim, layout.chip.tile_n
    )
    rows = q[part.tokens, part.heads].reshape(items, part.strips, layout.chip.tile_n, layout.head_dim)
    first = layout.core_strips  # behind the parameters, which fill a buffer
    strips[:items, first : first + part.strips] = rows.transpose(0, 1, 3, 2)


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
    return changed_ranges(heads, num_chunks, slots)


def changed_ranges(heads: AttentionHeads, num_chunks: int, slots: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return what of a layer's cache changes with these slots, as (offset, size) in bytes, in order and disjoint.

    `num_chunks` are those of a kv head.
    """
    if not len(slots):
        return []
    chunks = np.unique(slots // heads.layout.chunk_keys)
    breaks = np.flatnonzero(np.diff(chunks) != 1) + 1
    runs = [(int(run[0]), len(run)) for run in np.split(chunks, breaks)]
    return [
        (CORE_BUFFER_BYTES * (head * num_chunks + first), CORE_BUFFER_BYTES * length)
        for head in range(heads.num_kv_heads)
        for first, length in runs
    ]
