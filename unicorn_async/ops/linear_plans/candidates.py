"""The plans that a product may be given on a device: the rules' own, and others that may be found to be faster there.

Every candidate reads its activations in the form that the rules chose, and leaves the same output, so that one may take
another's place without a change around it. Pure: needs no GPU.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from itertools import product as combinations
from typing import TYPE_CHECKING

from unicorn_async.gpu.tuned import Launch
from unicorn_async.ops.linear_plans.few_rows import few_rows_plan, few_rows_tiles
from unicorn_async.ops.linear_plans.held import MAX_HELD, HeldTuning, can_hold, fetches_ahead, held_plan
from unicorn_async.ops.linear_plans.lean_tiles import LEAN_CANDIDATES
from unicorn_async.ops.linear_plans.plan import work_of
from unicorn_async.ops.linear_plans.quant_tiles import (
    FRAGMENT_COLUMNS,
    NARROW_TOKENS,
    FragmentTuning,
    fragment_plan,
)
from unicorn_async.ops.linear_plans.rules import plan_linear
from unicorn_async.ops.linear_plans.tiles import (
    TileTuning,
    coopmat_plan,
    coopmat_shared_bytes,
    many_plan,
    most_splits,
    num_tiles,
)
from unicorn_async.ops.linear_plans.vec import (
    QuantVecTuning,
    VecTuning,
    few_rows_tuning,
    has_few_rows,
    quant_vec_plan,
    software_passes,
    vec_plan,
)
from unicorn_async.ops.rows import RowForm
from unicorn_async.ops.subgroups import NARROW_FEATURE, halves_subgroups, lean_subgroup_size, workgroup_unit
from unicorn_async.tensor import QUANT_BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.tuned import Work
    from unicorn_async.ops.linear_plans.plan import LinearPlan
    from unicorn_async.ops.linear_plans.product import Product
    from unicorn_async.ops.linear_plans.tiles import Tile

_GPU_TOKENS = (1, 2, 4, 8, 16, 32)
_SOFTWARE_TOKENS = (1, 2, 4, 8, 16)
_MAX_SUMS, _MAX_QUANT_SUMS = 64, 32  # of a lane, on GPUs
_MAX_SOFTWARE_SUMS = 64  # more are slow to compile, and leave no registers
_MAX_BLOCKS = 8  # of quantised weights that a lane has under way, where it has two of a row
_MAX_HELD_CODES = 16  # the same for linear_quant_held
_MANY_TILES = ((64, 64, 16, 16), (128, 64, 16, 16), (32, 64, 8, 16))  # tokens and rows; parts along them
_MIN_MANY_TOKENS = 16
_FEW_ROWS_TILES = 6  # of linear_few_rows, those that are expected to be the fastest
# By a tile's tokens: rows, parts along tokens and along rows, columns, buffers.
_COOPMAT_TILES = {
    16: ((64, 1, 4, 64, 2), (64, 1, 4, 128, 1), (32, 1, 2, 128, 1)),
    32: ((64, 1, 4, 64, 2), (64, 1, 4, 128, 1), (128, 1, 4, 128, 1)),
    64: ((64, 2, 2, 64, 1), (64, 1, 4, 64, 1), (128, 1, 4, 64, 1)),
    128: ((128, 2, 2, 64, 1), (128, 2, 2, 32, 1), (64, 2, 2, 64, 1)),
    256: ((64, 4, 1, 64, 1),),
}
_FRAGMENT_SUBGROUPS = ((1, 2), (1, 4), (2, 2))  # along rows and along K
_SPLITS = (2, 4, 8)
_MAX_WORKGROUPS = 2400  # that splits may make


def candidates(info: DeviceInfo, product: Product) -> tuple[LinearPlan, ...]:
    """All plans that the product may be given, the rules' own first; raises as `plan_linear`."""
    rule = plan_linear(info, product)
    plans = (rule, *others(info, product, rule))
    return tuple({plan.pipeline: plan for plan in plans}.values())


def others(info: DeviceInfo, product: Product, rule: LinearPlan) -> Iterator[LinearPlan]:
    """What may take the place of the rules' plan, made one by one; the rules' own may be among them."""
    if rule.form is RowForm.FRAGMENTS:
        return (fragment_plan(info, tuning, product) for tuning in _fragments(info, product))
    if rule.form is RowForm.HALVES:
        return (coopmat_plan(info, tuning, product) for tuning in _coopmat(info, product))
    cuts = _quantised if product.is_quantised else _dense
    if halves_subgroups(info):  # the rules take the small ones
        return chain(cuts(info, product), (plan_linear(replace(info, min_subgroup_size=info.subgroup_size), product),))
    return cuts(info, product)


def choice(info: DeviceInfo, product: Product, plan: LinearPlan) -> tuple[Work, Launch]:
    """The entry of a device's `tuned` that gives a product one of its candidates; raises as `plan_linear`."""
    work = work_of(plan_linear(info, product), product)
    return work, Launch(plan.entry, plan.constants, plan.grid, plan.subgroup_size)


