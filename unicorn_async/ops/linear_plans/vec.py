"""How linear_vec and linear_quant_vec are cut: the kernels in which lanes read weights for few tokens. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.ops.grid import split_grid
from unicorn_async.ops.linear_plans.plan import LinearPlan
from unicorn_async.ops.rows import RowForm
from unicorn_async.ops.subgroups import asked_subgroup_size, halves_subgroups, lean_subgroup_size, workgroup_unit
from unicorn_async.tensor import QUANT_BLOCK, DType

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plans.product import Product


@dataclass(frozen=True, slots=True)
class VecTuning:
    """For up to `tokens` tokens: lanes of a workgroup in units of the subgroup size, and weight rows that it owns."""

    tokens: int
    subgroups: int
    rows: int


@dataclass(frozen=True, slots=True)
class QuantVecTuning:
    """For up to `tokens` tokens: how linear_quant_vec is cut.

    A workgroup has `subgroups` subgroups, each of which takes `rows` weight rows at a time, `passes` times all
    together, and has `unroll` blocks of each row under way in a lane.
    """

    tokens: int
    subgroups: int
    rows: int
    passes: int = 1
    unroll: int = 1


_GPU = (
    VecTuning(1, 8, 2),
    VecTuning(2, 1, 2),
    VecTuning(4, 2, 4),
    VecTuning(8, 1, 4),
    VecTuning(16, 1, 2),
    VecTuning(32, 1, 2),
)
# Of few rows many lanes share each, or most of the device would wait: a workgroup has one for each 128 that there are.
_FEW_ROWS_SUBGROUPS = 8
_FEW_ROWS_GROUPS = 128
_MOST_FEW_ROWS = 4  # of a workgroup
_FEW_ROWS_TOKENS = (2, 4, 8)  # that share a read of the weights
# There a barrier is dear, so a workgroup is one subgroup, and a load is too, so many rows share the input's. Longer
# steps go in groups of the largest size.
_SOFTWARE = (VecTuning(1, 1, 8), VecTuning(2, 1, 8), VecTuning(4, 1, 8), VecTuning(8, 1, 8))
_QUANT_GPU = (
    QuantVecTuning(1, 1, 4),
    QuantVecTuning(2, 1, 2, unroll=2),
    QuantVecTuning(4, 1, 2),
    QuantVecTuning(8, 2, 4, 2, 2),
)
_FLOAT_GPU = (QuantVecTuning(1, 1, 4), QuantVecTuning(2, 1, 2), QuantVecTuning(4, 1, 2), QuantVecTuning(8, 2, 2, 2))
_FEW_ROWS = 1056  # such as a router has, of 1024 experts at most and what is beside them
_MAX_FEW_ROWS_TOKENS, _LEAN_FEW_ROWS_TOKENS = 64, 16  # by vectors, the latter where caches are RDNA's
_MAX_QUANT_TOKENS = 32  # on GPUs; each 8 of them read the weights again
_BLOCKED_SUBGROUPS = 8  # of a workgroup that leaves its output in blocks, and so has many rows
_MIN_SUBGROUPS = 2048  # below it, fewer rows for each keep more of the device busy
# By the most tokens of a step. There a load is dear, lane by lane as it is, so many rows share the input's, as far as
# there are registers. Longer steps go in groups of eight, but for up to 12 tokens, where groups of four fit better.
_QUANT_SOFTWARE = {
    1: QuantVecTuning(1, 1, 8),
    2: QuantVecTuning(2, 1, 4),
    4: QuantVecTuning(4, 1, 4),
    8: QuantVecTuning(8, 1, 8),
    12: QuantVecTuning(4, 1, 4),
}
_SOFTWARE_WORKGROUPS = 32  # of a product, at least
_MAX_PASSES = 16


def vec_tuning(info: DeviceInfo, product: Product) -> VecTuning | None:
    """The cut of linear_vec for so many tokens; None where a device had better make tiles of them."""
    if info.is_software:
        return next((tuning for tuning in _SOFTWARE if product.tokens <= tuning.tokens), _SOFTWARE[-1])
    if has_few_rows(product) and product.tokens > 1:
        most = _LEAN_FEW_ROWS_TOKENS if halves_subgroups(info) else _MAX_FEW_ROWS_TOKENS
        return few_rows_tuning(product) if product.tokens <= most else None
    return next((tuning for tuning in _GPU if product.tokens <= tuning.tokens), None)


def has_few_rows(product: Product) -> bool:
    """Whether a product with weights that keep single precision, and so away from matrix units, has few rows."""
    return product.weights == "f32" and product.n <= _FEW_ROWS


def few_rows_tuning(product: Product) -> VecTuning:
    """The cut of linear_vec for few rows and several tokens on a GPU; more than eight go in groups."""
    tokens = next((size for size in _FEW_ROWS_TOKENS if product.tokens <= size), _FEW_ROWS_TOKENS[-1])
    rows = 1 << max(0, (product.n // _FEW_ROWS_GROUPS).bit_length() - 1)
    least = 1 if product.tokens <= tokens else 2
    return VecTuning(tokens, _FEW_ROWS_SUBGROUPS, max(least, min(rows, _MOST_FEW_ROWS)))


def quant_vec_tuning(info: DeviceInfo, product: Product) -> QuantVecTuning | None:
    """The same of linear_quant_vec."""
    if info.is_software:
        found = next((t for most, t in _QUANT_SOFTWARE.items() if product.tokens <= most), _QUANT_SOFTWARE[8])
        return replace(found, passes=software_passes(product.n // found.rows))
    if product.tokens > _MAX_QUANT_TOKENS:
        return None
    tunings = _FLOAT_GPU if product.has_float_codes else _QUANT_GPU
    return _spread(next((t for t in tunings if product.tokens <= t.tokens), tunings[-1]), product)


def vec_plan(info: DeviceInfo, tuning: VecTuning, product: Product) -> LinearPlan:
    """linear_vec with the given tuning."""
    workgroup = _lanes(info, tuning)
    max_subgroups = -(-workgroup // lean_subgroup_size(info))
    groups = -(-product.n // tuning.rows)
    passes = software_passes(groups) if info.is_software and max_subgroups == 1 else 1
    element = product.element
    assert isinstance(element, DType)
    constants = {
        "WORKGROUP": workgroup,
        "ROWS": tuning.rows,
        "TOKENS": tuning.tokens,
        "MAX_SUBGROUPS": max_subgroups,
        "PASSES": passes,
        "PREFETCH": element.itemsize if info.is_software else 0,
    }
    grid = (*split_grid(-(-groups // passes)), -(-product.tokens // tuning.tokens))
    return LinearPlan(f"linear_vec_{product.weights}", tuple(constants.items()), grid, asked_subgroup_size(info))


def quant_vec_plan(info: DeviceInfo, tuning: QuantVecTuning, product: Product) -> LinearPlan:
    """linear_quant_vec with the given tuning; a blocked output has at least a block for each workgroup."""
    outputs = tuning.rows // 2 if product.gated else tuning.rows
    passes = whole_blocks(tuning.passes, outputs) if product.blocked else tuning.passes
    constants = {
        "WORKGROUP": _lanes(info, tuning),
        "ROWS": tuning.rows,
        "TOKENS": tuning.tokens,
        "PASSES": passes,
        "UNROLL": tuning.unroll,
        "PREFETCH": product.quant_bytes if info.is_software else 0,
    }
    grid = (*split_grid(-(-product.num_outputs // (outputs * passes))), -(-product.tokens // tuning.tokens))
    return LinearPlan(
        f"linear_quant_vec_{product.weights}", tuple(constants.items()), grid, asked_subgroup_size(info), RowForm.BLOCKS
    )


def _lanes(info: DeviceInfo, tuning: VecTuning | QuantVecTuning) -> int:
    """Of a workgroup."""
    return min(tuning.subgroups * workgroup_unit(info), info.max_workgroup_invocations)


def whole_blocks(passes: int, outputs: int) -> int:
    """As many passes, each with so many outputs, as make whole blocks; no fewer than `passes`."""
    per_block = max(1, QUANT_BLOCK // outputs)
    return -(-passes // per_block) * per_block


def software_passes(groups: int) -> int:
    """Groups of rows of a workgroup on a device that is a CPU: a workgroup is dear there, but every core wants some."""
    return max(1, min(_MAX_PASSES, groups // _SOFTWARE_WORKGROUPS))


def _spread(tuning: QuantVecTuning, product: Product) -> QuantVecTuning:
    """The tuning with fewer rows where there are few, and with more subgroups where a workgroup makes blocks."""
    rows = tuning.rows
    while rows > 1 + product.gated and product.n // rows < _MIN_SUBGROUPS:
        rows //= 2
    subgroups = _BLOCKED_SUBGROUPS if product.blocked else tuning.subgroups
    return replace(tuning, rows=rows, subgroups=subgroups, passes=max(tuning.passes, subgroups))
