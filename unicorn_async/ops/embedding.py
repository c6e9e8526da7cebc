"""Embedding rows of a step's tokens."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError, UnsupportedModelError
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.tensor import QUANT_BLOCK, DType, QuantFormat, Tensor, element_of

if TYPE_CHECKING:
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.tensor import ElementType, QuantTensor

_WORKGROUP = 64
_ELEMENTS = 8  # of one invocation, of a dense table
_ENTRIES = {DType.F16: "embed_f16", DType.BF16: "embed_bf16", DType.F32: "embed_f32"}


def _kernel_request(element: ElementType) -> KernelRequest:
    """Name the pipeline that `embed` will get for a table of this type."""
    name = f"embed_quant_{element.layout.name}" if isinstance(element, QuantFormat) else _ENTRIES[element]
    return KernelRequest(name, {"WORKGROUP": _WORKGROUP})


def embed(
    recorder: Recorder,
    kernels: Kernels,
    *,
    table: Tensor | QuantTensor,
    token_ids: int,
    last_token: int,
    out: Tensor,
    scale: float = 1.0,
    first: int = 0,
) -> None:
    """Record out = table[ids] * scale, of each row the columns from `first` on.

    Of a quantised table each element is exactly as its format defines it, in f32. `table` is (vocab, row_columns),
    row_columns a multiple of 8, or whole units of the format; `out` (tokens, columns) f32, columns and `first`
    multiples of 8, or of 32 where the table is quantised.
    `token_ids` is the address of (tokens) i32: an id, or -1 - state_index for the id that `last_token`, the address of
    (states) u32, holds there when the kernel runs. An id outside of the vocabulary reads row 0.

    Raises:
        ConfigError: the shapes do not fit.
        UnsupportedModelError: a row is no whole number of units.
    """
    if len(table.shape) != 2 or len(out.shape) != 2:
        raise ConfigError(f"embed: expected two dimensions, got table {table.shape}, out {out.shape}")
    vocab, row_columns = table.shape
    num_tokens, columns = out.shape
    places: dict[str, int]
    if isinstance(table, Tensor):
        unit, unit_name, lane_elements = _ELEMENTS, f"{_ELEMENTS}", _ELEMENTS
        places = {"table": table.address, "columns": columns // _ELEMENTS, "row_columns": row_columns // _ELEMENTS}
    else:
        unit, lane_elements = table.format.layout.unit, QUANT_BLOCK
        unit_name = f"{unit} for {table.format.value}"
        quants, high, scales = table.planes
        places = {"quants": quants, "high": high, "scales": scales, "blocks": columns // QUANT_BLOCK}
        places["row_blocks"] = row_columns // QUANT_BLOCK
    if row_columns % unit:
        raise UnsupportedModelError(
            f"embed: expected a hidden size that is a multiple of {unit_name}, got {row_columns}"
        )
    if columns % lane_elements or first % lane_elements or first + columns > row_columns:
        raise ConfigError(
            f"embed: expected units of {lane_elements} of {row_columns} columns, got {columns} at {first}"
        )
    places["first"] = first // lane_elements
    out.expect("embed: out", (num_tokens, columns), DType.F32)
    request = _kernel_request(element_of(table))
    kernel = kernels.get(request.name, constants=request.constants)
    push = kernel.pack(**places, token_ids=token_ids, last_token=last_token, y=out.address, vocab=vocab, scale=scale)
    recorder.dispatch(kernel, push, -(-columns // (lane_elements * _WORKGROUP)), num_tokens)


def embedding_scale(scale: float, table_type: ElementType) -> float:
    """Return the factor on embedding rows, rounded to the table's type as transformers does it, unless quantised."""
    if table_type is DType.F16:
        return float(struct.unpack("<e", struct.pack("<e", scale))[0])
    if table_type is DType.BF16:
        bits = struct.unpack("<I", struct.pack("<f", scale))[0]
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        return float(struct.unpack("<f", struct.pack("<I", rounded))[0])
    return scale
