"""What one step computes, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from unicorn_async.scheduler.request import FinishReason
    from unicorn_async.scheduler.sequence import Sequence


class ScheduledSequence(NamedTuple):
    """One sequence's part of a step: positions `start` to `start + num_tokens - 1`.

    The sequence's block tables cover these positions, and those that their attention windows reach back to. They
    change when later steps are scheduled or committed: read them before that.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    token_ids: tuple[int, ...]  # (num_tokens); PENDING where the GPU feeds its own last token
    samples: bool  # the last position is the sequence's newest token: its successor is sampled
    is_decode: bool  # it is one token, sampled into the sequence's present slot; all else is prompt or recomputed

    @property
    def resets(self) -> bool:
        """Whether it is the first part since the sequence got its slot, whose state row is to be reset first."""
        return self.start == 0


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: decodes first, then chunks of prompts."""

    scheduled: tuple[ScheduledSequence, ...]
    num_tokens: int
    step: int  # counts from 0

    @property
    def num_samples(self) -> int:
        """Tokens that the step samples: one for each part that `samples`, in order."""
        return sum(item.samples for item in self.scheduled)


class Committed(NamedTuple):
    """What a committed step did for a sequence: a token, its end, or both.

    The end token itself is reported. `token_id` is None where an evaluation request ended.
    """

    sequence: Sequence
    token_id: int | None
    finish_reason: FinishReason | None
