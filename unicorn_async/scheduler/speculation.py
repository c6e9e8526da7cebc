"""Tokens that are proposed to sequences, for one step to check several of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.config import MAX_PREDICTED, MAX_PROPOSED, MAX_SPECULATING
from unicorn_async.scheduler.batch import ScheduledSequence
from unicorn_async.scheduler.draft_wishes import GAIN_BEHIND, LEAST_GAIN, DraftRates, wished_drafts
from unicorn_async.scheduler.guided_proposer import GuidedProposer
from unicorn_async.scheduler.prompt_lookup import PromptLookup
from unicorn_async.scheduler.step_costs import expected_right

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as SequenceOf

    from unicorn_async.scheduler.batch import Batch
    from unicorn_async.scheduler.block_manager import BlockManager
    from unicorn_async.scheduler.next_step import NextStep
    from unicorn_async.scheduler.prefixes import Prefixes
    from unicorn_async.scheduler.proposer import Proposer
    from unicorn_async.scheduler.sequence import Sequence
    from unicorn_async.scheduler.state_rows import StateRows
    from unicorn_async.scheduler.step_costs import StepCosts


class Speculation:
    """Decides what is proposed to whom, by what it costs and by how often it was right.

    A proposed token is computed as if it were the sequence's next one, and the step samples what follows it, as in any
    other step: by the seed and the position. What was sampled before it says whether it was right. So an answer's
    tokens are what they are without proposals. What follows a wrong one is dropped, and its keys and values are
    overwritten: blocks are known to others only as far as tokens are the answer's.

    A sequence with proposals is in no other step until the host has seen how many were right. The first ones may come
    in a step that is made while the one before it still runs: they are proposed behind a token that nobody has seen.
    """

    def __init__(self, costs: StepCosts, max_sampled: int, *, predicts: bool = False) -> None:
        """`max_sampled` is how many tokens a step may sample; if it `predicts`, the model has a layer that drafts."""
        self.predicts = predicts
        self._pays = predicts  # what the model predicts, as far as is known
        self._costs = costs
        self._max_sampled = max_sampled
        self._end_s = 0.0  # of the last step, by the device's clock
        self._proposed_to: frozenset[Sequence] = frozenset()  # in the last step
        self._num_draft_steps = 0  # before the last step with drafts
        self._draft_s: float | None = 0.0  # what they took on the device; None where they waited for their commands
        self.drafts: DraftRates | None = DraftRates() if predicts else None  # else once a draft model is there
        self.num_proposed = 0
        self.num_right = 0
        self.num_drafted = 0  # of those, what a draft model proposed
        self.num_drafted_right = 0

    def place(
        self, step: NextStep, blocks: BlockManager, states: StateRows, prefixes: Prefixes, num_running: int
    ) -> None:
        """Add to a step of decodes alone what is proposed to its sequences."""
        if num_running > MAX_SPECULATING:
            return
        expected, drafted = float(len(step.scheduled)), 0
        for part in tuple(step.scheduled):
            sequence = part.sequence
            most = min(
                MAX_PROPOSED,
                step.most_sampled,
                self._max_sampled - len(step.scheduled),
                sequence.max_length - sequence.length,
                blocks.room(sequence),
                states.most_proposed(sequence),
                prefixes.most_proposed(sequence),
            )
            ahead = part.start + 1 - sequence.num_seen
            if most <= 0 or ahead or sequence.preempted:
                sequence.drafted, sequence.draft_count = (), 0  # it is not behind this step's token, or the next one's
            if most <= 0 or sequence.preempted:
                continue
            known, is_guided = self._take_draft(sequence, most), sequence.sampling.grammar is not None
            drafted = max(drafted, len(sequence.drafted))
            if known and not is_guided:
                sequence.is_predicted = False
                _add(step, blocks, states, part, known)
                continue
            proposer = self._proposer(sequence)
            proposer.follow(sequence.output_ids)
            count = self._costs.worth(
                step.num_tokens,
                expected,
                proposer.rate,
                most,
                ahead=ahead,
                is_alone=num_running == 1,
                is_awaited=is_guided,
            )
            count = max(count, len(known))
            tokens = proposer.propose(ahead, count) if count else ()
            if tokens:
                expected += proposer.rate**ahead * expected_right(proposer.rate, len(tokens))
                sequence.is_predicted = not known and proposer.is_predicted
                _add(step, blocks, states, part, tokens)
        self._num_draft_steps = drafted or self._num_draft_steps

    def _take_draft(self, sequence: Sequence, most: int) -> tuple[int, ...]:
        """Return what was drafted to a sequence, as far as it may come; a draft of which nothing may is a wrong one."""
        allowed = sequence.allowed_drafted
        if sequence.drafted and not allowed and self.drafts is not None:
            self.drafts.note(sequence, is_right=False)
        known = allowed[:most]
        sequence.num_drafted, sequence.is_draft_missed = len(known), False
        sequence.is_draft_cut = 0 < len(known) == len(allowed) < len(sequence.drafted)
        return known

    def wish_drafts(
        self, running: SequenceOf[Sequence], num_waiting: int, lag: Callable[[Sequence], int | None]
    ) -> list[Sequence]:
        """Say how many tokens are to be drafted to each sequence; returns those that a draft model has to reach first.

        `lag` says how far it is behind a sequence, None where it can't draft: it stays behind as long as no draft would
        be worth its time. Sequences that get drafts do so together, and where prompts come or many run none do.
        """
        for sequence in running:
            sequence.draft_count = len(sequence.drafted)
        if self.drafts is None or not self._may_wait(running, num_waiting):
            return []
        self.drafts.keep(running)
        rates: dict[Sequence, float] = {}
        most: dict[Sequence, int] = {}
        behind: list[Sequence] = []
        for sequence in running:
            left = sequence.max_length - sequence.length - 1  # behind the token that comes without
            if sequence.num_proposed or sequence.drafted or sequence.awaits_mask or left <= 0:
                continue
            missing = lag(sequence)
            if missing is None:
                continue
            proposer, rate = self._proposer(sequence), self.drafts.rate(sequence)
            proposer.follow(sequence.output_ids)
            if proposer.rate < rate:
                rates[sequence], most[sequence] = rate, left
                if missing:
                    behind.append(sequence)
        counts = wished_drafts(
            rates,
            most,
            self._costs,
            self.drafts.step_s,
            num_decodes=len(running),
            room=self._max_sampled - len(running),
            first_s=self.drafts.first_s,
            least_gain=GAIN_BEHIND if behind else LEAST_GAIN,
        )
        for sequence, count in counts.items():
            sequence.draft_count = 0 if sequence in behind else count
        return [sequence for sequence in behind if sequence in counts]

    def note_draft(self, device_s: float | None) -> None:
        """Note what the steps of a draft took on the device, None where some of them waited for their commands."""
        self._draft_s = device_s

    def _may_wait(self, running: SequenceOf[Sequence], num_waiting: int) -> bool:
        """Whether sequences may wait for drafts: few decode, a step has room for all of them, and nobody else comes."""
        is_few = len(running) <= min(MAX_SPECULATING, self._costs.most_tokens)
        return is_few and not num_waiting and all(one.is_decoding for one in running)

    def predicting(self, batch: Batch, blocks: BlockManager, max_context: int) -> Batch:
        """Return a step that goes through the layer that predicts, if it is to: its keys are there for drafts to come.

        Where no draft would pay, what that layer says is not chosen: this saves the time of the head. Else it goes on
        with what it says as often as the last of these tokens is worth it, and there are blocks for that.
        """
        sequences = {part.sequence for part in batch.scheduled}
        if not self.predicts or len(sequences) > MAX_SPECULATING or not all(one.samples for one in sequences):
            return batch
        if batch.decodes_only and not self._pays:
            return replace(batch, predicts=True)
        num_drafts = self._num_predicted(batch, blocks, max_context)
        for part in batch.scheduled:
            if part.samples:
                part.sequence.num_predicting += 1
                part.sequence.num_foretold = num_drafts
        return replace(batch, predicts=True, num_drafts=num_drafts)

    def _num_predicted(self, batch: Batch, blocks: BlockManager, max_context: int) -> int:
        """Return how many tokens the model predicts to each sequence of a step; their positions get blocks."""
        rates: dict[Sequence, float] = {}
        ends: dict[Sequence, int] = {}  # behind the last positions that it samples behind
        for part in batch.scheduled:
            if part.samples:
                ends[part.sequence] = part.start + part.num_tokens
        for sequence in ends:
            if (rate := self._predicted_rate(sequence)) is not None:
                rates[sequence] = rate
        counts = self._predictions_worth(rates, dict.fromkeys(rates, MAX_PREDICTED), len(ends))
        most = max(counts.values(), default=1)
        for sequence, end in ends.items() if most > 1 else ():
            room = sequence.num_covered + blocks.num_free * blocks.block_size
            most = max(min(most, sequence.max_length - end - 1, min(room, max_context) - end + 1), 1)
            blocks.grow(sequence, end + most - 1)
        return most

    def _predicted_rate(self, sequence: Sequence) -> float | None:
        """How likely what the model predicts next is right; None where something else is likelier to be."""
        assert self.drafts is not None, "it predicts"
        proposer, rate = self._proposer(sequence), self.drafts.rate(sequence)
        proposer.follow(sequence.output_ids)
        is_foreseen = sequence.sampling.grammar is not None and bool(sequence.drafted)  # in place of other text
        return rate if proposer.rate < rate or is_foreseen else None

    def _predictions_worth(
        self, rates: dict[Sequence, float], most: dict[Sequence, int], num_decodes: int
    ) -> dict[Sequence, int]:
        """Return how many of up to `most` predicted tokens are worth waiting for: all but the first have their time."""
        assert self.drafts is not None, "it predicts"
        return wished_drafts(
            rates,
            most,
            self._costs,
            self.drafts.step_s,
            num_decodes=num_decodes,
            room=self._max_sampled - num_decodes,
            first_s=self._costs.gap_s,
        )

    def wish_predictions(self, running: SequenceOf[Sequence], num_waiting: int) -> None:
        """Say which sequences wait for what the model itself predicts behind their newest token: where that pays."""
        if not self.predicts or self.drafts is None:
            return
        self.drafts.keep(running)
        rates: dict[Sequence, float] = {}
        most: dict[Sequence, int] = {}
        for sequence in running if self._may_wait(running, num_waiting) else ():
            left = sequence.max_length - sequence.length - (sequence.num_pending == 0)
            if sequence.num_proposed or left <= 0:
                continue
            if (rate := self._predicted_rate(sequence)) is not None:
                rates[sequence] = rate
                most[sequence] = min(left, len(sequence.drafted) or max(sequence.num_foretold, 1))
        counts = self._predictions_worth(rates, most, len(running)) if rates else {}
        if rates:  # else nothing is known to be worth less
            self._pays = bool(counts) or not self._costs.seconds(len(running))
        for sequence in running:
            is_there = bool(sequence.drafted) or sequence.num_predicting > 0
            sequence.draft_count = counts.get(sequence, 0) if is_there else 0
            sequence.drafted = () if sequence.num_pending else sequence.drafted[: sequence.draft_count]

    def foresee(self, sequence: Sequence, num_running: int) -> tuple[tuple[int, ...], int]:
        """Return tokens that may be proposed next to a sequence with a grammar, and behind how many masks are wanted.

        One more mask than is worth it tells how often that would be right. What was drafted goes first; of what the
        model itself predicts, that is if the text is not as likely to be right.
        """
        if num_running > MAX_SPECULATING:
            return (), 0
        proposer = self._proposer(sequence)
        proposer.follow(sequence.output_ids)
        assert isinstance(proposer, GuidedProposer)
        most = min(MAX_PROPOSED, self._max_sampled - 1)
        rate, is_alone = proposer.expected_rate, num_running == 1
        most = max(self._costs.worth(1, 1.0, rate, most, ahead=0, is_alone=is_alone, is_awaited=True), 1)
        text = proposer.from_text(most)
        if self.predicts and text and self.drafts is not None and proposer.text_rate >= self.drafts.rate(sequence):
            sequence.drafted = ()
        return sequence.drafted or text, max(most, len(sequence.drafted))

    def observe(
        self, batch: Batch, step_s: float, start_s: float, *, was_late: bool = False, drafting_s: float = 0.0
    ) -> None:
        """Note how long a step took on the device, and when it began by the device's clock.

        How long the device waited before one that `was_late` says nothing of the next ones. What the model predicted
        behind a first token took `drafting_s` of the time.
        """
        if batch.decodes_only:
            self._costs.observe(batch.num_tokens, step_s - drafting_s)
        if self.drafts is not None and batch.num_drafts > 1:
            self.drafts.observe(batch.num_drafts - 1, drafting_s)
        if not was_late:
            self._observe_gap(batch, start_s)
        self._end_s = start_s + step_s
        self._proposed_to = frozenset(
            item.sequence for item in batch.scheduled if item.proposal and item.sequence.sampling.grammar is None
        )

    def _observe_gap(self, batch: Batch, start_s: float) -> None:
        gap_s = max(start_s - self._end_s, 0.0)
        is_drafted = any(item.proposal and item.sequence.num_drafted for item in batch.scheduled)
        if self.drafts is not None and not self.predicts and is_drafted:
            if self._draft_s is not None:
                self.drafts.observe(self._num_draft_steps, self._draft_s, max(gap_s - self._draft_s, 0.0))
        else:
            if self.drafts is not None:
                self.drafts.pass_step()
            if any(item.sequence in self._proposed_to for item in batch.scheduled) and start_s >= self._end_s:
                self._costs.observe_gap(gap_s)

    def count(self, sequence: Sequence, number: int, *, is_right: bool) -> None:
        """Count a token that was proposed to a sequence, by its number from 1 on."""
        self.num_proposed += 1
        self.num_right += is_right
        if number <= sequence.num_drafted and self.drafts is not None:
            self.num_drafted += 1
            self.num_drafted_right += is_right
            if not sequence.is_draft_missed:
                self.drafts.note(sequence, is_right=is_right)
                sequence.is_draft_missed = not is_right
            if sequence.is_draft_cut and number == sequence.num_drafted and is_right:
                self.drafts.note(sequence, is_right=False)
        if sequence.is_predicted:
            sequence.num_predicted_right += is_right
            sequence.num_predicted_wrong += not is_right

    def _proposer(self, sequence: Sequence) -> Proposer:
        if sequence.proposer is None:
            text = PromptLookup(sequence.prompt_ids, sequence.prediction_ids)
            sequence.proposer = text if sequence.sampling.grammar is None else GuidedProposer(sequence, text)
        return sequence.proposer


def _add(
    step: NextStep, blocks: BlockManager, states: StateRows, part: ScheduledSequence, tokens: tuple[int, ...]
) -> None:
    """Add the tokens that are proposed behind a part's own."""
    sequence, start = part.sequence, part.start
    blocks.grow(sequence, start + 1 + len(tokens))
    rows = states.take(sequence, len(tokens))
    proposed = [
        ScheduledSequence(sequence, start + number, 1, (token,), True, True, True, number, state_row=rows[number])
        for number, token in enumerate(tokens, 1)
    ]
    step.propose(part._replace(state_row=rows[0]), proposed)
    sequence.num_in_flight += len(tokens)
    sequence.num_proposed += len(tokens)
    sequence.is_token_elsewhere = True
