"""The products that a model's steps consist of: what tuning measures, the most important ones first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.models.weights import head_name
from unicorn_async.ops import linear
from unicorn_async.ops.rows import RowForm
from unicorn_async.step.buckets import bucket_for, bucket_sizes
from unicorn_async.tensor import parts_of
from unicorn_async.weights.tensors import unplaced_matrices

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from unicorn_async.config import EngineConfig, ModelConfig
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plans.product import Product
    from unicorn_async.tensor import Weight
    from unicorn_async.weights.plan import LoadPlan

_PARTS = ("qkv", "o", "gate_up", "down")
_FIRST_SIZES = (1, 8, 32, 2, 4, 16)  # before the largest step, which long prompts consist of, and all others


@dataclass(frozen=True, slots=True)
class ModelProduct:
    """A product and the matrix that it is with: one of a layer's parts, or "head". `count` layers have the same."""

    product: Product
    matrix: str
    count: int

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, of all layers."""
        return self.count * self.product.weight_bytes


def products_of(
    info: DeviceInfo, model: ModelConfig, plan: LoadPlan, options: EngineConfig
) -> tuple[ModelProduct, ...]:
    """Return what steps of all sizes multiply by: decoding first, and of each size the largest weights first."""
    matrices = unplaced_matrices(plan)
    sizes = bucket_sizes(options.max_num_batched_tokens)
    sequences = bucket_for(options.max_num_seqs, bucket_sizes(max(options.max_num_seqs, sizes[-1])))
    first = [size for size in (*_FIRST_SIZES, sizes[-1]) if size in sizes]
    found: dict[Product, ModelProduct] = {}
    for size in dict.fromkeys((*first, *sizes)):
        of_size: dict[Product, ModelProduct] = {}
        for matrix, product in _of_step(info, model, matrices, size, with_head=size <= sequences):
            known = of_size.get(product, ModelProduct(product, matrix, 0))
            of_size[product] = replace(known, count=known.count + 1)
        found |= dict(sorted(of_size.items(), key=lambda item: -item[1].nbytes))
    return tuple(found.values())


def _of_step(
    info: DeviceInfo, model: ModelConfig, matrices: Mapping[str, Weight], tokens: int, *, with_head: bool
) -> Iterator[tuple[str, Product]]:
    for layer in range(model.num_layers):
        for part in _PARTS:
            weight = matrices[f"layers.{layer}.{part}"]
            gated = part == "gate_up" and linear.fuses_gate(info, weight, tokens)
            down = matrices[f"layers.{layer}.down"]
            blocked = (
                gated
                and linear.input_form(info, down, tokens) is RowForm.BLOCKS
                and linear.leaves_blocks(info, weight, tokens)
            )
            for own in parts_of(weight):
                yield part, linear.product_of(own, tokens, gated=gated, blocked=blocked)
    if with_head:
        for own in parts_of(matrices[head_name(model)]):
            yield "head", linear.product_of(own, tokens)
