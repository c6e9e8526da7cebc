"""Gates on what heads have found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.ops.rows import check_columns, form_fields, form_of, row_constants
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.ops.rows import Rows

_VECTOR = 4


@dataclass(frozen=True, slots=True)
class HeadGate:
    """Where gates lie: in each row of `rows` (tokens, columns) f32, from column `first` on, heads `stride` apart.

    With a `stride` of 0 they are all of `rows`, (tokens, heads): one gate for all of a head.
    """

    rows: Tensor
    first: int = 0
    stride: int = 0


def head_gate(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    x: Tensor,
    gate: HeadGate,
    num_heads: int,
    out: Rows,
    norm: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Record out = x * sigmoid(gate), or RMSNorm of each head times `norm` times silu(gate).

    `x` is (tokens, num_heads * head_dim) f32, `norm` (head_dim) f32; `out` is like `x`, in whatever form, and may be
    `x`. Raises ConfigError for other shapes, UnsupportedModelError for columns that are no multiple of the form's unit.
    """
    num_tokens, columns = x.shape
    check_columns("head_gate", columns, form_of(out))
    x.expect("head_gate: x", (num_tokens, columns), DType.F32)
    if norm is not None:
        norm.expect("head_gate: norm", (columns // num_heads,), DType.F32)
    constants: dict[str, int | bool] = {
        **row_constants(info, columns),
        "HEADS": num_heads,
        "HEAD_VECTORS": columns // num_heads // _VECTOR,
        "WITH_NORM": norm is not None,
    }
    if not gate.stride:
        gate.rows.expect("head_gate: gate", (num_tokens, num_heads), DType.F32)
        constants["ONE_GATE"] = True
    kernel = kernels.get(f"head_gate_{form_of(out).value}", constants=constants)
    push = kernel.pack(
        **form_fields(out),
        x=x.address,
        gate=gate.rows.address + 4 * gate.first,
        weight=0 if norm is None else norm.address,
        row_columns=gate.rows.shape[1] // _VECTOR,
        head_columns=gate.stride // _VECTOR,
        eps=eps,
    )
    recorder.dispatch(kernel, push, num_tokens)