def _dense(info: DeviceInfo, product: Product) -> Iterator[LinearPlan]:
    if product.tokens <= _GPU_TOKENS[-1] or info.is_software:
        for lanes, rows, together in _vec_cuts(info, product, (1, 2, 4, 8), _MAX_SUMS):
            shared = -(-lanes * workgroup_unit(info) // lean_subgroup_size(info)) * rows * together * 4
            if shared <= info.max_shared_memory:
                yield vec_plan(info, VecTuning(together, lanes, rows), product)
    if has_few_rows(product) and product.tokens >= _MIN_MANY_TOKENS and not info.is_software:
        yield from (few_rows_plan(info, tile, product) for tile in few_rows_tiles(info, product)[:_FEW_ROWS_TILES])
        yield vec_plan(info, few_rows_tuning(product), product)
    yield from _many(info, product)


def _quantised(info: DeviceInfo, product: Product) -> Iterator[LinearPlan]:
    if can_hold(info, product):
        yield from (held_plan(info, tuning, product) for tuning in _held(info, product))
    if product.tokens <= _GPU_TOKENS[-1] or info.is_software:
        subgroups = (4, 8) if product.blocked else (1, 4)
        for lanes, rows, together in _vec_cuts(info, product, subgroups, _MAX_QUANT_SUMS):
            for unroll in (1, 2):
                if unroll == 1 or (workgroup_unit(info) * QUANT_BLOCK < product.k and rows * unroll <= _MAX_BLOCKS):
                    passes = software_passes(product.n // rows) if info.is_software else lanes
                    yield quant_vec_plan(info, QuantVecTuning(together, lanes, rows, passes, unroll), product)
    yield from _many(info, product)


def _held(info: DeviceInfo, product: Product) -> Iterator[HeldTuning]:
    """Cuts of linear_quant_held whose blocks of activations and of codes have room in a lane's registers."""
    lanes, rows = lean_subgroup_size(info), (2, 4) if product.gated else (1, 2)
    sizes = (8, 16) if product.blocked else (4, 8)
    for split, subgroups, own, passes in combinations((1, 2, 4, 8), sizes, rows, (1, 3)):
        held = -(-product.k // (QUANT_BLOCK * lanes * split))
        fits = product.tokens * held <= MAX_HELD and own * held <= _MAX_HELD_CODES
        useful = 4 * product.k >= 3 * QUANT_BLOCK * lanes * split * held  # for most of the lanes
        if fits and useful and split <= subgroups and subgroups * lanes <= info.max_workgroup_invocations:
            yield HeldTuning(product.tokens, subgroups, split, own, passes)
            if fetches_ahead(info, product, held):
                yield HeldTuning(product.tokens, subgroups, split, own, passes, ahead=True)


def _vec_cuts(
    info: DeviceInfo, product: Product, subgroups: tuple[int, ...], max_sums: int
) -> Iterator[tuple[int, int, int]]:
    """Subgroups of a workgroup, rows, and tokens that share a read of the weights, for the vec kernels.

    On the CPU a workgroup is one subgroup, and half of the tokens may be better, for they take half of the registers.
    """
    sizes: tuple[int, ...] = _GPU_TOKENS
    rows: tuple[int, ...] = (1, 2, 4, 8)
    if info.is_software:
        sizes, rows, subgroups, max_sums = _SOFTWARE_TOKENS, (2, 4, 8, 16), (1,), _MAX_SOFTWARE_SUMS
    most = next((size for size in sizes if product.tokens <= size), sizes[-1])
    tokens = (most, most // 2) if info.is_software and most > 1 else (most,)
    for lanes, own, together in combinations(subgroups, rows, tokens):
        has_lanes = lanes * workgroup_unit(info) <= info.max_workgroup_invocations
        if own * together <= max_sums and has_lanes and (own > 1 or not product.gated):
            yield lanes, own, together


def _many(info: DeviceInfo, product: Product) -> Iterator[LinearPlan]:
    """Tiles of linear_many and linear_quant_many; on the CPU their barriers cost more than they save."""
    if info.is_software or product.gated:
        return
    for tile_t, tile_n, parts_t, parts_n in _MANY_TILES:
        suits = product.tokens >= max(_MIN_MANY_TOKENS, tile_t // 2)
        if suits and parts_t * parts_n <= info.max_workgroup_invocations:
            yield many_plan(TileTuning(product.tokens, tile_t, tile_n, parts_t, parts_n), product)


def _coopmat(info: DeviceInfo, product: Product) -> Iterator[TileTuning]:
    tokens = product.tokens
    table = LEAN_CANDIDATES if halves_subgroups(info) else _COOPMAT_TILES
    for tile_t, tiles in table.items():
        if tile_t >= 2 * max(tokens, 16) or tile_t < min(tokens, 64):
            continue
        for tile_n, parts_t, parts_n, tile_k, buffers in tiles:
            tile = TileTuning(tokens, tile_t, tile_n, parts_t, parts_n, tile_k, buffers)
            if coopmat_shared_bytes(tile) <= info.max_shared_memory:
                yield from (
                    replace(tile, splits=splits) for splits in _splits(tile, product, product.k // (2 * tile_k))
                )


def _fragments(info: DeviceInfo, product: Product) -> Iterator[FragmentTuning]:
    tokens = product.tokens
    parts_t = 1 if tokens <= 16 else 2 if tokens <= 32 else 4
    narrow = tokens <= NARROW_TOKENS and NARROW_FEATURE in info.features
    size = 8 if narrow else 16
    for parts_n, (along_n, along_k) in combinations((1, 2, 4), _FRAGMENT_SUBGROUPS):
        if parts_t * parts_n <= 8:
            cut = FragmentTuning(tokens, parts_t, parts_n, along_n, along_k, fragment_tokens=size)
            for splits in _splits(cut, product, product.k // (2 * FRAGMENT_COLUMNS * along_k)):
                yield replace(cut, splits=splits)


def _splits(tile: Tile, product: Product, most: int) -> Iterator[int]:
    """Into how many parts K may be cut, `most` at most unless it is one, with room for what they leave each other."""
    room = min(most, _MAX_WORKGROUPS // num_tiles(tile, product), most_splits(tile, product))
    yield 1
    yield from (splits for splits in _SPLITS if splits <= room)
