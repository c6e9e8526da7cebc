"""What a predictor of a further token reads: norms of a token's embedding and of the state before it, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.ops.rows import RowForm, check_columns, row_constants
from unicorn_async.tensor import DType

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.tensor import Tensor

_VECTOR = 4


def predictor_input(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    embedding: Tensor,
    hidden: Tensor,
    embedding_weight: Tensor,
    hidden_weight: Tensor,
    out: Tensor,
    eps: float,
    plus_one: bool = False,
) -> None:
    """Record out = [rms_norm(embedding) * weight, rms_norm(hidden) * weight]; no barrier.

    `embedding` and `hidden` are (tokens, columns), the weights (columns), `out` (tokens, 2 * columns), all f32; with
    `plus_one` weights count from 1. Raises ConfigError for other shapes, UnsupportedModelError for columns that are no
    multiple of 4.
    """
    num_tokens, columns = embedding.shape
    check_columns("predictor_input", columns, RowForm.FLOATS)
    hidden.expect("predictor_input: hidden", (num_tokens, columns), DType.F32)
    out.expect("predictor_input: out", (num_tokens, 2 * columns), DType.F32)
    for name, weight in (("embedding_weight", embedding_weight), ("hidden_weight", hidden_weight)):
        weight.expect(f"predictor_input: {name}", (columns,), DType.F32)
    kernel = kernels.get("predictor_input", constants={**row_constants(info, columns), "PLUS_ONE": plus_one})
    push = kernel.pack(
        embedding=embedding.address,
        hidden=hidden.address,
        embedding_weight=embedding_weight.address,
        hidden_weight=hidden_weight.address,
        y=out.address,
        columns=columns // _VECTOR,
        eps=eps,
    )
    recorder.dispatch(kernel, push, num_tokens)
