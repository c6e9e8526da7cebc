"""What one dispatch of a step has to move and to compute at least, for rates beside the time that it took."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from unicorn_async.config import KVDType
from unicorn_async.ops.kv_cache import head_nbytes
from unicorn_async.ops.linear_plans.product import Product
from unicorn_async.ops.norm import NO_NORM
from unicorn_async.ops.rows import BlockRows, RowForm
from unicorn_async.tensor import QUANT_BLOCK, DType, QuantFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from unicorn_async.gpu.timed_recorder import DispatchTime

_F32 = 4
_VECTOR = 4  # elements in which rows are counted
_ITEM_BYTES = {"f16": 2, "bf16": 2, "f32": 4}
_LAYOUTS = {kind.layout.name: kind.layout for kind in QuantFormat}


class DispatchWork(NamedTuple):
    """Bytes and floating-point operations, 0 where not counted; `detail` tells dispatches of one kernel apart."""

    detail: str = ""
    nbytes: int = 0
    flops: int = 0


def dispatch_work(time: DispatchTime) -> DispatchWork:
    """Count a dispatch's work: of products the weights alone, of others all that they read and write, each once.

    Of attention those are the keys and values that a query sees; it reads the contexts from the frame of the step, so
    this is to be called before the frame has another one. Padding counts as far as a kernel works on it.
    """
    fields = {name: int(value) for name, value in time.kernel.push.unpack(time.push).items()}
    for prefix, count in _FAMILIES.items():
        if time.kernel.name.startswith(prefix):
            return count(time, fields)
    return DispatchWork()


def _product(time: DispatchTime, fields: Mapping[str, int]) -> DispatchWork:
    product = Product.recorded(time.kernel.name, time.kernel.constants, fields)
    assert product is not None, f"{time.kernel.name} makes no product"
    count, element = product.n * product.k, product.element
    nbytes = count * element.itemsize if isinstance(element, DType) else sum(element.layout.plane_bytes(count))
    return DispatchWork(f"{product.n}x{product.k}", nbytes, 2 * count * product.tokens)


def _expert_product(time: DispatchTime, fields: Mapping[str, int]) -> DispatchWork:
    """Count a tile of the weights for each that there may be: for few tokens, those of each token's experts."""
    rows = fields["n"] * (2 if time.kernel.constants.get("GATED") else 1)
    k = fields["k"] if "k" in fields else fields["blocks"] * QUANT_BLOCK
    constants, (x, _, z) = time.kernel.constants, time.groups
    kernel, _, kind = time.kernel.name.removeprefix("expert_").removeprefix("quant_").partition("_")
    tiles, pairs = {
        "vec": (z, constants.get("PAIRS", 1)),
        "sum": (z * int(constants.get("K", 1)), 1),
        "coopmat": (x, constants.get("TILE_T", 1)),
    }[kernel]
    nbytes = rows * k * _ITEM_BYTES[kind] if kind in _ITEM_BYTES else sum(_LAYOUTS[kind].plane_bytes(rows * k))
    return DispatchWork(f"{rows}x{k}", tiles * nbytes, 2 * rows * k * tiles * int(pairs))


def _attention_decode(time: DispatchTime, fields: Mapping[str, int]) -> DispatchWork:
    constants, items = time.kernel.constants, time.groups[2]
    heads, kv_heads = int(constants["NUM_HEADS"]), int(constants["NUM_KV_HEADS"])
    rows = _u32(time, fields["items"], 2 * items)[::2]
    keys = _by_row(time, fields["context_len"], rows)
    if window := fields["window"]:
        keys = np.minimum(keys, window)
    query_heads = heads + 2 * kv_heads if constants["ROTATES"] else heads
    return _attention(time, window, heads, kv_heads, items, query_heads, int(keys.sum()), int(keys.sum()))


def _attention_prefill(time: DispatchTime, fields: Mapping[str, int]) -> DispatchWork:
    heads, kv_heads, window = fields["num_heads"], fields["num_kv_heads"], fields["window"]
    rows = np.unique(_u32(time, fields["tiles"], 2 * time.groups[0])[::2])
    queries, contexts = (_by_row(time, fields[name], rows) for name in ("query_len", "context_len"))
    before = contexts - queries
    keys, open_queries = contexts, queries  # those that see everything before them
    if window:
        keys = np.minimum(contexts, queries + window - 1)
        open_queries = np.clip(window - before, 0, queries)
    pairs = open_queries * before + open_queries * (open_queries + 1) // 2 + (queries - open_queries) * window
    return _attention(time, window, heads, kv_heads, int(queries.sum()), heads, int(keys.sum()), int(pairs.sum()))


def _attention(
    time: DispatchTime, window: int, heads: int, kv_heads: int, queries: int, query_heads: int, keys: int, pairs: int
) -> DispatchWork:
    """Count attention of so many queries, of `query_heads` heads as they are read, that see `keys` in `pairs`."""
    head_dim = int(time.kernel.constants["HEAD_DIM"])
    kv_dtype = KVDType(time.kernel.name.split("_")[-2])
    latent = int(time.kernel.constants.get("LATENT", 0))
    value_dim = latent or head_dim
    cached = (1 if latent else 2) * keys * kv_heads * head_nbytes(head_dim, kv_dtype)
    rows = queries * (query_heads * head_dim * _F32 + _row_bytes(time, heads * value_dim))
    flops = 2 * pairs * heads * (head_dim + value_dim)
    return DispatchWork(f"window {window}" if window else "", cached + rows, flops)


