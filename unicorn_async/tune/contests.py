"""Inputs that kernels can read in two forms: blocks of int8 for dot products, and halves for matrices. Pure.

Who reads another form may do more or less besides: products of blocks apply a gate themselves. So each form has the
products that a model's steps would consist of then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from unicorn_async.ops.linear_plans.rules import forms_of
from unicorn_async.tune.products import products_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.tuned import Input
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.ops.rows import RowForm
    from unicorn_async.tune.products import ModelProduct
    from unicorn_async.weights.plan import LoadPlan


@dataclass(frozen=True, slots=True)
class Contest:
    """Products that read so many tokens of `k` columns, in each of two forms.

    `ways` begins with the rules' form. Weights of several types are in it together: where they are parts of one matrix,
    what is in a form of its own for each has to be brought into both.
    """

    tokens: int
    k: int
    ways: Mapping[RowForm, tuple[ModelProduct, ...]]

    @property
    def rule(self) -> RowForm:
        """The form that the rules choose."""
        return next(iter(self.ways))

    @property
    def inputs(self) -> frozenset[Input]:
        """What is read, by the types of the weights."""
        return frozenset(one.product.input for one in self.ways[self.rule])

    def info(self, info: DeviceInfo, form: RowForm) -> DeviceInfo:
        """Return the device's description with this form chosen."""
        others = {key: value for key, value in info.forms.items() if key not in self.inputs}
        chosen = {} if form is self.rule else dict.fromkeys(self.inputs, form.value)
        return replace(info, forms=others | chosen)


def contests_of(info: DeviceInfo, model: ModelSpec, plan: LoadPlan, options: EngineConfig) -> tuple[Contest, ...]:
    """Return what there is to choose between in a model's steps of all sizes, on a device without measured forms."""
    by_rule = _by_input(products_of(info, model, plan, options))
    forms = {key: forms_of(info, products[0].product) for key, products in by_rule.items()}
    others = {
        one.product.input: form.value
        for key, products in by_rule.items()
        for form in forms[key][1:]
        for one in products
    }
    if not others:
        return ()
    by_other = _by_input(products_of(replace(info, forms=others), model, plan, options))
    return tuple(
        Contest(*key, {forms[key][0]: products, forms[key][1]: by_other[key]})
        for key, products in by_rule.items()
        if len(forms[key]) > 1
    )


def _by_input(products: Sequence[ModelProduct]) -> dict[tuple[int, int], tuple[ModelProduct, ...]]:
    """Products of quantised weights by their tokens and columns, in the order in which these come."""

    def place(one: ModelProduct) -> tuple[int, int]:
        return one.product.tokens, one.product.k

    quantised = [one for one in products if one.product.is_quantised]
    order = {key: number for number, key in enumerate(dict.fromkeys(map(place, quantised)))}
    return {key: tuple(some) for key, some in groupby(sorted(quantised, key=lambda one: order[place(one)]), place)}
