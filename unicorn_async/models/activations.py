"""Intermediate results of a step in device memory, reused by every layer and every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.ops.linear_input import LinearScratch
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.config import ModelConfig

_ALIGNMENT = 256


def activation_bytes(model: ModelConfig, max_tokens: int, max_logit_rows: int) -> Mapping[str, int]:
    """Return the size of each intermediate result, all f32 but `scratch`, in bytes; a multiple of 256 each."""
    heads, kv_heads, head_dim = model.num_heads, model.num_kv_heads, model.head_dim
    widest = max(model.hidden_size, heads * head_dim, model.intermediate_size)
    columns = {
        "hidden": model.hidden_size,
        "branch": model.hidden_size,
        "normed": model.hidden_size,
        "qkv": (heads + 2 * kv_heads) * head_dim,
        "q": heads * head_dim,
        "attention": heads * head_dim,
        "gate_up": 2 * model.intermediate_size,
        "gated": model.intermediate_size,
    }
    sizes = {name: 4 * max_tokens * count for name, count in columns.items()}
    sizes["chosen"] = 4 * max_logit_rows * model.hidden_size
    sizes["logits"] = 4 * max_logit_rows * model.vocab_size
    sizes["scratch"] = LinearScratch.size(max(max_tokens, max_logit_rows), widest)
    return {name: -(-size // _ALIGNMENT) * _ALIGNMENT for name, size in sizes.items()}


@dataclass(frozen=True, slots=True)
class Activations:
    """Addresses of a step's intermediate results; each has room for the largest step."""

    address: Mapping[str, int]
    scratch: LinearScratch

    @classmethod
    def at(cls, address: Mapping[str, int], model: ModelConfig, max_tokens: int, max_logit_rows: int) -> Activations:
        """Take the places that memory of `activation_bytes` was found at."""
        widest = max(model.hidden_size, model.num_heads * model.head_dim, model.intermediate_size)
        return cls(address, LinearScratch.at(address["scratch"], max(max_tokens, max_logit_rows), widest))

    def rows(self, name: str, num_rows: int, columns: int) -> Tensor:
        """Return the first rows of one result as (num_rows, columns) f32."""
        return Tensor(self.address[name], (num_rows, columns), DType.F32)
