"""How the matrix kernels are cut where a factor takes twice the registers, and workgroups share few units. Pure.

Rules for devices with `halves_subgroups`, found by what RADV's compiler makes of the kernels for RDNA3: no tile keeps
anything outside of registers, all leave room for four subgroups on each of a compute unit's two SIMDs, of 1,024
registers for 32 lanes, and two workgroups fit into the 64 KiB of a compute unit's shared memory. A prompt is bound by
instructions: its tile has as many lanes as blocks of weights to stage, and four subgroups that share what they load.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.linear_plans.tiles import TileTuning, most_splits, num_tiles

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plans.product import Product

_ANY = 1 << 30
# For up to as many tokens: the tile, and the one for products that make fewer of it than the device has compute units.
_TILES = (
    (TileTuning(16, 16, 64, 1, 4, 64, 1), TileTuning(16, 16, 64, 1, 4, 64, 1)),
    (TileTuning(32, 32, 128, 1, 8, 64, 1), TileTuning(32, 32, 64, 1, 4, 64, 1)),
    (TileTuning(64, 64, 128, 1, 8, 64, 1), TileTuning(64, 64, 64, 2, 2, 64, 1)),
    (TileTuning(_ANY, 128, 128, 2, 2, 32, 1), TileTuning(_ANY, 64, 64, 2, 2, 64, 1)),
)
# What else may be found to be faster, by a tile's tokens: rows, parts along tokens and along rows, columns, buffers.
LEAN_CANDIDATES = {
    16: ((64, 1, 4, 32, 1), (128, 1, 8, 64, 1), (64, 1, 4, 128, 1)),
    32: ((128, 1, 8, 64, 1), (64, 1, 4, 64, 1), (128, 2, 2, 32, 1)),
    64: ((128, 1, 8, 64, 1), (64, 2, 2, 64, 1), (256, 4, 2, 32, 1)),
    128: ((128, 2, 2, 32, 1), (128, 4, 2, 32, 1), (64, 2, 2, 64, 1)),
}
_SUBGROUPS = 8  # of a compute unit that has enough to do
_MAX_SPLITS = 8
_INTEGRATED_UNITS, _OTHER_UNITS = 12, 60  # of a device whose driver does not say


def lean_tuning(info: DeviceInfo, product: Product) -> TileTuning:
    """The tile of a coopmat kernel for a product, with K cut among workgroups where they are too few otherwise."""
    units = compute_units(info)
    large, small = next(pair for pair in _TILES if product.tokens <= pair[0].tokens)
    tile = large if num_tiles(large, product) >= units else small
    wanted = units * _SUBGROUPS // (tile.parts_t * tile.parts_n)
    most = min(_MAX_SPLITS, product.k // (2 * tile.tile_k), most_splits(tile, product))
    return replace(tile, splits=max(1, min(most, wanted // num_tiles(tile, product))))


def compute_units(info: DeviceInfo) -> int:
    """How many a device has, or may be taken to have."""
    return info.compute_units or (_INTEGRATED_UNITS if info.type is DeviceType.INTEGRATED else _OTHER_UNITS)
