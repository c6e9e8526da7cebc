"""What RWKV's blocks begin with: the norm of the stream, mixed with that of the token before."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.ops.token_shift import ShiftState, token_shift, token_shift_state

if TYPE_CHECKING:
    from unicorn_async.models.block_recorder import BlockRecorder
    from unicorn_async.models.blocks.declarations import Norm
    from unicorn_async.ops.time_mix import TimeMixShape
    from unicorn_async.tensor import Tensor


def record_shift(
    recorder: BlockRecorder, shape: TimeMixShape, norm: Norm, mixes: str, state: int, *, num_mixes: int = 1
) -> list[Tensor]:
    """Record the norm and its mixes, by the weight `mixes`; returns these, each (tokens, columns) f32.

    `state` is the address of the first sequence's last row, which is replaced.
    """
    num_tokens, columns = recorder.num_tokens, shape.columns
    normed = recorder.rows("normed", columns)
    recorder.add_norm(norm, out=normed)
    shifted = recorder.rows("shifted", columns, num_mixes * num_tokens)
    kept = ShiftState(state, shape.state_bytes, recorder.arrays.runs)
    token_shift(
        recorder.commands,
        recorder.kernels,
        x=normed,
        mixes=recorder.vector(mixes),
        num_mixes=num_mixes,
        state=kept,
        positions=recorder.arrays.positions,
        out=shifted,
    )
    recorder.barrier()
    token_shift_state(recorder.commands, recorder.kernels, x=normed, state=kept)
    each = replace(shifted, shape=(num_tokens, columns))
    return [replace(each, address=each.address + 4 * mix * num_tokens * columns) for mix in range(num_mixes)]
