"""The products that a model's steps consist of: what tuning measures, the most important ones first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.memory.plan import attention_shape
from unicorn_async.ops.linear_plans.product import Product
from unicorn_async.step.buckets import bucket_for, bucket_sizes
from unicorn_async.step.dry_run import DryRun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.listing import ListedDispatch
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.weights.plan import LoadPlan

_FIRST_SIZES = (1, 8, 32, 2, 4, 16)  # before the largest step, which long prompts consist of, and all others


@dataclass(frozen=True, slots=True)
class ModelProduct:
    """A product and the matrix that it is with: one of a layer's, "embed" or "head". `count` layers have the same."""

    product: Product
    matrix: str
    count: int

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, of all layers."""
        return self.count * self.product.weight_bytes


def products_of(info: DeviceInfo, model: ModelSpec, plan: LoadPlan, options: EngineConfig) -> tuple[ModelProduct, ...]:
    """Return what steps of all sizes multiply by: decoding first, and of each size the largest weights first."""
    run = DryRun(info, model, attention_shape(model, options), plan)
    sizes = bucket_sizes(options.max_num_batched_tokens)
    sequences = bucket_for(options.max_seqs, bucket_sizes(max(options.max_seqs, sizes[-1])))
    first = [size for size in (*_FIRST_SIZES, sizes[-1]) if size in sizes]
    found: dict[Product, ModelProduct] = {}
    for size in dict.fromkeys((*first, *sizes)):
        of_size: dict[Product, ModelProduct] = {}
        for matrix, product in _of_step(run, size, with_head=size <= sequences):
            known = of_size.get(product, ModelProduct(product, matrix, 0))
            of_size[product] = replace(known, count=known.count + 1)
        found |= dict(sorted(of_size.items(), key=lambda item: -item[1].nbytes))
    return tuple(found.values())


def _of_step(run: DryRun, tokens: int, *, with_head: bool) -> Iterator[tuple[str, Product]]:
    for dispatches in run.layers(tokens):
        yield from _products(dispatches)
    if with_head:
        yield from (("head", product) for _, product in _products(run.head(tokens)))


def _products(dispatches: tuple[ListedDispatch, ...]) -> Iterator[tuple[str, Product]]:
    for dispatch in dispatches:
        product = Product.recorded(dispatch.request.name, dispatch.request.constants, dispatch.fields)
        if product is not None:
            yield dispatch.label, product
