"""Which kernel multiplies rows with the weights of their experts, and how it is cut. Pure: needs no GPU.

One sort serves all products of a mixture's block, so that the pairs of a tile are the same for all of them. Few share a
read of the weights among lanes, many a tile on matrix units, where the device has them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.ops.grid import split_grid
from unicorn_async.ops.linear_plans.plan import LinearPlan
from unicorn_async.ops.linear_plans.product import Product
from unicorn_async.ops.linear_plans.rules import matrix_tile
from unicorn_async.ops.linear_plans.tiles import coopmat_constants, coopmat_shared_bytes
from unicorn_async.ops.routing import num_tiles
from unicorn_async.ops.rows import RowForm
from unicorn_async.ops.subgroups import (
    asked_subgroup_size,
    halves_subgroups,
    lean_subgroup_size,
    matrix_subgroup_size,
    workgroup_unit,
)
from unicorn_async.tensor import QUANT_BLOCK, DType, QuantFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plans.tiles import TileTuning
    from unicorn_async.tensor import ElementType

VEC_PAIRS = (1, 2, 4, 8)  # of a tile, where lanes read the weights
MATRIX_PAIRS = (16, 32, 64, 128)  # the same on matrix units
# Pairs of an expert on the average from which matrices read the weights, for each expert with 16 or fewer pairs once.
# Lanes read them for each pair or two; where a factor takes twice the registers, they do so in the time of one read.
_MATRIX_AVERAGE, _LEAN_MATRIX_AVERAGE = 0.5, 2.0
_SUMS, _FLOAT_SUMS, _MOST_ROWS = 16, 4, 4  # of a lane, the second of codes that are floats
_SHARING_SUBGROUPS = 8  # at most, of a row
_SOFTWARE_ROWS = 4  # that share a load of the input
_LARGE = (1 << 17, 4096)  # rows and columns


def pairs_of_a_tile(info: DeviceInfo, elements: Sequence[ElementType], num_pairs: int, num_experts: int) -> int:
    """Return how many pairs had better share a read of the weights: as many as an expert has on the average, or more.

    `elements` are the types of all weights that the tiles are multiplied with.
    """
    if _suits_matrices(info, num_pairs / num_experts):
        fitting = [pairs for pairs in MATRIX_PAIRS if all(_matrix_tile(info, element, pairs) for element in elements)]
        if fitting:
            wanted = _matrix_room(info, num_pairs / num_experts)
            return next((pairs for pairs in fitting if wanted <= pairs), fitting[-1])
    wanted = _vec_room(info, num_pairs / num_experts)
    return next((pairs for pairs in VEC_PAIRS if wanted <= pairs), VEC_PAIRS[-1])


def _suits_matrices(info: DeviceInfo, average: float) -> bool:
    return average > _LEAN_MATRIX_AVERAGE if halves_subgroups(info) else average >= _MATRIX_AVERAGE


def _matrix_room(info: DeviceInfo, average: float) -> float:
    """Pairs that a tile of matrix units should have room for, where experts have so many on the average.

    A second tile of an expert makes halves of its weights once more. Where that is most of a tile's time, one standard
    deviation more than the average fits; where a factor takes twice the registers, multiplying is, and empty rows cost.
    """
    return average if halves_subgroups(info) else average + math.sqrt(average)


def _vec_room(info: DeviceInfo, average: float) -> float:
    """The same where lanes read the weights: RDNA's have time for twice the average while these come from memory."""
    return 2 * average if halves_subgroups(info) else average


def expert_form(element: ElementType, tile: int) -> RowForm:
    """The form in which rows of activations are read by tiles of so many pairs."""
    if tile > VEC_PAIRS[-1]:
        return RowForm.HALVES
    return RowForm.BLOCKS if isinstance(element, QuantFormat) else RowForm.FLOATS


def blocks_outputs(elements: Sequence[ElementType], tile: int, n: int) -> bool:
    """Whether outputs had better be left in blocks of int8, for weights of the second of two types.

    The large workgroups that this takes have as many rows under way as small ones where each pair has its own.
    """
    return tile == 1 and n % QUANT_BLOCK == 0 and all(isinstance(element, QuantFormat) for element in elements)


