"""Reads what a step left in its frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.ops.sampling import SamplingPath
from unicorn_async.step.result import SampledToken

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unicorn_async.scheduler.batch import Batch, ScheduledSequence
    from unicorn_async.step.frame import Frame, StepShape
    from unicorn_async.step.further_tokens import FurtherTokens
    from unicorn_async.step.logits_copy import LogitsCopy


def read_tokens(frame: Frame, shape: StepShape, batch: Batch) -> tuple[SampledToken, ...]:
    """Return the sampled tokens, one for each part of the batch that samples, once the step is done."""
    samples = frame.results.arrays["samples"][: batch.num_samples]
    ids = samples["token"].tolist()
    if shape.path is SamplingPath.GREEDY:
        return tuple(map(SampledToken, ids))
    found = samples["num_top"].tolist()  # fewer than asked for where fewer tokens may come
    asking = (item.sequence.sampling.top_logprobs for item in batch.scheduled if item.samples)
    return tuple(
        SampledToken(token_id)
        if num_top is None
        else SampledToken(
            token_id,
            float(samples["logprob"][row]),
            tuple(
                zip(
                    samples["top_ids"][row, : min(num_top, found[row])].tolist(),
                    samples["top_logprobs"][row, : min(num_top, found[row])].tolist(),
                    strict=True,
                )
            ),
        )
        for row, (token_id, num_top) in enumerate(zip(ids, asking, strict=True))
    )


def read_predictions(
    frame: Frame, further: FurtherTokens | None, shape: StepShape, batch: Batch
) -> tuple[tuple[int, ...], ...]:
    """Return what was predicted to come behind each sampled token, once the step is done; none if nothing was."""
    if not shape.num_drafts:
        return ()
    first = frame.results.arrays["predicted"]["token"][: batch.num_samples].tolist()
    if shape.num_drafts == 1 or further is None:
        return tuple((token,) for token in first)
    behind, found, sequence = further.read(batch), list[tuple[int, ...]](), -1
    for token, item in zip(first, (item for item in batch.scheduled if item.samples), strict=True):
        sequence += not item.proposal
        found.append((token, *behind[sequence]))
    return tuple(found)


def read_logits(copy: LogitsCopy, batch: Batch) -> tuple[tuple[ScheduledSequence, NDArray[np.float32]], ...]:
    """Return the logits of each evaluation request's part of the batch, once they are copied."""
    result: list[tuple[ScheduledSequence, NDArray[np.float32]]] = []
    row = 0
    for item in batch.scheduled:
        if item.sequence.want_logits:
            result.append((item, copy.read(row, item.num_tokens)))
            row += item.num_tokens
    return tuple(result)
