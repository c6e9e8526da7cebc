"""Where a prediction of several tokens goes on, which the device alone knows: of which row, and at which position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.ops.sample_rows import SAMPLE_RESULT, SAMPLE_ROW

if TYPE_CHECKING:
    from unicorn_async.gpu.recorder import Kernels, Recorder

# `Step` in shaders/predictor_steps.comp.
PREDICTOR_STEP = np.dtype([("first_row", "<u4"), ("num_rows", "<u4")])

_LANES = 64
_WORD = 4


@dataclass(frozen=True, slots=True)
class PredictorSteps:
    """Arrays of the sequences whose prediction goes on; all are device addresses, borrowed.

    Of each sequence `steps` has its rows among those that the step has sampled, none where it is padding. All others
    are written here.
    """

    steps: int  # (sequences) PREDICTOR_STEP
    block_table: int  # (sequences, max_blocks) u32
    from_rows: int  # (sequences) u32: rows of the stream
    next_ids: int  # (sequences) i32
    positions: int  # (sequences) u32
    context_len: int  # (sequences) u32
    slots: int  # (sequences) u32
    sample_rows: int  # (sequences) SAMPLE_ROW, of which the position is written
    max_blocks: int
    block_size: int


def predictor_steps(
    recorder: Recorder,
    kernels: Kernels,
    arrays: PredictorSteps,
    *,
    num_sequences: int,
    predicted: int,
    token_ids: int,
    positions: int,
    logit_rows: int,
    sampled: int,
    is_first: bool,
) -> None:
    """Record where the predictions of sequences go on; barriers before and after are the caller's.

    One that `is_first` goes on behind the last sampled token of each sequence before which all that was proposed is
    right: `token_ids` (tokens) i32 and `positions` (tokens) u32 are those of the step, `logit_rows` (rows) u32 the
    tokens that were `sampled` behind, (rows) SAMPLE_RESULT, and `predicted` (rows) SAMPLE_RESULT what comes behind
    these. Others go on behind what they have `predicted`, (sequences) SAMPLE_RESULT, the last time.
    """
    assert 0 < num_sequences <= _LANES, num_sequences
    fields = SAMPLE_ROW.fields
    assert fields is not None
    constants = {
        "RESULT_WORDS": SAMPLE_RESULT.itemsize // _WORD,
        "ROW_WORDS": SAMPLE_ROW.itemsize // _WORD,
        "POSITION_WORD": fields["position"][1] // _WORD,
    }
    kernel = kernels.get("predictor_steps", constants=constants)
    push = kernel.pack(
        steps=arrays.steps,
        token_ids=token_ids,
        token_positions=positions,
        logit_rows=logit_rows,
        sampled=sampled,
        predicted=predicted,
        block_table=arrays.block_table,
        from_rows=arrays.from_rows,
        next_ids=arrays.next_ids,
        positions=arrays.positions,
        context_len=arrays.context_len,
        slots=arrays.slots,
        sample_rows=arrays.sample_rows,
        max_blocks=arrays.max_blocks,
        block_size=arrays.block_size,
        is_first=int(is_first),
        num_sequences=num_sequences,
    )
    recorder.dispatch(kernel, push, 1)