def sums_outputs(element: ElementType, num_tokens: int, num_pairs: int, num_experts: int) -> bool:
    """Whether what a token's experts leave had better be added up by who multiplies, token by token.

    Weights are read once for each token then, of which no more than an eighth are those that another token reads.
    """
    return isinstance(element, QuantFormat) and (num_tokens == 1 or 4 * num_pairs <= num_experts)


def plan_experts(
    info: DeviceInfo,
    element: ElementType,
    *,
    tile: int,
    num_pairs: int,
    num_experts: int,
    n: int,
    gated: bool,
    blocked: bool = False,
) -> LinearPlan | None:
    """The kernel that gives each pair `n` outputs, half as many as it reads rows where they are `gated`.

    None where the device has no kernel for tiles of so many pairs, or none that leaves its outputs `blocked`.
    """
    tiles = num_tiles(num_pairs, num_experts, tile)
    form = expert_form(element, tile)
    product = _product(element, tile)
    name = product.weights
    kind = "expert_quant" if isinstance(element, QuantFormat) else "expert"
    if tile in VEC_PAIRS and (form is RowForm.BLOCKS or not blocked):
        rows = max(2, min(_MOST_ROWS, (_FLOAT_SUMS if product.has_float_codes else _SUMS) // tile))
        constants = {"WORKGROUP": workgroup_unit(info), "ROWS": rows, "PAIRS": tile}
        outputs = rows // 2 if gated else rows
        if blocked:
            subgroups = min(QUANT_BLOCK // outputs, _most_subgroups(info))
            constants |= {"WORKGROUP": subgroups * workgroup_unit(info), "PASSES": QUANT_BLOCK // outputs}
            outputs = QUANT_BLOCK
        grid = (*split_grid(-(-n // outputs)), tiles)
        return LinearPlan(f"{kind}_vec_{name}", tuple(constants.items()), grid, asked_subgroup_size(info), form)
    tuning, lanes = _matrix_tile(info, element, tile), matrix_subgroup_size(info)
    if tuning is None or lanes is None or blocked:
        return None
    constants = coopmat_constants(tuning, lanes)
    grid = (tiles, -(-n // (tuning.tile_n // 2 if gated else tuning.tile_n)), 1)
    wanted = lanes if "subgroup_size_control" in info.features else None
    return LinearPlan(f"{kind}_coopmat_{name}", tuple(constants.items()), grid, wanted, form)


def plan_expert_sum(
    info: DeviceInfo, element: QuantFormat, *, num_tokens: int, num_chosen: int, n: int, k: int
) -> LinearPlan:
    """The kernel that adds up what a token's experts make of their rows.

    As many subgroups share a token's blocks of a row as leaves the fewest lanes without one.
    """
    blocks = num_chosen * k // QUANT_BLOCK
    most = 1 if info.is_software else min(_SHARING_SUBGROUPS, _most_subgroups(info))
    unit = workgroup_unit(info)
    subgroups = min(range(most, 0, -1), key=lambda count: -(-blocks // (unit * count)) * count)
    rows = _SOFTWARE_ROWS if info.is_software else 2
    constants = {
        "WORKGROUP": subgroups * unit,
        "ROWS": rows,
        "K": num_chosen,
        "MAX_SUBGROUPS": -(-subgroups * unit // lean_subgroup_size(info)),
    }
    grid = (*split_grid(-(-n // rows)), num_tokens)
    entry = f"expert_quant_sum_{_product(element, 1).weights}"
    return LinearPlan(entry, tuple(constants.items()), grid, asked_subgroup_size(info), RowForm.BLOCKS)


def _most_subgroups(info: DeviceInfo) -> int:
    return 1 if info.is_software else info.max_workgroup_invocations // workgroup_unit(info)


def _matrix_tile(info: DeviceInfo, element: ElementType, pairs: int) -> TileTuning | None:
    """The tile that a large linear of so many tokens takes; None where none has so many."""
    if pairs not in MATRIX_PAIRS or element is DType.F32 or matrix_subgroup_size(info) is None:
        return None
    tuning = replace(matrix_tile(info, _product(element, pairs)), splits=1)
    fits = coopmat_shared_bytes(tuning) + 4 * pairs <= info.max_shared_memory  # the pairs' numbers are there, too
    return tuning if fits and tuning.tile_t == pairs else None


def _product(element: ElementType, pairs: int) -> Product:
    """Name a linear that keeps a device as busy as all experts together do."""
    return Product.of(element, pairs, *_LARGE)
