"""Embeddings: hidden states of a sequence, added up step by step, and what becomes of the sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError
from unicorn_async.tensor import DType

if TYPE_CHECKING:
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.tensor import Tensor

_LANES = 64


def sums_bytes(num_states: int, columns: int) -> int:
    """Size of the sums of all states' sequences, (states, columns) f32, in bytes."""
    return 4 * num_states * columns


def pool_rows(
    recorder: Recorder, kernels: Kernels, *, x: Tensor, parts: int, num_parts: int, sums: int, out: int
) -> None:
    """Record that rows of `x` are added to their sequences' sums, and the embeddings of those that end with them.

    `x` is (tokens, columns) f32, `parts` the address of (num_parts) POOL, padded with NO_STATE, of different states.
    `sums` is that of (states, columns) f32, `out` of (num_parts, columns) f32, each embedding in its part's row.
    Barriers before and after are the caller's; the one between the dispatches is recorded here.
    """
    if len(x.shape) != 2 or x.dtype is not DType.F32:
        raise ConfigError(f"pool_rows: x: expected (tokens, columns) F32, got {x.shape} {x.dtype.name}")
    columns = x.shape[1]
    add = kernels.get("pool_rows")
    push = add.pack(x=x.address, parts=parts, sums=sums, columns=columns)
    recorder.dispatch(add, push, -(-columns // _LANES), num_parts)
    recorder.barrier()
    finish = kernels.get("pool_finish")
    push = finish.pack(sums=sums, parts=parts, y=out, columns=columns)
    recorder.dispatch(finish, push, num_parts)
