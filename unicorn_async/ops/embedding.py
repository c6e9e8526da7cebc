"""Embedding rows of a step's tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError, UnsupportedModelError
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from unicorn_async.gpu.recorder import Kernels, Recorder

_WORKGROUP = 64
_ELEMENTS = 8  # of one invocation
_ENTRIES = {DType.F16: "embed_f16", DType.BF16: "embed_bf16", DType.F32: "embed_f32"}


def kernels_for(table_dtype: DType) -> tuple[KernelRequest, ...]:
    """Name the pipelines that `embed` will get."""
    return (KernelRequest(_ENTRIES[table_dtype], {"WORKGROUP": _WORKGROUP}),)


def embed(
    recorder: Recorder,
    kernels: Kernels,
    *,
    table: Tensor,
    token_ids: int,
    last_token: int,
    out: Tensor,
    scale: float = 1.0,
) -> None:
    """Record out = table[ids] * scale.

    `table` is (vocab, columns) of any element type, columns a multiple of 8; `out` (tokens, columns) f32. `token_ids`
    is the address of (tokens) i32: an id, or -1 - slot for the id that `last_token`, the address of (state slots) u32,
    holds there when the kernel runs. An id outside of the vocabulary reads row 0. Raises ConfigError for other shapes.
    """
    if len(table.shape) != 2 or len(out.shape) != 2:
        raise ConfigError(f"embed: expected two dimensions, got table {table.shape}, out {out.shape}")
    vocab, columns = table.shape
    if columns % _ELEMENTS:
        raise UnsupportedModelError(f"embed: expected a hidden size that is a multiple of {_ELEMENTS}, got {columns}")
    num_tokens = out.shape[0]
    out.expect("embed: out", (num_tokens, columns), DType.F32)
    (request,) = kernels_for(table.dtype)
    kernel = kernels.get(request.name, constants=request.constants)
    push = kernel.pack(
        table=table.address,
        token_ids=token_ids,
        last_token=last_token,
        y=out.address,
        columns=columns // _ELEMENTS,
        vocab=vocab,
        scale=scale,
    )
    recorder.dispatch(kernel, push, -(-columns // (_ELEMENTS * _WORKGROUP)), num_tokens)
