"""Embedding rows of a step's tokens, from a quantised table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError, UnsupportedModelError
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.tensor import QUANT_BLOCK, DType

if TYPE_CHECKING:
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.tensor import QuantFormat, QuantTensor, Tensor

_WORKGROUP = 64


def kernels_for(quant_format: QuantFormat) -> tuple[KernelRequest, ...]:
    """Name the pipelines that `embed_quant` will get."""
    return (KernelRequest(f"embed_quant_{quant_format.layout.name}", {"WORKGROUP": _WORKGROUP}),)


def embed_quant(
    recorder: Recorder,
    kernels: Kernels,
    *,
    table: QuantTensor,
    token_ids: int,
    last_token: int,
    out: Tensor,
    scale: float = 1.0,
) -> None:
    """Record out = table[ids] * scale, each element exactly as the format defines it, in single precision.

    Arguments as for `embed`; `table` is (vocab, columns), columns whole units of the format.

    Raises:
        ConfigError: the shapes do not fit.
        UnsupportedModelError: a row is no whole number of units.
    """
    if len(table.shape) != 2 or len(out.shape) != 2:
        raise ConfigError(f"embed: expected two dimensions, got table {table.shape}, out {out.shape}")
    vocab, columns = table.shape
    unit = table.format.layout.unit
    if columns % unit:
        raise UnsupportedModelError(
            f"embed: expected a hidden size that is a multiple of {unit} for {table.format.value}, got {columns}"
        )
    num_tokens = out.shape[0]
    out.expect("embed: out", (num_tokens, columns), DType.F32)
    (request,) = kernels_for(table.format)
    kernel = kernels.get(request.name, constants=request.constants)
    quants, high, scales = table.planes
    blocks = columns // QUANT_BLOCK
    push = kernel.pack(
        quants=quants,
        high=high,
        scales=scales,
        token_ids=token_ids,
        last_token=last_token,
        y=out.address,
        blocks=blocks,
        vocab=vocab,
        scale=scale,
    )
    recorder.dispatch(kernel, push, -(-blocks // _WORKGROUP), num_tokens)
