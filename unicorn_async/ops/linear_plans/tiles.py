"""Kernels whose workgroups make tiles: how these are cut, and K with them. Pure: needs no GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.linear_plans.plan import LinearPlan
from unicorn_async.ops.linear_scratch import MAX_PARTIALS
from unicorn_async.ops.rows import MAX_SPLIT_TILES, RowForm
from unicorn_async.ops.subgroups import matrix_subgroup_size

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plans.product import Product

_MATRIX_SIDE = 16
_PADDING_HALVES = 8  # of a staged tile's row in the coopmat kernels


@dataclass(frozen=True, slots=True)
class TileTuning:
    """For up to `tokens` tokens: a workgroup's tile, and how many parts it has along tokens and rows.

    The parts are lanes in linear_many, linear_few_rows and linear_quant_many, each with `tile / parts` elements, and
    subgroups in the coopmat kernels, which alone stage `buffers` tiles of `tile_k` columns and cut K among `splits`
    workgroups.
    """

    tokens: int
    tile_t: int
    tile_n: int
    parts_t: int
    parts_n: int
    tile_k: int = 16
    buffers: int = 2
    splits: int = 1


class Tile(Protocol):
    """What one workgroup of a matrix kernel makes, and how many of them share K."""

    @property
    def tile_t(self) -> int:
        """Tokens."""

    @property
    def tile_n(self) -> int:
        """Rows of weights."""

    @property
    def splits(self) -> int:
        """Workgroups that share K."""


_ANY = 1 << 30
MANY = TileTuning(_ANY, tile_t=64, tile_n=64, parts_t=16, parts_n=16)
MANY_FLOATS = TileTuning(_ANY, tile_t=32, tile_n=32, parts_t=16, parts_n=16)  # for codes that are floats
# With how many workgroups an H200 holds at once: K is cut so that they nearly fill the device a few times.
_COOPMAT = (
    (TileTuning(16, tile_t=16, tile_n=64, parts_t=1, parts_n=4, tile_k=128, buffers=1), 528),
    (TileTuning(32, tile_t=32, tile_n=64, parts_t=1, parts_n=4, tile_k=128, buffers=1), 396),
    (TileTuning(64, tile_t=64, tile_n=64, parts_t=2, parts_n=2, tile_k=64, buffers=1), 528),
    (TileTuning(_ANY, tile_t=128, tile_n=128, parts_t=2, parts_n=2, tile_k=64, buffers=1), 264),
)
_MAX_SPLITS = 8
_SPLIT_COST = 0.03  # of a split, in shares of the device that it leaves idle


def many_plan(tuning: TileTuning, product: Product) -> LinearPlan:
    """linear_many or linear_quant_many with the given tuning."""
    constants = {
        "WORKGROUP": tuning.parts_t * tuning.parts_n,
        "TILE_T": tuning.tile_t,
        "TILE_N": tuning.tile_n,
        "LANE_T": tuning.tile_t // tuning.parts_t,
        "LANE_N": tuning.tile_n // tuning.parts_n,
    }
    grid = (-(-product.tokens // tuning.tile_t), -(-product.n // tuning.tile_n), 1)
    kernel, form = ("quant_many", RowForm.BLOCKS) if product.is_quantised else ("many", RowForm.FLOATS)
    return LinearPlan(f"linear_{kernel}_{product.weights}", tuple(constants.items()), grid, form=form)


def coopmat_plan(info: DeviceInfo, tuning: TileTuning, product: Product) -> LinearPlan:
    """linear_many_coopmat or linear_quant_coopmat with the given tuning; the device has a `matrix_subgroup_size`."""
    subgroup_size = matrix_subgroup_size(info)
    assert subgroup_size is not None
    constants = coopmat_constants(tuning, subgroup_size) | {"SPLITS": tuning.splits}
    wanted = subgroup_size if "subgroup_size_control" in info.features else None
    grid = (-(-product.tokens // tuning.tile_t), -(-product.n // tuning.tile_n), tuning.splits)
    kernel = "quant_coopmat" if product.is_quantised else "many_coopmat"
    return LinearPlan(f"linear_{kernel}_{product.weights}", tuple(constants.items()), grid, wanted, RowForm.HALVES)


def coopmat_constants(tuning: TileTuning, subgroup_size: int) -> dict[str, int]:
    """The constants by which shaders/coopmat/tiles.glsl is cut."""
    staged_rows = tuning.buffers * tuning.tile_n * (tuning.tile_k + _PADDING_HALVES) * 2
    assert staged_rows >= tuning.parts_t * tuning.parts_n * _MATRIX_SIDE**2 * 4, f"{tuning}: no room for the sums"
    return {
        "WORKGROUP": subgroup_size * tuning.parts_t * tuning.parts_n,
        "TILE_T": tuning.tile_t,
        "TILE_N": tuning.tile_n,
        "TILE_K": tuning.tile_k,
        "SUBGROUPS_T": tuning.parts_t,
        "SUBGROUPS_N": tuning.parts_n,
        "BUFFERS": tuning.buffers,
    }


def coopmat_tuning(info: DeviceInfo, product: Product) -> TileTuning:
    """The tile of linear_many_coopmat for so many tokens that fits the device, with K cut so that they fill it."""
    fitting = [(tile, resident) for tile, resident in _COOPMAT if coopmat_shared_bytes(tile) <= info.max_shared_memory]
    tile, resident = next((pair for pair in fitting if product.tokens <= pair[0].tokens), fitting[-1])
    return replace(tile, splits=_splits(info, tile, product, resident))


def coopmat_shared_bytes(tuning: TileTuning) -> int:
    """Shared memory of a coopmat kernel's workgroup: staged tiles of both factors, and a flag."""
    return tuning.buffers * (tuning.tile_t + tuning.tile_n) * (tuning.tile_k + _PADDING_HALVES) * 2 + 4


def most_splits(tile: Tile, product: Product) -> int:
    """Into how many parts K may be cut, so that a scratch has room for what workgroups leave for each other."""
    tiles = num_tiles(tile, product)
    return max(1, MAX_PARTIALS // (tiles * tile.tile_t * tile.tile_n)) if tiles <= MAX_SPLIT_TILES else 1


def num_tiles(tile: Tile, product: Product) -> int:
    """Of the whole output."""
    return -(-product.tokens // tile.tile_t) * -(-product.n // tile.tile_n)


def _splits(info: DeviceInfo, tile: TileTuning, product: Product, resident: int) -> int:
    """Into how many parts to cut K, each of two steps at least, to fill a device that holds so many workgroups."""
    if info.type is not DeviceType.DISCRETE:
        return 1
    most = min(_MAX_SPLITS, product.k // (2 * tile.tile_k), most_splits(tile, product))
    if most < 2:
        return 1
    tiles = num_tiles(tile, product)
    return max(range(1, most + 1), key=lambda splits: _fill(tiles * splits, splits, resident))


def _fill(workgroups: int, splits: int, resident: int) -> float:
    """How much of the device the workgroups use on the average, less what splits cost."""
    return workgroups / (-(-workgroups // resident) * resident) - _SPLIT_COST * (splits - 1)
