"""How the matrix kernels cut a product with quantised weights, by how much of a discrete GPU each way would keep busy.

Rules that were found on an H100 and an H200: their room for workgroups stands for that of all discrete GPUs. Others
share their memory with the CPU and have a fraction of that room, so that the largest tiles fill them. Pure: needs no
GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.linear_plans.plan import LinearPlan
from unicorn_async.ops.linear_plans.tiles import TileTuning, coopmat_shared_bytes, most_splits, num_tiles
from unicorn_async.ops.rows import RowForm
from unicorn_async.ops.subgroups import NARROW_FEATURE, matrix_subgroup_size

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plans.product import Product


@dataclass(frozen=True, slots=True)
class FragmentTuning:
    """For up to `tokens` tokens: how linear_quant_fragments is cut.

    A subgroup has `fragments_t` × `fragments_n` matrices of `fragment_tokens` tokens and 16 weight rows; a workgroup
    has `subgroups_n` times these rows, and `subgroups_k` subgroups share K for each. `splits` workgroups share K.
    Matrices of 8 tokens are for devices with NARROW_FEATURE, and one is all that a subgroup has of them along tokens.
    """

    tokens: int
    fragments_t: int
    fragments_n: int
    subgroups_n: int
    subgroups_k: int = 1
    splits: int = 1
    fragment_tokens: int = 16

    @property
    def tile_t(self) -> int:
        """Tokens of a workgroup."""
        return self.fragment_tokens * self.fragments_t

    @property
    def tile_n(self) -> int:
        """Weight rows of a workgroup."""
        return 16 * self.fragments_n * self.subgroups_n

    @property
    def tile_k(self) -> int:
        """Columns that a workgroup takes at a time."""
        return FRAGMENT_COLUMNS * self.subgroups_k


@dataclass(frozen=True, slots=True)
class _CoopmatRule:
    """A tile, for products that give each of the `resident` workgroups that an H200 holds at once `min_steps` or more.

    A step is `tile_k` columns of a tile. Smaller tiles make more workgroups of a product that has too few.
    """

    tile: TileTuning
    resident: int
    min_steps: int = 0

    def serves(self, info: DeviceInfo, product: Product) -> bool:
        """Whether the tile is for this product; its shared memory is another matter."""
        steps = num_tiles(self.tile, product) * -(-product.k // self.tile.tile_k)
        fills = info.type is not DeviceType.DISCRETE or steps >= self.min_steps * self.resident
        return product.tokens <= self.tile.tokens and fills


@dataclass(frozen=True, slots=True)
class _FragmentRules:
    """The cuts for up to as many tokens by shape; where K may be cut, with how many workgroups an H200 has at once."""

    head: FragmentTuning  # as many rows as a large vocabulary
    many_rows: FragmentTuning
    plain_many_rows: FragmentTuning  # of codes that are multiplied as they are
    little_work: tuple[FragmentTuning, int]
    long_rows: tuple[FragmentTuning, int]
    others: tuple[FragmentTuning, int]


FRAGMENT_COLUMNS = 128
NARROW_TOKENS = 8  # that matrices of 8 take
MAX_FRAGMENT_TOKENS = 128  # in two tiles; more share what shared memory holds
_TILE_TOKENS = 64  # of the largest tile
_ANY = 1 << 30
_COOPMAT = (  # the first that serves a product and fits the device
    _CoopmatRule(TileTuning(16, tile_t=16, tile_n=64, parts_t=1, parts_n=4, tile_k=64), 528),
    _CoopmatRule(TileTuning(32, tile_t=32, tile_n=128, parts_t=1, parts_n=4, tile_k=128, buffers=1), 264),
    _CoopmatRule(TileTuning(32, tile_t=32, tile_n=64, parts_t=1, parts_n=4, tile_k=64), 396),
    _CoopmatRule(TileTuning(64, tile_t=64, tile_n=128, parts_t=1, parts_n=4, tile_k=64, buffers=1), 264),
    _CoopmatRule(TileTuning(128, tile_t=128, tile_n=128, parts_t=2, parts_n=2, tile_k=64, buffers=1), 264, 7),
    # Two tiles of 128 tokens would be a quarter empty.
    _CoopmatRule(TileTuning(192, tile_t=64, tile_n=128, parts_t=1, parts_n=4, tile_k=64, buffers=1), 396, 7),
    _CoopmatRule(TileTuning(_ANY, tile_t=128, tile_n=128, parts_t=2, parts_n=2, tile_k=64, buffers=1), 264, 7),
    _CoopmatRule(TileTuning(384, tile_t=64, tile_n=64, parts_t=2, parts_n=2, tile_k=64, buffers=1), 528),
    _CoopmatRule(TileTuning(_ANY, tile_t=128, tile_n=64, parts_t=2, parts_n=2, tile_k=64, buffers=1), 264, 10),
    _CoopmatRule(TileTuning(_ANY, tile_t=64, tile_n=64, parts_t=2, parts_n=2, tile_k=64, buffers=1), 528),
)
# Codes whose scales have to be unpacked take long to become halves: twice the tokens share that where tiles are many.
_SHARED = _CoopmatRule(TileTuning(_ANY, tile_t=256, tile_n=64, parts_t=4, parts_n=1, tile_k=64, buffers=1), 264)
_SHARED_LAYOUTS = ("q4_k",)
_MIN_SHARED_ROWS, _MIN_SHARED_TOKENS = 16_384, 512
_NARROW = _FragmentRules(
    head=FragmentTuning(NARROW_TOKENS, 1, 1, 1, 4, fragment_tokens=8),
    many_rows=FragmentTuning(NARROW_TOKENS, 1, 1, 1, 4, fragment_tokens=8),
    plain_many_rows=FragmentTuning(NARROW_TOKENS, 1, 2, 1, 2, fragment_tokens=8),
    little_work=(FragmentTuning(NARROW_TOKENS, 1, 1, 1, 4, fragment_tokens=8), 528),
    long_rows=(FragmentTuning(NARROW_TOKENS, 1, 1, 1, 4, fragment_tokens=8), 1056),
    others=(FragmentTuning(NARROW_TOKENS, 1, 1, 1, 4, fragment_tokens=8), 1056),
)
_FRAGMENTS = (
    _FragmentRules(
        head=FragmentTuning(16, 1, 2, 2, 2),
        many_rows=FragmentTuning(16, 1, 1, 1, 4),
        plain_many_rows=FragmentTuning(16, 1, 4, 1, 2),
        little_work=(FragmentTuning(16, 1, 1, 1, 4), 528),
        long_rows=(FragmentTuning(16, 1, 1, 2, 2), 1056),
        others=(FragmentTuning(16, 1, 1, 2, 2), 1056),
    ),
    _FragmentRules(
        head=FragmentTuning(32, 2, 2, 1, 4),
        many_rows=FragmentTuning(32, 2, 2, 1, 4),
        plain_many_rows=FragmentTuning(32, 2, 2, 1, 4),
        little_work=(FragmentTuning(32, 2, 1, 1, 4), 528),
        long_rows=(FragmentTuning(32, 2, 2, 1, 4), 396),
        others=(FragmentTuning(32, 2, 2, 1, 4), 396),
    ),
    _FragmentRules(
        head=FragmentTuning(_TILE_TOKENS, 4, 1, 1, 2),
        many_rows=FragmentTuning(_TILE_TOKENS, 4, 1, 1, 2),
        plain_many_rows=FragmentTuning(_TILE_TOKENS, 4, 2, 1, 4),
        little_work=(FragmentTuning(_TILE_TOKENS, 4, 1, 1, 4), 528),
        long_rows=(FragmentTuning(_TILE_TOKENS, 4, 1, 2, 2), 528),
        others=(FragmentTuning(_TILE_TOKENS, 4, 1, 1, 4), 528),
    ),
)
_PLAIN, _PLAIN_RESIDENT = ("q4", "q8"), 528  # layouts of such codes
_HEAD_ROWS = 196_608
_MANY_ROWS = 16_384
_LONG_ROWS = 8_192
_LITTLE_WORK = 792  # pieces of 16 rows and 1024 columns: one for each workgroup that fits at once
_MAX_SPLITS = 8
_ENDS, _SPLIT_SUM = 4.5, 0.5  # steps along K that take as long as a workgroup's start and end, and as a split's sums


def quant_coopmat_tuning(info: DeviceInfo, product: Product) -> TileTuning:
    """The tile of linear_quant_coopmat for a product, and into how many parts K is cut."""
    rules = (_SHARED, *_COOPMAT) if _shares_codes(info, product) else _COOPMAT
    fitting = [rule for rule in rules if coopmat_shared_bytes(rule.tile) <= info.max_shared_memory]
    rule = next((rule for rule in fitting if rule.serves(info, product)), fitting[-1])
    return replace(rule.tile, splits=_splits(info, rule.tile, rule.resident, product))


def _shares_codes(info: DeviceInfo, product: Product) -> bool:
    """Whether 256 tokens share what becomes of codes: on an H100 that saves 4 to 11%, and loses where rows are few."""
    is_many = product.n >= _MIN_SHARED_ROWS and product.tokens % _SHARED.tile.tile_t == 0
    is_large = is_many and product.tokens >= _MIN_SHARED_TOKENS
    return is_large and product.weights in _SHARED_LAYOUTS and info.type is DeviceType.DISCRETE


def fragment_tuning(info: DeviceInfo, product: Product) -> FragmentTuning:
    """The same for linear_quant_fragments, which takes up to MAX_FRAGMENT_TOKENS tokens."""
    tokens, n, k = product.tokens, product.n, product.k
    if tokens <= NARROW_TOKENS and NARROW_FEATURE in info.features:
        rules = _NARROW
    else:
        rules = next((rules for rules in _FRAGMENTS if tokens <= rules.others[0].tokens), _FRAGMENTS[-1])
    is_discrete = info.type is DeviceType.DISCRETE
    if n >= _MANY_ROWS:
        many = rules.plain_many_rows if product.weights in _PLAIN else rules.many_rows
        return rules.head if n >= _HEAD_ROWS and is_discrete else many
    if is_discrete and -(-n // 16) * (k // 1024) < _LITTLE_WORK:
        tuning, resident = rules.little_work
    else:
        tuning, resident = rules.long_rows if k >= _LONG_ROWS else rules.others
        if product.weights in _PLAIN:  # whose steps along K are short
            resident = max(resident, _PLAIN_RESIDENT)
    return replace(tuning, splits=_splits(info, tuning, resident, product))


def fragment_plan(info: DeviceInfo, tuning: FragmentTuning, product: Product) -> LinearPlan:
    """linear_quant_fragments with the given tuning; the device must have FRAGMENTS_FEATURE."""
    subgroup_size = matrix_subgroup_size(info)
    assert subgroup_size is not None
    constants = {
        "WORKGROUP": subgroup_size * tuning.subgroups_n * tuning.subgroups_k,
        "FRAGMENTS_T": tuning.fragments_t,
        "FRAGMENTS_N": tuning.fragments_n,
        "SUBGROUPS_N": tuning.subgroups_n,
        "SUBGROUPS_K": tuning.subgroups_k,
        "SPLITS": tuning.splits,
        "FRAGMENT_TOKENS": tuning.fragment_tokens,
    }
    wanted = subgroup_size if "subgroup_size_control" in info.features else None
    grid = (-(-product.tokens // tuning.tile_t), -(-product.n // tuning.tile_n), tuning.splits)
    entry = f"linear_quant_fragments_{product.weights}"
    return LinearPlan(entry, tuple(constants.items()), grid, wanted, RowForm.FRAGMENTS)


def _splits(info: DeviceInfo, tile: TileTuning | FragmentTuning, resident: int, product: Product) -> int:
    """Into how many parts to cut K, each of two steps at least, so that a device that holds so many is done first."""
    if info.type is not DeviceType.DISCRETE:
        return 1
    most = min(_MAX_SPLITS, product.k // (2 * tile.tile_k), most_splits(tile, product))
    if most < 2:
        return 1
    tiles, steps = num_tiles(tile, product), -(-product.k // tile.tile_k)
    return min(range(1, most + 1), key=lambda splits: _duration(tiles, steps, splits, resident))


def _duration(tiles: int, steps: int, splits: int, resident: int) -> float:
    """How long all workgroups take, `resident` of them at a time, in units of a step."""
    sums = _SPLIT_SUM * splits if splits > 1 else 0.0
    return -(-tiles * splits // resident) * (-(-steps // splits) + _ENDS + sums)
