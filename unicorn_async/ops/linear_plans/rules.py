"""Which kernel makes a product on a device, and how it is cut. Pure: needs no GPU.

Up to some number of tokens lanes read the weights for all of them; above it, matrix units multiply halves where the
device has them. For quantised weights the activations of few tokens become blocks of int8, for integer dot products.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.ops.linear_plans.few_rows import few_rows_plan, few_rows_tile
from unicorn_async.ops.linear_plans.held import can_hold, held_plan, held_tuning, pays_to_hold
from unicorn_async.ops.linear_plans.lean_tiles import lean_tuning
from unicorn_async.ops.linear_plans.plan import LinearPlan, work_of
from unicorn_async.ops.linear_plans.product import check_rows
from unicorn_async.ops.linear_plans.quant_tiles import (
    FRAGMENT_COLUMNS,
    MAX_FRAGMENT_TOKENS,
    fragment_plan,
    fragment_tuning,
    quant_coopmat_tuning,
)
from unicorn_async.ops.linear_plans.tiles import (
    MANY,
    MANY_FLOATS,
    coopmat_plan,
    coopmat_tuning,
    many_plan,
)
from unicorn_async.ops.linear_plans.vec import has_few_rows, quant_vec_plan, quant_vec_tuning, vec_plan, vec_tuning
from unicorn_async.ops.rows import RowForm
from unicorn_async.ops.subgroups import FRAGMENTS_FEATURE, halves_subgroups, matrix_subgroup_size
from unicorn_async.tensor import QUANT_BLOCK

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plans.product import Product
    from unicorn_async.ops.linear_plans.tiles import TileTuning

_MIN_MATRIX_TOKENS = 3  # fewer read the same weights no faster through matrix units
_MIN_QUANT_COOPMAT_TOKENS = 9  # up to 8, integer dot products read each weight once, too, and nearer to memory's speed
_MIN_FORMS_TOKENS, _MAX_FORMS_TOKENS = 2, 64  # of which dot products and matrices may either be the faster
_MAX_GATED_TOKENS = 32  # of quantised weights, on GPUs
_MIN_SUBGROUP = 8  # lanes that quantise a block of activations together
_MAX_KNOWN_PLANS = 4096


def reads_form(info: DeviceInfo, product: Product) -> RowForm:
    """The form in which a product reads its activations; it does not depend on the number of rows.

    It is the rules' form, unless another was measured on the device to be faster.
    """
    measured = info.forms.get(product.input) if info.forms else None
    return _rules_form(info, product) if measured is None else RowForm(measured)


def forms_of(info: DeviceInfo, product: Product) -> tuple[RowForm, ...]:
    """The forms of a product's activations that may be the best on a device, that of the rules first.

    Of few tokens of quantised weights these are two, blocks for dot products and halves for matrices: on some devices
    both have much the same rate. Where lanes hold known parts of matrices, what the rules choose was measured.
    """
    rule = _rules_form(info, product)
    few = product.is_quantised and _MIN_FORMS_TOKENS <= product.tokens <= _MAX_FORMS_TOKENS
    if not few or matrix_subgroup_size(info) is None or FRAGMENTS_FEATURE in info.features:
        return (rule,)
    return rule, RowForm.HALVES if rule is RowForm.BLOCKS else RowForm.BLOCKS


def _rules_form(info: DeviceInfo, product: Product) -> RowForm:
    """Matrix units take halves, so F32 weights, which keep their precision, are none of their business."""
    tokens = product.tokens
    if not product.is_quantised:
        has_units = product.weights != "f32" and matrix_subgroup_size(info) is not None
        return RowForm.HALVES if has_units and tokens >= _MIN_MATRIX_TOKENS else RowForm.FLOATS
    fits = FRAGMENTS_FEATURE in info.features and product.k % FRAGMENT_COLUMNS == 0
    if fits and _MIN_MATRIX_TOKENS <= tokens <= MAX_FRAGMENT_TOKENS:
        return RowForm.FRAGMENTS
    if tokens < _MIN_QUANT_COOPMAT_TOKENS or matrix_subgroup_size(info) is None:
        return RowForm.BLOCKS
    return RowForm.HALVES


def can_gate(info: DeviceInfo, product: Product) -> bool:
    """Whether a kernel for so many tokens can apply the gate of a gated FFN itself."""
    if not product.is_quantised:
        return product.tokens == 1
    reads_blocks = reads_form(info, product) is RowForm.BLOCKS
    return reads_blocks and (info.is_software or product.tokens <= _MAX_GATED_TOKENS)


def pays_to_block(info: DeviceInfo, product: Product) -> bool:
    """Whether a product that applies the gate had better leave its output in blocks of int8 for the next.

    The large workgroups that this takes cost more than a dispatch from two tokens on.
    """
    one = info.is_software or product.tokens == 1
    return one and product.is_quantised and can_gate(info, product)


def plan_linear(info: DeviceInfo, product: Product) -> LinearPlan:
    """Choose the kernel for a product and its cut.

    Raises:
        UnsupportedModelError: rows of weights have a length that no kernel takes, or the device's subgroups are too
            small for any kernel.
        ValueError: no kernel does what is asked for.
    """
    _check(info, product)
    form = reads_form(info, product)
    if form is RowForm.FRAGMENTS:
        return fragment_plan(info, fragment_tuning(info, product), product)
    if form is RowForm.HALVES:
        return coopmat_plan(info, matrix_tile(info, product), product)
    if not product.is_quantised:
        vec = vec_tuning(info, product)
        return _dense_tiles(info, product) if vec is None else vec_plan(info, vec, product)
    if can_hold(info, product) and pays_to_hold(info, product):
        return held_plan(info, held_tuning(info, product), product)
    quant_vec = quant_vec_tuning(info, product)
    many = MANY_FLOATS if product.has_float_codes else MANY
    return many_plan(many, product) if quant_vec is None else quant_vec_plan(info, quant_vec, product)


def _dense_tiles(info: DeviceInfo, product: Product) -> LinearPlan:
    if has_few_rows(product):
        return few_rows_plan(info, few_rows_tile(info, product), product)
    return many_plan(MANY, product)


def matrix_tile(info: DeviceInfo, product: Product) -> TileTuning:
    """How a coopmat kernel is cut for a product; the device has a `matrix_subgroup_size`."""
    if halves_subgroups(info):
        return lean_tuning(info, product)
    return quant_coopmat_tuning(info, product) if product.is_quantised else coopmat_tuning(info, product)


def tuned_plan(info: DeviceInfo, product: Product) -> LinearPlan:
    """What was measured on the device to be faster than the rules' plan for this product; without that, their plan.

    Raises as `plan_linear`. Plans are remembered by the object that describes the device.
    """
    return _known_plan(_Same(info), product)


class _Same:
    """A device's description, equal to itself alone: comparing its many fields would take longer than a plan."""

    __slots__ = ("info",)

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info

    def __hash__(self) -> int:
        return id(self.info)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.info is self.info


