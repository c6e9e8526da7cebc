"""Mixes of a token's row with the row before it of its sequence: RWKV's token shift.

Source: RWKV-7 "Goose" (arXiv 2503.14456), section 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from unicorn_async.gpu.recorder import Kernels, Recorder

_WORKGROUP = 64
_VECTOR = 4


@dataclass(frozen=True, slots=True)
class ShiftState:
    """Where last rows are kept: from `address` on, `stride` bytes a sequence; and `runs`, the address of (tokens)."""

    address: int
    stride: int
    runs: int


def token_shift(
    recorder: Recorder,
    kernels: Kernels,
    *,
    x: Tensor,
    mixes: Tensor,
    num_mixes: int,
    state: ShiftState,
    positions: int,
    out: Tensor,
) -> None:
    """Record out[m] = x + (before - x) * mixes[m], where `before` is the row of the token before, zeros at position 0.

    `x` is (tokens, columns) f32, `mixes` has (num_mixes, columns) f32, `out` is (num_mixes * tokens, columns) f32, a
    mix after the other; `positions` is the address of (tokens) u32. Raises ConfigError for other shapes.
    """
    num_tokens, columns = x.shape
    x.expect("token_shift: x", (num_tokens, columns), DType.F32)
    out.expect("token_shift: out", (num_mixes * num_tokens, columns), DType.F32)
    kernel = kernels.get("token_shift", constants={"WORKGROUP": _WORKGROUP, "MIXES": num_mixes})
    push = kernel.pack(
        x=x.address,
        mixes=mixes.address,
        state=state.address,
        runs=state.runs,
        positions=positions,
        y=out.address,
        columns=columns // _VECTOR,
        state_bytes=state.stride,
        num_rows=num_tokens,
    )
    recorder.dispatch(kernel, push, -(-columns // (_VECTOR * _WORKGROUP)), num_tokens)


def token_shift_state(recorder: Recorder, kernels: Kernels, *, x: Tensor, state: ShiftState) -> None:
    """Record what `token_shift` of later steps needs of this one, behind it and a barrier; arguments are as there."""
    num_tokens, columns = x.shape
    kernel = kernels.get("delta_conv_state", constants={"WORKGROUP": _WORKGROUP, "TAPS": 2})
    push = kernel.pack(
        projected=x.address,
        state=state.address,
        runs=state.runs,
        columns=columns // _VECTOR,
        row_columns=columns // _VECTOR,
        state_bytes=state.stride,
    )
    recorder.dispatch(kernel, push, -(-columns // (_VECTOR * _WORKGROUP)), num_tokens)
