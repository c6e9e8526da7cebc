"""What a step's attention reads and multiplies in each layer, and what that takes a slow device. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.ops.kv_cache import head_nbytes
from unicorn_async.ops.linear_plans.lean_tiles import compute_units

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.kv_cache import AttentionShape
    from unicorn_async.scheduler.batch import Batch

_TILE = 16  # queries of a prompt's part that cost as much as fewer
# What attention reaches at least for each of a device's compute units: a quarter of a unit's share of a Radeon 780M's
# memory, and less than half of what the code for it allows by its instructions where a driver knows no matrices.
_UNIT_BYTES_PER_S, _UNIT_MACS_PER_S = 2e9, 0.025e12


class AttentionSeconds(NamedTuple):
    """What attention takes at the least rates of a device: of single tokens by bytes, of prompts by multiply-adds."""

    decode: float
    prefill: float


class LayerCost(NamedTuple):
    """One layer's attention: seconds for each key that a decode sees, and for each pair of a prompt's query and key."""

    window: int  # 0 = all
    key_s: float
    pair_s: float

    @classmethod
    def of(cls, info: DeviceInfo, shape: AttentionShape, window: int) -> LayerCost:
        """Estimate them from what a device says of itself."""
        units = compute_units(info)
        key_bytes = 2 * shape.num_kv_heads * head_nbytes(shape.head_dim, shape.kv_dtype)
        pair_macs = 2 * shape.num_heads * shape.head_dim
        return cls(window, key_bytes / (units * _UNIT_BYTES_PER_S), pair_macs / (units * _UNIT_MACS_PER_S))


class AttentionLoad(NamedTuple):
    """What a step's queries see: keys of `decodes` single tokens, and pairs of `queries` of prompts with keys."""

    decodes: int
    keys: int
    queries: int
    pairs: int

    @classmethod
    def of(cls, batch: Batch) -> AttentionLoad:
        """Count it, windows left aside; few queries count as a tile of them."""
        decodes = keys = queries = pairs = 0
        if batch.decodes_only:  # as most are
            decodes = len(batch.scheduled)
            return cls(decodes, sum([item.start for item in batch.scheduled]) + decodes, 0, 0)
        for _, start, count, *_ in batch.scheduled:
            if count == 1:
                decodes += 1
                keys += start + 1
            else:
                tile = max(count, _TILE)
                queries += tile
                pairs += tile * (start + count)
        return cls(decodes, keys, queries, pairs)

    def seconds(self, cost: LayerCost) -> AttentionSeconds:
        """Return what a layer takes for it at most; sequences share a window as if all were as long."""
        decodes, keys, queries, pairs = self
        window, key_s, pair_s = cost
        if window:
            keys = min(keys, decodes * window)
            pairs = min(pairs, queries * (window + _TILE))  # a tile reads what any of its queries sees
        return AttentionSeconds(keys * key_s, pairs * pair_s)
