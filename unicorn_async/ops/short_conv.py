"""The gated short convolution of LFM2, over the tokens of each sequence.

Source: transformers' `modeling_lfm2.py`, `Lfm2ShortConv`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.ops.rows import RowForm, check_columns, form_fields, form_of, row_constants
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.ops.rows import Rows

_WORKGROUP = 64
_VECTOR = 4


def short_conv_state_bytes(columns: int, num_taps: int) -> int:
    """Return what a sequence keeps: its last num_taps - 1 inputs of the convolution, each `columns` f32."""
    return 4 * (num_taps - 1) * columns


def short_conv(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    projected: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    state: int,
    runs: int,
    positions: int,
    out: Rows,
) -> None:
    """Record out = C * (conv(B * x) + bias), where the convolution goes back through a sequence's tokens.

    `projected` is (tokens, 3 * columns) f32, B before C before x; `taps` (columns, num_taps) f32, the oldest first;
    `bias` (columns) f32. `state` is the address of (states, num_taps - 1, columns) f32, which
    `short_conv_state` has left there, `runs` that of (tokens) TOKEN_RUN, `positions` of (tokens) u32. `out` is
    (tokens, columns) in whatever form and elsewhere.

    Raises ConfigError for other shapes, UnsupportedModelError for columns that are no multiple of the form's unit.
    """
    num_tokens, columns = projected.shape[0], projected.shape[1] // 3
    num_taps = _check("short_conv", projected, taps)
    check_columns("short_conv", columns, form_of(out))
    if bias is not None:
        bias.expect("short_conv: bias", (columns,), DType.F32)
    if isinstance(out, Tensor):
        out.expect("short_conv: out", (num_tokens, columns), DType.F32)
    lanes = {"WORKGROUP": _WORKGROUP, "VECTORS": 1}
    if form_of(out) in (RowForm.HALVES, RowForm.FRAGMENTS):  # rows have a scale, so workgroups have rows
        lanes = row_constants(info, columns)
    request = KernelRequest(
        f"short_conv_{form_of(out).value}", {**lanes, "TAPS": num_taps, "HAS_BIAS": int(bias is not None)}
    )
    kernel = kernels.get(request.name, constants=request.constants)
    push = kernel.pack(
        **form_fields(out),
        projected=projected.address,
        taps=taps.address,
        bias=0 if bias is None else bias.address,
        state=state,
        runs=runs,
        positions=positions,
        columns=columns // _VECTOR,
    )
    recorder.dispatch(kernel, push, -(-columns // (_VECTOR * lanes["WORKGROUP"] * lanes["VECTORS"])), num_tokens)


def short_conv_state(
    recorder: Recorder, kernels: Kernels, *, projected: Tensor, taps: Tensor, state: int, runs: int
) -> None:
    """Record what later steps need of this one, behind `short_conv` and a barrier; arguments are as there."""
    num_tokens, columns = projected.shape[0], projected.shape[1] // 3
    num_taps = _check("short_conv_state", projected, taps)
    kernel = kernels.get("short_conv_state", constants={"WORKGROUP": _WORKGROUP, "TAPS": num_taps})
    push = kernel.pack(projected=projected.address, state=state, runs=runs, columns=columns // _VECTOR)
    recorder.dispatch(kernel, push, -(-columns // (_VECTOR * _WORKGROUP)), num_tokens)


def _check(name: str, projected: Tensor, taps: Tensor) -> int:
    """Check the shapes; returns the number of taps."""
    num_tokens, columns = projected.shape[0], projected.shape[1] // 3
    check_columns(name, columns, RowForm.FLOATS)
    projected.expect(f"{name}: projected", (num_tokens, 3 * columns), DType.F32)
    num_taps = taps.shape[-1]
    taps.expect(f"{name}: taps", (columns, num_taps), DType.F32)
    return num_taps
