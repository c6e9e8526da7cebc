"""How linear_quant_held is cut: the kernel for quantised weights and one or two tokens on GPUs. Pure: needs no GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.ops.grid import split_grid
from unicorn_async.ops.linear_plans.plan import LinearPlan
from unicorn_async.ops.linear_plans.vec import whole_blocks
from unicorn_async.ops.rows import RowForm
from unicorn_async.ops.subgroups import asked_subgroup_size, halves_subgroups, lean_subgroup_size
from unicorn_async.tensor import QUANT_BLOCK

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plans.product import Product

MAX_HELD = 8  # blocks of activations in a lane's registers, ten of which each takes, over all tokens
MAX_HELD_TOKENS = 2
_HELD = 4  # blocks of a token and lane, at most
_LEAN_HELD = 2  # the same of two tokens, or fetched ahead, where a lane has 128 registers at best
_SPLITS = (8, 4, 2, 1)
_SUBGROUPS, _SHARING_SUBGROUPS = 4, 8  # of a workgroup, the latter where four subgroups or more share a row
_BLOCKED_SUBGROUPS = 16  # of a workgroup that leaves its output in blocks, and so has many rows
_WORKGROUPS = 800  # twice what an H200 has under way of them; where there are more, each makes several passes
_MAX_PASSES = 3


@dataclass(frozen=True, slots=True)
class HeldTuning:
    """For `tokens` tokens: a workgroup has `subgroups` subgroups, of which `split` share a row.

    These take `rows` weight rows at a time, `passes` times; with `ahead` they fetch those of the next pass meanwhile.
    """

    tokens: int
    subgroups: int
    split: int
    rows: int
    passes: int = 1
    ahead: bool = False


def can_hold(info: DeviceInfo, product: Product) -> bool:
    """Whether lanes have room for a product's input, and are as many in a subgroup as the kernel is told.

    On the CPU registers are few, and a barrier is dear.
    """
    if info.is_software or product.tokens > MAX_HELD_TOKENS:
        return False
    fixed = "subgroup_size_control" in info.features or info.min_subgroup_size == info.max_subgroup_size
    return fixed and _held(info, product, max(_splits(info))) <= _most_held(info, product)


def pays_to_hold(info: DeviceInfo, product: Product) -> bool:
    """Whether it had better be this kernel, where `can_hold` allows it.

    With two tokens linear_quant_vec is faster on NVIDIA's, by a tenth to a quarter; lanes of RDNA hold less of it.
    """
    return product.tokens == 1 or halves_subgroups(info)


def fetches_ahead(info: DeviceInfo, product: Product, held: int) -> bool:
    """Whether fetching a pass ahead pays, for twice the registers: with eight bits a code, where passes are long.

    Codes that are floats have no registers left for it.
    """
    pays = product.tokens == 1 and held > 1 and product.quant_bytes == QUANT_BLOCK and not product.has_float_codes
    return pays and (held <= _LEAN_HELD or not halves_subgroups(info))


def held_tuning(info: DeviceInfo, product: Product) -> HeldTuning:
    """Choose a cut for a product where `can_hold` allows it.

    As many subgroups share a row as leaves the fewest lanes without a block.
    """
    fitting = [split for split in _splits(info) if _held(info, product, split) <= _most_held(info, product)]
    split = min(fitting, key=lambda split: split * _held(info, product, split))
    held = _held(info, product, split)
    sharing = _SHARING_SUBGROUPS if split >= _SUBGROUPS else _SUBGROUPS
    subgroups = _BLOCKED_SUBGROUPS if product.blocked else sharing
    rows = 2 if product.gated or (held > 1 and not _is_full(product, held)) else 1
    passes = max(1, min(_MAX_PASSES, product.n // (rows * subgroups // split * _WORKGROUPS)))
    ahead = fetches_ahead(info, product, held)
    return HeldTuning(product.tokens, subgroups, split, rows, 1 if product.blocked else passes, ahead)


def held_plan(info: DeviceInfo, tuning: HeldTuning, product: Product) -> LinearPlan:
    """linear_quant_held with the given tuning; a blocked output has whole blocks for each workgroup."""
    lanes = lean_subgroup_size(info)
    subgroups = min(tuning.subgroups, info.max_workgroup_invocations // lanes) // tuning.split * tuning.split
    outputs = tuning.rows // 2 if product.gated else tuning.rows
    outputs *= subgroups // tuning.split
    passes = whole_blocks(tuning.passes, outputs) if product.blocked else tuning.passes
    constants = {
        "WORKGROUP": subgroups * lanes,
        "ROWS": tuning.rows,
        "TOKENS": tuning.tokens,
        "PASSES": passes,
        "HELD": _held(info, product, tuning.split),
        "SPLIT": tuning.split,
        "SUBGROUP": lanes,
        "AHEAD": tuning.ahead,
    }
    grid = (*split_grid(-(-product.num_outputs // (outputs * passes))), -(-product.tokens // tuning.tokens))
    return LinearPlan(
        f"linear_quant_held_{product.weights}",
        tuple(constants.items()),
        grid,
        asked_subgroup_size(info),
        RowForm.BLOCKS,
    )


def _splits(info: DeviceInfo) -> list[int]:
    """Into how many subgroups of a workgroup a row may be cut."""
    most = info.max_workgroup_invocations // lean_subgroup_size(info)
    return [split for split in _SPLITS if split <= most]


def _is_full(product: Product, held: int) -> bool:
    """Whether one row takes all the registers that there are."""
    return product.has_float_codes and product.tokens * held > _LEAN_HELD


def _most_held(info: DeviceInfo, product: Product) -> int:
    """Blocks of a token that a lane has room for, beside one row's of codes or both rows' of a gated product."""
    is_lean = product.tokens > 1 or (product.gated and product.has_float_codes)
    return _LEAN_HELD if is_lean and halves_subgroups(info) else _HELD


def _held(info: DeviceInfo, product: Product, split: int) -> int:
    """Blocks of a token in a lane."""
    return -(-(product.k // QUANT_BLOCK) // (lean_subgroup_size(info) * split))