def _norm(time: DispatchTime, fields: Mapping[str, int]) -> DispatchWork:
    columns, rows = _VECTOR * fields["columns"], time.groups[0]
    touched = 1  # x; then the residual stream, which is written where all rows are, and the weights
    if fields["hidden"]:
        touched += 1 if fields["rows"] else 2
    weights = sum(fields[name] != 0 for name in ("weight", "post_weight"))
    is_bare = time.kernel.constants.get("KIND") == NO_NORM  # the stream itself, in another form
    written = _row_bytes(time, columns) if fields["weight"] or is_bare else 0
    return DispatchWork(nbytes=rows * (touched * columns * _F32 + written) + weights * columns * _F32)


def _qk_norm(time: DispatchTime, fields: Mapping[str, int]) -> DispatchWork:
    columns = _VECTOR * (fields["q_columns"] + fields["k_columns"])
    return DispatchWork(nbytes=(2 * time.groups[1] + 1) * columns * _F32)


def _gate(time: DispatchTime, fields: Mapping[str, int]) -> DispatchWork:
    columns = _VECTOR * fields["columns"]
    return DispatchWork(nbytes=time.groups[1] * (2 * columns * _F32 + _row_bytes(time, columns)))


def _row_to_half(time: DispatchTime, fields: Mapping[str, int]) -> DispatchWork:
    columns = _VECTOR * fields["columns"]
    return DispatchWork(nbytes=time.groups[0] * (columns * _F32 + _row_bytes(time, columns)))


def _quantize_activations(_: DispatchTime, fields: Mapping[str, int]) -> DispatchWork:
    rows, columns = fields["rows"], fields["blocks"] * QUANT_BLOCK
    return DispatchWork(nbytes=rows * columns * _F32 + BlockRows.size(rows, columns))


def _rotation(time: DispatchTime, fields: Mapping[str, int]) -> DispatchWork:
    heads, kv_heads, head_dim = fields["num_heads"], fields["num_kv_heads"], int(time.kernel.constants["HEAD_DIM"])
    cached = 2 * kv_heads * head_nbytes(head_dim, KVDType(time.kernel.name.rpartition("_")[2]))
    return DispatchWork(nbytes=time.groups[1] * (2 * (heads + kv_heads) * head_dim * _F32 + cached))


def _embedding(time: DispatchTime, fields: Mapping[str, int]) -> DispatchWork:
    kind = time.kernel.name.removeprefix("embed_").removeprefix("quant_")
    if kind in _LAYOUTS:
        columns = fields["blocks"] * QUANT_BLOCK
        row = sum(_LAYOUTS[kind].plane_bytes(columns))
    else:
        columns = fields["columns"] * 8
        row = columns * _ITEM_BYTES[kind]
    return DispatchWork(nbytes=time.groups[1] * (row + columns * _F32))


def _logits(time: DispatchTime, fields: Mapping[str, int]) -> DispatchWork:
    return DispatchWork(nbytes=time.groups[1] * fields["vocab"] * _F32)


# By the beginnings of names. What is left out moves next to nothing, or as much as the requests' sampling asks for.
_FAMILIES: dict[str, Callable[[DispatchTime, Mapping[str, int]], DispatchWork]] = {
    "linear_": _product,
    "expert_vec_": _expert_product,
    "expert_quant_vec_": _expert_product,
    "expert_coopmat_": _expert_product,
    "expert_quant_coopmat_": _expert_product,
    "expert_quant_sum_": _expert_product,
    "attention_decode_": _attention_decode,
    "attention_prefill_": _attention_prefill,
    "rms_norm_": _norm,
    "qk_norm": _qk_norm,
    "gated_": _gate,
    "row_to_half_": _row_to_half,
    "quantize_activations": _quantize_activations,
    "rope_cache_": _rotation,
    "embed_": _embedding,
    "sample_argmax": _logits,
    "sample_stats": _logits,
}


def _row_bytes(time: DispatchTime, columns: int) -> int:
    """Bytes of a row in the form that a kernel writes, which its name ends with."""
    form = RowForm(time.kernel.name.rpartition("_")[2])
    if form is RowForm.BLOCKS:
        return BlockRows.size(1, columns)
    return columns * _F32 if form is RowForm.FLOATS else columns * 2 + _F32


def _by_row(time: DispatchTime, address: int, rows: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return what an array has for some sequences of the step."""
    size = int(rows.max()) + 1 if rows.size else 0
    return _u32(time, address, size)[rows].astype(np.int64)


def _u32(time: DispatchTime, address: int, count: int) -> NDArray[np.uint32]:
    """Return an array of the frame that a dispatch's size is in."""
    frame = time.frame
    assert frame is not None and frame.mapped is not None, "attention is dispatched by a mapped frame"
    return np.frombuffer(frame.mapped, np.uint32, count, address - frame.address)
