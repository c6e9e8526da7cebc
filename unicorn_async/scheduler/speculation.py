"""Tokens that are proposed to sequences, for one step to check several of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.config import MAX_PROPOSED
from unicorn_async.scheduler.batch import ScheduledSequence
from unicorn_async.scheduler.prompt_lookup import PromptLookup
from unicorn_async.scheduler.step_costs import expected_right

if TYPE_CHECKING:
    from unicorn_async.scheduler.batch import Batch
    from unicorn_async.scheduler.block_manager import BlockManager
    from unicorn_async.scheduler.draft import Draft
    from unicorn_async.scheduler.proposer import Proposer
    from unicorn_async.scheduler.sequence import Sequence
    from unicorn_async.scheduler.step_costs import StepCosts

_MOST_RUNNING = 4  # sequences beside which anything is proposed: more of them have enough for the device to do


class Speculation:
    """Decides what is proposed to whom, by what it costs and by how often it was right.

    A proposed token is computed as if it were the sequence's next one, and the step samples what follows it, as in any
    other step: by the seed and the position. What was sampled before it says whether it was right. So an answer's
    tokens are what they are without proposals. What follows a wrong one is dropped, and its keys and values are
    overwritten: blocks are known to others only as far as tokens are the answer's.

    A sequence with proposals is in no other step until the host has seen how many were right. The first ones may come
    in a step that is made while the one before it still runs: they are proposed behind a token that nobody has seen.
    """

    def __init__(self, costs: StepCosts, max_sampled: int) -> None:
        """`max_sampled` is how many tokens a step may sample."""
        self._costs = costs
        self._max_sampled = max_sampled
        self._end_s = 0.0  # of the last step, by the device's clock
        self._proposed_to: frozenset[Sequence] = frozenset()  # in the last step
        self.num_proposed = 0
        self.num_right = 0

    def place(self, draft: Draft, blocks: BlockManager, num_running: int) -> None:
        """Add to a step of decodes alone what is proposed to its sequences."""
        if num_running > _MOST_RUNNING:
            return
        expected = float(len(draft.scheduled))
        for part in tuple(draft.scheduled):
            sequence = part.sequence
            most = min(
                MAX_PROPOSED,
                draft.most_sampled,
                self._max_sampled - len(draft.scheduled),
                sequence.max_length - sequence.length,
                blocks.room(sequence),
            )
            if most <= 0 or sequence.preempted or not _may_propose(sequence):
                continue
            proposer = self._proposer(sequence)
            proposer.follow(sequence.output_ids)
            ahead = part.start + 1 - sequence.num_seen
            count = self._costs.worth(
                draft.num_tokens, expected, proposer.rate, most, ahead=ahead, is_alone=num_running == 1
            )
            tokens = proposer.propose(ahead, count) if count else ()
            if tokens:
                expected += proposer.rate**ahead * expected_right(proposer.rate, len(tokens))
                sequence.is_predicted = proposer.is_predicted
                _add(draft, blocks, part, tokens)

    def observe(self, batch: Batch, step_s: float, start_s: float) -> None:
        """Note how long a step took on the device, and when it began by the device's clock."""
        if batch.decodes_only:
            self._costs.observe(batch.num_tokens, step_s)
        if any(item.sequence in self._proposed_to for item in batch.scheduled) and start_s >= self._end_s:
            self._costs.observe_gap(start_s - self._end_s)
        self._end_s = start_s + step_s
        self._proposed_to = frozenset(item.sequence for item in batch.scheduled if item.proposal)

    def count(self, sequence: Sequence, *, is_right: bool) -> None:
        """Count a token that was proposed to a sequence."""
        self.num_proposed += 1
        self.num_right += is_right
        if sequence.is_predicted:
            sequence.num_predicted_right += is_right
            sequence.num_predicted_wrong += not is_right

    def _proposer(self, sequence: Sequence) -> Proposer:
        if sequence.proposer is None:
            sequence.proposer = PromptLookup(sequence.prompt_ids, sequence.prediction_ids)
        return sequence.proposer


def _may_propose(sequence: Sequence) -> bool:
    """Whether a token depends on what was sampled before it through the model alone.

    Penalties count the tokens before it, and a grammar's mask is made of them.
    """
    return not sequence.sampling.has_penalties and sequence.sampling.grammar is None


def _add(draft: Draft, blocks: BlockManager, part: ScheduledSequence, tokens: tuple[int, ...]) -> None:
    """Add the tokens that are proposed behind a part's own."""
    sequence, start = part.sequence, part.start
    blocks.grow(sequence, start + 1 + len(tokens))
    for number, token in enumerate(tokens, 1):
        draft.add(ScheduledSequence(sequence, start + number, 1, (token,), True, True, True, number), 1)
    sequence.num_in_flight += len(tokens)
    sequence.num_proposed += len(tokens)
    sequence.is_token_elsewhere = True
