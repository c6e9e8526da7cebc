"""What a step says of the tokens behind its own, for the layer that predicts a token more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.ops.sample_rows import NO_BIASES, NO_MASK, SAMPLE_RESULT
from unicorn_async.scheduler.sequence import PENDING

if TYPE_CHECKING:
    from unicorn_async.scheduler.batch import Batch
    from unicorn_async.step.frame import Frame

_RESULT_WORDS = SAMPLE_RESULT.itemsize // 4
_UNKNOWN = 0  # in place of a token that nobody knows when the step is made, which only makes a prediction worse


def write_next_tokens(batch: Batch, frame: Frame, *, num_tokens: int, num_rows: int) -> None:
    """Write what comes behind each token, and how what comes behind the sampled ones is chosen; pad to these numbers.

    The choice is as the next step would choose it: by the same seed, at the next position, and by the same filters.
    """
    arrays, next_ids, num_sampled = frame.arguments.arrays, list[int](), 0
    for item in batch.scheduled:
        next_ids += map(_known, item.token_ids[1:])
        if item.samples:
            next_ids.append(-1 - num_sampled * _RESULT_WORDS)
            num_sampled += 1
        else:
            next_ids += map(_known, item.sequence.token_ids(item.start + item.num_tokens, 1))
    arrays["next_ids"][:num_tokens] = next_ids + [_UNKNOWN] * (num_tokens - len(next_ids))
    rows = arrays["sample_rows"][:num_rows].copy()
    rows["position"] += 1
    rows["penalised"] = rows["proposal"] = 0
    rows["mask"], rows["biases"], rows["top_logprobs"] = NO_MASK, NO_BIASES, -1
    arrays["next_rows"][:num_rows] = rows


def _known(token: int) -> int:
    return _UNKNOWN if token == PENDING else token