@lru_cache(_MAX_KNOWN_PLANS)
def _known_plan(device: _Same, product: Product) -> LinearPlan:
    rule, tuned = plan_linear(device.info, product), device.info.tuned
    found = tuned.get(work_of(rule, product)) if tuned else None
    if found is None:
        return rule
    return LinearPlan(found.entry, found.constants, found.grid, found.subgroup_size, rule.form)


def _check(info: DeviceInfo, product: Product) -> None:
    tokens, n = product.tokens, product.n
    if product.blocked and not product.is_quantised:
        raise ValueError(f"linear: no kernel leaves the outputs of {product.weights} weights in blocks")
    check_rows(product.element, product.k)
    if product.is_quantised and info.min_subgroup_size < _MIN_SUBGROUP:
        raise UnsupportedModelError(
            f"linear: quantised weights need subgroups of {_MIN_SUBGROUP} lanes, "
            f"{info.name} has {info.min_subgroup_size}"
        )
    if tokens < 1 or n < 1:
        raise ValueError(f"linear: expected at least 1 token and 1 row, got {tokens} and {n}")
    if product.gated and (n % 2 or not can_gate(info, product)):
        raise ValueError(f"linear: no kernel applies the gate for {tokens} tokens and {n} rows")
    if product.blocked and (not product.gated or n // 2 % QUANT_BLOCK):
        raise ValueError(f"linear: no kernel leaves the outputs of {n} rows in blocks")
