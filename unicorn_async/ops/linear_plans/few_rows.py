"""How linear_few_rows is cut: products in single precision of many tokens with few rows, such as a router's. Pure.

Of its tiles the rules take the one that leaves least to do to the compute unit that has most: the 257 rows of a router
and a shared expert's gate make no whole number of the tiles that suit 256.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.ops.linear_plans.lean_tiles import compute_units
from unicorn_async.ops.linear_plans.plan import LinearPlan
from unicorn_async.ops.linear_plans.tiles import TileTuning, num_tiles
from unicorn_async.ops.subgroups import asked_subgroup_size, halves_subgroups, lean_subgroup_size, matrix_subgroup_size

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plans.product import Product

_ANY = 1 << 30
_LANES_N = 8  # that share what is read of a token: neighbouring rows of weights lie in as many banks
# Tokens of a tile, and those of a lane; with 2 to 9 rows a lane.
_TILES = tuple(
    TileTuning(_ANY, tile_t, lane_n * _LANES_N, tile_t // lane_t, _LANES_N)
    for tile_t, lane_t in ((16, 4), (32, 8), (64, 8))
    for lane_n in range(2, 10)
)
# Multiply-adds that a compute unit has time for while it stages an element, and while all lanes read one back.
_STAGED, _READ = 8, 3
_MAX_LANES, _MAX_LANES_OF_MANY_SUMS, _MANY_SUMS = 512, 256, 40
_MAX_SUBGROUPS = 32  # of a workgroup: some devices of small subgroups have room for no more
_LEAN_SUMS = 48  # of a lane that has 144 registers
_MAX_LOADS = 8  # vec4s that a lane has under way
_MIN_COLUMNS, _MAX_COLUMNS = 32, 256
_SHARED_BYTES, _LEAN_SHARED_BYTES = 48 << 10, 32 << 10  # of a workgroup; the latter where two share 64 KiB
_VECTOR, _VECTOR_BYTES = 4, 16


def few_rows_tile(info: DeviceInfo, product: Product) -> TileTuning:
    """The tile of linear_few_rows for a product."""
    return few_rows_tiles(info, product)[0]


def few_rows_tiles(info: DeviceInfo, product: Product) -> list[TileTuning]:
    """All its tiles, the one that the rules choose first, then by what they are expected to take."""
    units, room = compute_units(info), _room(info)
    few_registers = halves_subgroups(info) and matrix_subgroup_size(info) is None  # as RDNA's older drivers give a lane
    fitting = (
        tile
        for tile in _TILES
        if _staged_bytes(tile, _MIN_COLUMNS) <= room and (_sums(tile) <= _LEAN_SUMS or not few_registers)
    )
    return sorted(fitting, key=lambda tile: -(-num_tiles(tile, product) // units) * _work(tile))


def few_rows_plan(info: DeviceInfo, tuning: TileTuning, product: Product) -> LinearPlan:
    """linear_few_rows with the given tuning: as many groups of lanes share K, and as much of it is staged, as fits."""
    lanes = tuning.parts_t * tuning.parts_n
    most = _MAX_LANES if _sums(tuning) <= _MANY_SUMS else _MAX_LANES_OF_MANY_SUMS
    most = min(most, info.max_workgroup_invocations, _MAX_SUBGROUPS * lean_subgroup_size(info))
    room, parts = _room(info), 1
    while 2 * parts * lanes <= most and parts * lanes * -(-_sums(tuning) // _VECTOR) * _VECTOR_BYTES <= room:
        parts *= 2
    columns = max(_MIN_COLUMNS, parts * _VECTOR)
    while columns < min(product.k, _MAX_COLUMNS) and _can_stage(tuning, 2 * columns, parts * lanes, room):
        columns *= 2
    constants = {
        "WORKGROUP": parts * lanes,
        "TILE_T": tuning.tile_t,
        "TILE_N": tuning.tile_n,
        "LANE_T": tuning.tile_t // tuning.parts_t,
        "LANE_N": tuning.tile_n // tuning.parts_n,
        "PARTS": parts,
        "TILE_K": columns,
    }
    grid = (-(-product.tokens // tuning.tile_t), -(-product.n // tuning.tile_n), 1)
    entry = f"linear_few_rows_{product.weights}"
    return LinearPlan(entry, tuple(constants.items()), grid, asked_subgroup_size(info))


def _sums(tile: TileTuning) -> int:
    """Of a lane."""
    return tile.tile_t * tile.tile_n // (tile.parts_t * tile.parts_n)


def _work(tile: TileTuning) -> int:
    """What a compute unit does of a tile for each of its columns, in multiply-adds."""
    lane = tile.tile_t // tile.parts_t + tile.tile_n // tile.parts_n
    reads = _READ * lane * tile.parts_t * tile.parts_n
    return max(tile.tile_t * tile.tile_n, reads) + _STAGED * (tile.tile_t + tile.tile_n)


def _room(info: DeviceInfo) -> int:
    """Shared memory of a workgroup, at most."""
    return min(info.max_shared_memory, _LEAN_SHARED_BYTES if halves_subgroups(info) else _SHARED_BYTES)


def _staged_bytes(tile: TileTuning, columns: int) -> int:
    return (tile.tile_t + tile.tile_n) * (columns // _VECTOR + 1) * _VECTOR_BYTES


def _can_stage(tile: TileTuning, columns: int, lanes: int, room: int) -> bool:
    loads = (tile.tile_t + tile.tile_n) * columns // _VECTOR
    return _staged_bytes(tile, columns) <= room and loads <= _MAX_LOADS * lanes
