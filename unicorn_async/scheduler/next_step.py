"""A step in the making."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf

    from unicorn_async.scheduler.batch import ScheduledSequence
    from unicorn_async.scheduler.sequence import Sequence
    from unicorn_async.scheduler.step_budget import StepBudget


@dataclass(slots=True)
class NextStep:
    """What a step has so far, and what it may still take."""

    tokens_left: int
    logit_rows_left: int  # one for each sampled token, and for each position of an evaluation
    scheduled: list[ScheduledSequence] = field(default_factory=list)
    num_tokens: int = 0
    is_bounded: bool = False  # prompts may take less than there is room for

    @property
    def is_full(self) -> bool:
        """Whether it has no room for anything more."""
        return self.tokens_left == 0 or self.logit_rows_left == 0

    @property
    def most_sampled(self) -> int:
        """How many tokens more it can sample."""
        return min(self.tokens_left, self.logit_rows_left)

    def bound_prompts(self, budget: StepBudget | None, least: int) -> None:
        """Before a step's first prompt, behind all of its decodes: leave the room that these allow, `least` tokens."""
        if budget is None or self.is_bounded or not self.scheduled or not self.scheduled[-1].is_decode:
            return
        room = max(budget.room_beside(len(self.scheduled)), least)
        if room < self.tokens_left:
            self.tokens_left, self.is_bounded = room, True

    def propose(self, part: ScheduledSequence, proposed: SequenceOf[ScheduledSequence]) -> None:
        """Add what is proposed behind a part, which takes the place of the one that there is of its sequence."""
        index = next(at for at, one in enumerate(self.scheduled) if one.sequence is part.sequence)
        self.scheduled[index : index + 1] = [part, *proposed]
        self.num_tokens += len(proposed)
        self.tokens_left -= len(proposed)
        self.logit_rows_left -= len(proposed)

    def add(self, part: ScheduledSequence, logit_rows: int) -> None:
        """Add a part of a prompt."""
        self.scheduled.append(part)
        self.num_tokens += part.num_tokens
        self.tokens_left -= part.num_tokens
        self.logit_rows_left -= logit_rows


def ready(running: SequenceOf[Sequence], *, known_only: bool) -> tuple[list[Sequence], list[Sequence]]:
    """Return what runs and has positions to compute: decodes, and prompts, each in order of admission.

    A sequence with proposals in flight is not among them: where it goes on is not known yet.
    """
    decodes: list[Sequence] = []
    prompts: list[Sequence] = []
    for sequence in running:
        if not sequence.num_remaining or sequence.num_proposed or sequence.is_restoring:
            continue
        if (
            sequence.awaits_mask or sequence.awaits_draft or (known_only and sequence.num_pending)
        ):  # all before a sampled token is known
            continue
        (decodes if sequence.is_decoding else prompts).append(sequence)
    return decodes, prompts
