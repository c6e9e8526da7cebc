"""Where a step's recorded commands find its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.models.activations import Residual


@dataclass(frozen=True, slots=True)
class StepArrays:
    """Device addresses of one frame's arrays; the shapes name tokens T, sequences S and rows R.

    The lengths are the frame's limits: a step fills the beginning, and pads it to its bucket.
    """

    token_ids: int  # (T) i32; negative: last_token[-1 - id]
    positions: int  # (T) u32
    logit_rows: int  # (R) u32: rows of hidden states
    sample_rows: int  # (S) SAMPLE_ROW
    resets: int  # (S) u32: state indices
    marks: int  # (T) SAMPLE_MARK
    pools: int  # (S) POOL
    results: int  # (S) SAMPLE_RESULT
    runs: int  # (T) TOKEN_RUN; 0 where no layer has a state of fixed size
    residual: Residual
    next_ids: int = 0  # (T) i32: what comes behind each token; negative: word -1 - id of the results
    next_rows: int = 0  # (S) SAMPLE_ROW: for the tokens behind those that are sampled
    predicted: int = 0  # (S) SAMPLE_RESULT: these
