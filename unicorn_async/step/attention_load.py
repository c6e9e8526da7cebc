"""What a step's attention reads and multiplies in each layer, and what that takes a slow device. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.ops.linear_plans.lean_tiles import compute_units

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.kv_cache import AttentionShape
    from unicorn_async.scheduler.batch import Batch

_FAR = 8  # windows
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
        pair_macs = shape.num_heads * (shape.head_dim + shape.value_dim)
        return cls(window, shape.token_nbytes / (units * _UNIT_BYTES_PER_S), pair_macs / (units * _UNIT_MACS_PER_S))


class AttentionLoad(NamedTuple):
    """What a step's queries see: keys of `decodes` single tokens, and pairs of `queries` of prompts with keys.

    Of a prompt's part few queries cost as much as a tile, or as little as they are: that depends on the device. In
    `queries` and `pairs` they count as a tile, in `least_queries` and `least_pairs` as they are.
    """

    decodes: int
    keys: int
    queries: int
    pairs: int
    least_queries: int
    least_pairs: int

    @classmethod
    def of(cls, batch: Batch) -> AttentionLoad:
        """Count it, windows left aside."""
        decodes = keys = queries = pairs = least_queries = least_pairs = 0
        if batch.decodes_only:  # as most are
            decodes = len(batch.scheduled)
            return cls(decodes, sum([item.start for item in batch.scheduled]) + decodes, 0, 0, 0, 0)
        for _, start, count, *_ in batch.scheduled:
            if count == 1:
                decodes += 1
                keys += start + 1
            else:
                tile = max(count, _TILE)
                queries += tile
                pairs += tile * (start + count)
                least_queries += count
                least_pairs += count * start + count * count // 2
        return cls(decodes, keys, queries, pairs, least_queries, least_pairs)

    def seconds(self, cost: LayerCost) -> AttentionSeconds:
        """Return what a layer takes for it at most; sequences share a window as if all were as long."""
        pairs = self.pairs
        if cost.window:  # a tile reads what any of its queries sees
            pairs = min(pairs, self.queries * (cost.window + _TILE))
        return AttentionSeconds(self._keys(cost) * cost.key_s, pairs * cost.pair_s)

    def least_seconds(self, cost: LayerCost) -> AttentionSeconds:
        """The same at least."""
        pairs, most = self.least_pairs, self.least_queries * cost.window
        if cost.window:  # a part's first queries may see less than a window, where not nearly all is far behind one
            pairs = min(pairs, most if pairs > _FAR * most else most // 2)
        return AttentionSeconds(self._keys(cost) * cost.key_s, pairs * cost.pair_s)

    def _keys(self, cost: LayerCost) -> int:
        return min(self.keys, self.decodes * cost.window) if cost.window else self.keys
