"""What one step computes, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from unicorn_async.scheduler.request import FinishReason
    from unicorn_async.scheduler.sequence import Sequence
    from unicorn_async.scheduler.state_copies import GivenState, KeptState


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
    is_decode: bool  # it is one token, sampled into the sequence's present state; all else is prompt or recomputed
    is_given: bool = False  # a decode whose token the host gives: the sequence's state may have another
    proposal: int = 0  # which of the tokens proposed behind the sequence's newest one it is; 0 = none, all are parts
    num_uncounted: int = 0  # the sequence's newest tokens that the sampler has not counted for its penalties
    state_row: int = -1  # where its state of fixed size is left behind the part; -1 = in the sequence's own row

    @property
    def resets(self) -> bool:
        """Whether it is the first part since the sequence got its state, whose row is to be reset first."""
        return self.start == self.sequence.num_found


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: decodes first, then chunks of prompts; or decodes alone, each with what is proposed behind it."""

    scheduled: tuple[ScheduledSequence, ...]
    num_tokens: int
    step: int  # counts from 0
    given: tuple[GivenState, ...] = ()  # that sequences begin with
    kept: tuple[KeptState, ...] = ()
    predicts: bool = False  # it goes through the layer that predicts a token more, where the model has one
    num_drafts: int = 0  # and so many tokens are chosen, one after the other, that it says come behind the sampled
    num_samples: int = field(init=False)  # tokens that the step samples: one for each part that `samples`, in order
    num_decodes: int = field(init=False)
    has_proposals: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_samples", sum([item.samples for item in self.scheduled]))
        object.__setattr__(self, "num_decodes", sum([item.is_decode for item in self.scheduled]))
        object.__setattr__(self, "has_proposals", any([item.proposal for item in self.scheduled]))

    @property
    def decodes_only(self) -> bool:
        """Whether there are no prompts in it."""
        return self.num_decodes == len(self.scheduled)

    @property
    def feeds_itself(self) -> bool:
        """Whether there are decodes alone, and the token of each is the last one in its sequence's state."""
        return self.decodes_only and not any([item.is_given for item in self.scheduled])


class Committed(NamedTuple):
    """What a committed step did for a sequence: a token, its end, or both.

    The end token itself is reported. `token_id` is None where a request that samples nothing ended.
    """

    sequence: Sequence
    token_id: int | None
    finish_reason: FinishReason | None
    row: int  # of the token among those that the step sampled
