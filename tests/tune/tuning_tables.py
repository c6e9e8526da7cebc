"""Tables of choices as `unicorn tune` would write them, without measuring anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.gpu.tuned import Input
from unicorn_async.ops.linear_plans.candidates import candidates
from unicorn_async.ops.linear_plans.product import Product
from unicorn_async.ops.rows import RowForm
from unicorn_async.tune.choices import shaders_digest
from unicorn_async.tune.table import DeviceKey, PlanKey, TunedForm, TunedProduct, TuningTable

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo

PRODUCTS = (
    Product("bf16", 1, 1536, 256, gated=True),
    Product("q4", 1, 1536, 256, gated=True, blocked=True),
    Product("q6_k", 8, 512, 256),
    Product("f32", 64, 512, 256),
)

FORMS = (
    TunedForm(Input("q4", 16, 4096), RowForm.HALVES, RowForm.BLOCKS, 1131.5, 762.25),
    TunedForm(Input("q6_k", 4, 256), RowForm.BLOCKS, RowForm.HALVES, 20.5, 10.25),
)


def tuned_product(info: DeviceInfo, product: Product, which: int = -1) -> TunedProduct:
    """The choice of one of a product's candidates, by default the last."""
    plans = candidates(info, product)
    return TunedProduct(product, PlanKey.of(plans[0]), PlanKey.of(plans[which]), 20.5, 10.25)


def table_of(info: DeviceInfo, *products: Product) -> TuningTable:
    """A table for a device and these shaders, with the last candidate of each product."""
    return TuningTable(
        DeviceKey.of(info), shaders_digest(), tuple(tuned_product(info, product) for product in products)
    )
