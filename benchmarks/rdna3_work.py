"""What dispatches other than plain products have to do at least: bytes of memory, and multiply-adds. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.ops.linear_plans.product import WEIGHTS, Product
from unicorn_async.ops.runs import KEPT_TOKENS
from unicorn_async.tensor import QUANT_BLOCK

if TYPE_CHECKING:
    from routing import Routing

    from unicorn_async.gpu.listing import ListedDispatch

SINGLE, HALF = 4, 2  # bytes
_EXPERT_KERNELS = ("vec", "coopmat", "quant_vec", "quant_sum", "quant_coopmat")
EXPERT_PRODUCTS = {f"expert_{kernel}_{weights}": weights for kernel in _EXPERT_KERNELS for weights in WEIGHTS}
# Multiply-adds of a token with each element of a state: for what is found, added and read, or the last two.
_OF_A_STATE, _OF_AN_SSM = 3, 2


@dataclass(frozen=True, slots=True)
class Work:
    """Of one dispatch; without multiply-adds where its bytes take longer by far."""

    num_bytes: float
    macs: float = 0.0


def expert_work(dispatch: ListedDispatch, routing: Routing, tokens: int) -> Work:
    """Weights of the distinct experts once, rows of each pair of a token and an expert, tiles filled up."""
    constants, fields = dispatch.request.constants, dispatch.fields
    weights = EXPERT_PRODUCTS[dispatch.request.name]
    k = int(fields["k"] if "k" in fields else fields["blocks"] * QUANT_BLOCK)
    n = int(fields["n"]) * (2 if constants.get("GATED", False) else 1)
    pairs, distinct = tokens * routing.num_chosen, routing.distinct(tokens)
    tile = int(constants.get("TILE_T", constants.get("PAIRS", 1)))
    num_bytes = distinct * Product(weights, 1, n, k).weight_bytes + pairs * (k * HALF + n * SINGLE)
    return Work(num_bytes, routing.rows(tokens, tile) * n * k)


def recurrent_work(dispatch: ListedDispatch, tokens: int, *, is_prompt: bool) -> Work:
    """States of linear attention and of Mamba-2, read and written once a sequence, and what tokens do with them.

    A prompt's go in chunks; those kernels have nothing to do where each sequence has a token.
    """
    name, constants, fields = dispatch.request.name, dispatch.request.constants, dispatch.fields
    row_bytes = int(fields["row_columns"]) * 4 * SINGLE
    if name.startswith(("delta_conv", "ssm_conv")):
        return Work(tokens * 2 * row_bytes)
    heads = int(constants["VALUE_HEADS"])
    if name == "delta_chunk":
        key_dim = int(constants["KEY_VECTORS"]) * 4
        left_bytes = heads * (2 * KEPT_TOKENS + 4) * SINGLE
        macs = heads * KEPT_TOKENS * (2 * key_dim + KEPT_TOKENS / 2)
        return Work(tokens * (row_bytes + left_bytes), tokens * macs)
    if name == "ssm_chunk":
        products = int(constants["KEY_HEADS"]) * KEPT_TOKENS * int(constants["KEY_VECTORS"]) * 4
        return Work(tokens * (row_bytes + int(fields["left_bytes"])), tokens * products)
    elements = (int(fields["state_bytes"]) - int(fields["state_offset"])) // SINGLE
    if name in ("delta_rule", "ssm_scan") and constants["CHUNKED"] and is_prompt:
        return Work(0.0)  # all of it is in chunks
    sequences = 1 if is_prompt else tokens
    num_bytes = sequences * 2 * elements * SINGLE + tokens * row_bytes
    macs = (_OF_AN_SSM if name.startswith("ssm") else _OF_A_STATE) * elements
    if name in ("delta_chunks", "ssm_chunks"):
        macs += heads * KEPT_TOKENS * int(constants["VALUE_VECTORS"]) * 4
    return Work(num_bytes, tokens * macs)


def attention_work(dispatch: ListedDispatch, tokens: int, context: int) -> Work:
    """Queries and results, and keys and values: those of each stream, or a prompt's own, whose products count."""
    constants, fields, is_prompt = dispatch.request.constants, dispatch.fields, "prefill" in dispatch.request.name
    if is_prompt:
        heads, kv_heads = int(fields["num_heads"]), int(fields["num_kv_heads"])
    else:
        heads, kv_heads = int(constants["NUM_HEADS"]), int(constants["NUM_KV_HEADS"])
    dim, window = int(constants["HEAD_DIM"]), int(fields["window"]) or context
    rows = tokens if is_prompt else tokens * min(window, context)
    num_bytes = 2 * rows * kv_heads * dim * HALF + tokens * heads * dim * (SINGLE + HALF)
    macs = 2 * tokens * min(window, (tokens + 1) / 2) * heads * dim if is_prompt else 0.0
    return Work(num_bytes, macs)
