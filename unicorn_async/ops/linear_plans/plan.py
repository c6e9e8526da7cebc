"""A linear's plan: one dispatch, of one kernel, cut in one way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from unicorn_async.gpu.tuned import Work
from unicorn_async.ops.rows import RowForm

if TYPE_CHECKING:
    from unicorn_async.gpu.tuned import Constants
    from unicorn_async.ops.linear_plans.product import Product

Pipeline: TypeAlias = "tuple[str, Constants, int | None]"


@dataclass(frozen=True, slots=True)
class LinearPlan:
    """One dispatch: the manifest entry, its cut, the subgroup size to ask for, and the number of workgroups.

    `constants` are those that say how the product is cut; what is done beside it has its own, see `kernel_request`.
    `form` is that of the activations which the kernel reads.
    """

    entry: str
    constants: Constants
    grid: tuple[int, int, int]
    subgroup_size: int | None = None
    form: RowForm = RowForm.FLOATS

    @property
    def pipeline(self) -> Pipeline:
        """What tells the pipelines of a product's plans apart."""
        return self.entry, self.constants, self.subgroup_size


def work_of(rule: LinearPlan, product: Product) -> Work:
    """The name of a product in a device's `tuned`, by the rules' plan for it."""
    return Work(rule.entry, (*rule.constants, *product.options), (product.tokens, product.n, product.k))
