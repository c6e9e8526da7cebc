"""Which tokens of which sequences the next step computes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from unicorn_async.errors import QueueFullError
from unicorn_async.scheduler.batch import Batch, Committed, ScheduledSequence
from unicorn_async.scheduler.block_manager import BlockGroup, BlockManager
from unicorn_async.scheduler.bounds import set_bounds
from unicorn_async.scheduler.kept_prefixes import KeptPrefixes
from unicorn_async.scheduler.kept_state_prefixes import KeptStatePrefixes
from unicorn_async.scheduler.next_step import NextStep, ready
from unicorn_async.scheduler.occupancy import Occupancy
from unicorn_async.scheduler.places import Places
from unicorn_async.scheduler.prefixes import Prefixes
from unicorn_async.scheduler.prompt_turns import PromptTurns
from unicorn_async.scheduler.request import FinishReason
from unicorn_async.scheduler.sequence import PENDING
from unicorn_async.scheduler.state_copies import StateCopies
from unicorn_async.scheduler.state_prefixes import StatePrefixes
from unicorn_async.scheduler.state_rows import StateRows

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as SequenceOf

    from unicorn_async.scheduler.kept_blocks import KeptBlocks
    from unicorn_async.scheduler.kept_prefixes import Restore
    from unicorn_async.scheduler.sequence import Sequence
    from unicorn_async.scheduler.speculation import Speculation
    from unicorn_async.scheduler.step_budget import StepBudget


_FED_BACK = (PENDING,)


class Scheduler(Occupancy):
    """Continuous batching with steps in flight: clients have fair shares, each is served in the order of arrival.

    `schedule` is called while earlier steps run: it takes for granted that each of them yields its tokens and that no
    sequence ends. `commit` sets that right, in the order in which the batches were scheduled. Of a client every running
    sequence was admitted before every one that waits for a place again, but for those whose blocks could not be brought
    back; nobody can preempt the first that runs, so that it always goes on.

    Prompts have their parts of steps in the order of admission, and those of several clients in turns.

    With a `step_budget` prompts get as many tokens beside decoding sequences as the budget allows, and a block's at
    least; without decoding sequences they get all there is room for. Where a step has no room for all sequences that
    decode and a block's tokens of prompts, prompts that want it get that block, but no more than half of the step, and
    the sequences that decode take turns: those go first that have waited longest.

    With `in_order` every layer takes the steps in the order in which they were scheduled, so that the next one may
    write where the last one, still in flight, reads for the last time: a prompt of any length then goes on through the
    blocks of a window and a step. Not where layers read once more what others have written (`reads_again`).

    With `grows` there are no blocks yet: `add_blocks` brings them, and `wants_blocks` says that the last step lacked
    some. Until `end_growth`, who lacks blocks waits for them, and takes none from others.

    With a `speculation` steps of decodes alone check tokens that it proposes to their sequences.

    With `shares_prefixes`, which wants them in order, a sequence begins behind those blocks of its prompt that others
    have computed, or will in this step; and one whose next block is to come of another's prompt waits for that.

    With `num_state_copies`, rows behind those of sequences, who shares begins with a copy of a state of fixed size. A
    step makes them behind multiples of `kept_tokens` of what it has of a sequence, and behind all of that. What is
    proposed wants of the `num_spare_states` behind these; None where no layer has a state.

    With `kept` blocks that the device has no more are brought back by who copies, and copies of states, as those of a
    group behind all others: see `KeptPrefixes`.

    With `side_by_side` a sequence's blocks are neighbours where they can be.
    """

    def __init__(
        self,
        *,
        groups: SequenceOf[BlockGroup],
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_context: int,
        max_waiting: int,
        max_logit_rows: int,
        eos_token_ids: Iterable[int],
        step_budget: StepBudget | None = None,
        speculation: Speculation | None = None,
        in_order: bool = False,
        reads_again: bool = False,
        grows: bool = False,
        shares_prefixes: bool = False,
        num_state_copies: int = 0,
        num_spare_states: int | None = None,
        kept_tokens: int = 1,
        side_by_side: bool = False,
        kept: KeptBlocks | None = None,
    ) -> None:
        assert in_order or not shares_prefixes, "what is scheduled first has to be there first"
        blocks = BlockManager(groups, block_size, grows=grows, side_by_side=side_by_side)
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_context = max_context
        self._max_waiting = max_waiting
        self._max_logit_rows = max_logit_rows
        self._eos_token_ids = frozenset(eos_token_ids)
        self._step_budget = step_budget
        self.speculation = speculation
        self.in_order = in_order
        self._writes_behind = in_order and not reads_again
        self.prefixes = Prefixes(blocks, shares=shares_prefixes)
        copies = StateCopies(max_num_seqs, num_state_copies) if num_state_copies else None
        if copies is not None:
            self.prefixes = StatePrefixes(blocks, copies, kept_tokens)
        self.kept_prefixes: KeptPrefixes | None = None
        if kept is not None:
            assert shares_prefixes, "they are found as others are"
            self.prefixes = self.kept_prefixes = (
                KeptPrefixes(blocks, kept) if copies is None else KeptStatePrefixes(blocks, copies, kept_tokens, kept)
            )
        self._states = StateRows(max_num_seqs, max_num_seqs + num_state_copies, num_spare_states)
        places = Places(blocks, self.prefixes, self._states, max_num_seqs, max_num_batched_tokens)
        super().__init__(blocks, places)
        self._in_flight: deque[Batch] = deque()
        self._num_arrivals = 0
        self._num_steps = 0
        self._prompt_turns = PromptTurns()
        self._num_turns = 0  # of parts of prompts, and of decodes where not all had one
        self.num_bounded_steps = 0  # whose prompts got less than there was room for

    @property
    def has_work(self) -> bool:
        """Whether anything waits, runs or is in flight; then `schedule` or the commit of a step in flight goes on."""
        return bool(self._places.waiting or self._places.running or self._in_flight)

    @property
    def max_context(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self._max_context

    def add_blocks(self, group: int, blocks: Iterable[int]) -> None:
        """Have more blocks of a group, whose memory is there from now on."""
        self._blocks.pools[group].add(blocks)

    def lacks_blocks(self, sequence: Sequence) -> bool:
        """Whether a sequence gets no further before more blocks come, so that what it has may be all that it will."""
        return self._blocks.is_growing and not sequence.num_pending and not self._blocks.has_room(sequence)

    def end_growth(self) -> list[Sequence]:
        """Take it that no more blocks come; returns the sequences that get no further, for who added them to end."""
        room = self._blocks.end_growth()
        if room is None:
            return []
        self._max_context = min(self._max_context, room)
        return [sequence for sequence in (*self._places.running, *self._places.waiting) if not sequence.confine(room)]

    def add(self, sequence: Sequence) -> Sequence | None:
        """Accept a new sequence, and give it its place in the order of arrival.

        Returns one that has to end for it, for who added that to end it: the queue is full, mostly of one client's.

        Raises:
            PromptTooLongError: the context has no room for the prompt and one token.
            QueueFullError: max_num_seqs + max_waiting sequences are here already, in fair shares.
            RequestError: the prompt is empty, prompt and answer can never fit the KV cache, or more tokens have biases,
                or are banned, than there is room for.
        """
        set_bounds(sequence, self._max_context, self._eos_token_ids)
        self._blocks.check_fits(sequence)
        displaced: Sequence | None = None
        waiting = self._places.waiting
        if len(waiting) + self._places.num_taken >= self._max_num_seqs + self._max_waiting:
            displaced = waiting.place_for(sequence)
            if displaced is None:
                raise QueueFullError(f"{len(waiting)} requests wait already, at most {self._max_waiting} may")
        sequence.arrival = self._num_arrivals
        self._num_arrivals += 1
        waiting.add(sequence)
        return displaced

    def schedule(self, *, known_only: bool = False) -> Batch | None:
        """Return the next step, or None where nothing can be computed before a step in flight is committed.

        With `known_only` no step has tokens that a step in flight is to sample: it needs nothing of that step's end.
        """
        self._places.wants_blocks = False
        self._places.make_way()
        if self.speculation is not None:
            self.speculation.wish_predictions(self._places.running, self.num_waiting)
        step = NextStep(self._max_num_batched_tokens, self._max_logit_rows)
        decodes, prompts = ready(self._places.running, known_only=known_only)
        room = self._room_for_decodes(len(decodes), prompts, step)
        is_stalled = not self._place_decodes(decodes, step, room)
        prompts = self._prompt_turns.ordered(prompts, self._places.running)
        if not step.is_full and not is_stalled and self._is_turn_of_waiting(prompts):
            self._admit(step, before=prompts)
        for sequence in prompts:
            if step.is_full:
                break
            if sequence.preempted:  # by one before it in this very step
                continue
            if self._writes_behind:
                self._blocks.trim(sequence, sequence.num_scheduled)
            if self._places.has_room(sequence):
                step.bound_prompts(self._step_budget, self._blocks.block_size)
                self._place(sequence, step)
            else:
                is_stalled = True
        while not step.is_full and not is_stalled and self._admit(step):
            pass
        if self._places.waiting and step.is_full and not step.scheduled[-1].is_decode:
            self.prefixes.expect(self._places.first())
        if not step.scheduled and not room:  # left to prompts that could not go on
            self._place_decodes(decodes, step, step.most_sampled)
        if not step.scheduled:
            return None
        if self.speculation is not None and step.scheduled[-1].is_decode and not known_only and not is_stalled:
            self.speculation.place(step, self._blocks, self._states, self.prefixes, len(self._places.running))
        self.num_bounded_steps += step.is_bounded and step.tokens_left == 0
        given, kept = self.prefixes.take_copies()
        given += self._states.end_step()
        batch = Batch(tuple(step.scheduled), step.num_tokens, self._num_steps, given, kept)
        if self.speculation is not None:
            batch = self.speculation.predicting(batch, self._blocks, self._max_context)
        self._num_steps += 1
        self._in_flight.append(batch)
        return batch

    def commit(
        self,
        batch: Batch,
        sampled: SequenceOf[int],
        *,
        step_s: float | None = None,
        start_s: float = 0.0,
        was_late: bool = False,
        predicted: SequenceOf[tuple[int, ...]] = (),
        drafting_s: float = 0.0,
    ) -> list[Committed]:
        """Take the tokens of the oldest step in flight, one for each of its parts that samples, in order.

        Tokens of sequences that have ended meanwhile are dropped, and those behind wrong proposals. The rest of the
        result keeps the batch's order. `step_s` is how long the device worked on the step, where that is known, and
        `start_s` when it began, by the device's clock; one that `was_late` waited for what another like it will not.
        What was `predicted` to come behind each token is in the order of these, if anything was; it took `drafting_s`.
        """
        assert self._in_flight and self._in_flight[0] is batch, f"step {batch.step} is not the oldest in flight"
        assert len(sampled) == batch.num_samples, f"step {batch.step}: {batch.num_samples} tokens, got {len(sampled)}"
        self._in_flight.popleft()
        if self._step_budget is not None and step_s is not None and not batch.has_proposals:
            self._step_budget.observe(batch.num_decodes, batch.num_tokens, step_s)
        if self.kept_prefixes is not None and step_s is not None:
            self.kept_prefixes.observe(batch.num_tokens, batch.num_decodes, step_s)
        if self.speculation is not None and step_s is not None:
            self.speculation.observe(batch, step_s, start_s, was_late=was_late, drafting_s=drafting_s)
        self.prefixes.commit(batch.kept)
        committed: list[Committed] = []
        row = 0
        for item in batch.scheduled:
            sequence, start, num_tokens, token_ids, samples, _, _, proposal, _, state_row = item
            sequence.num_in_flight -= 1
            sequence.num_predicting -= batch.num_drafts > 0 and samples
            if proposal:
                assert self.speculation is not None
                sequence.num_proposed -= 1
                is_computed = sequence.accept_proposal(start, token_ids[0])
                self.speculation.count(sequence, proposal, is_right=is_computed)
            else:
                is_computed = True
                sequence.num_computed = start + num_tokens
                sequence.num_pending -= samples
            self._states.commit(sequence, state_row, is_right=is_computed)
            self.prefixes.know(sequence, sequence.num_computed)
            if is_computed and sequence.finish_reason is None:
                if samples:
                    sequence.accept(sampled[row])
                    sequence.num_uncounted += proposal > 0
                    if predicted and not sequence.num_pending:
                        sequence.drafted = predicted[row]
                    committed.append(Committed(sequence, sampled[row], sequence.finish_reason, row))
                elif not sequence.samples and start + num_tokens == sequence.max_length:
                    sequence.finish_reason = FinishReason.STOP
                    committed.append(Committed(sequence, None, FinishReason.STOP, row))
            row += samples
            if sequence.finish_reason is not None or sequence.preempted:
                self._places.retire(sequence)
            else:
                self._blocks.trim(sequence, sequence.num_computed)  # what steps in flight compute comes behind it
        return committed

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence from outside; what has ended already keeps its reason.

        Its blocks and its state are free at once, or when its last step in flight is committed.
        """
        if sequence.finish_reason is None:
            sequence.finish_reason = reason
            self._places.waiting.remove(sequence)
            self._places.retire(sequence)

    def restore_failed(self, restore: Restore) -> None:
        """Have a sequence begin anew whose blocks have not come back; harmless for one that has left."""
        if not restore.is_cancelled:
            self._places.give_back(restore.sequence)

    def _admit(self, step: NextStep, before: SequenceOf[Sequence] = ()) -> bool:
        """Give who gets the next place that, and what fits of its prompt, unless its blocks are to come first.

        Returns whether anybody got one: `before` prompts of those that run nobody does whose client's turn is later.
        """
        beginning = self._places.admissible()
        if beginning is None or (before and not self._prompt_turns.is_before(beginning.sequence.client, before)):
            return False
        step.bound_prompts(self._step_budget, self._blocks.block_size)
        sequence = self._places.admit(beginning)
        if not sequence.is_restoring:
            self._place(sequence, step)
        return True

    def _room_for_decodes(self, num_decodes: int, prompts: SequenceOf[Sequence], step: NextStep) -> int:
        """Return how many decodes the step may begin with, for prompts to get what they are promised."""
        most, block_size = step.most_sampled, self._blocks.block_size
        if num_decodes + block_size <= most:
            return most
        wanted = sum([prompt.num_remaining for prompt in prompts])
        if wanted < block_size and (beginning := self._places.admissible()) is not None:
            wanted += beginning.sequence.length
        half = (most + self._num_steps % 2) // 2  # of a step of one token, every other step
        return most - min(wanted, block_size, half)

    def _place_decodes(self, decodes: list[Sequence], step: NextStep, room: int) -> bool:
        """Begin the step with a token of each, as far as there is `room`; returns whether they had the blocks."""
        scheduled, is_stalled, takes_turns = step.scheduled, False, len(decodes) > room
        if takes_turns:
            decodes.sort(key=lambda sequence: sequence.last_turn)
        for sequence in decodes:
            if len(scheduled) == room:
                break
            if sequence.preempted:  # by one before it in this very loop
                continue
            start = sequence.num_scheduled
            if start == sequence.num_covered:
                if not self._places.has_room(sequence):
                    is_stalled = True
                    continue
                self._blocks.grow(sequence, start + 1)
            self._states.step(sequence)
            token_ids = _FED_BACK if sequence.num_pending else sequence.token_ids(start, 1)
            is_given, uncounted = sequence.is_token_elsewhere, sequence.num_uncounted
            scheduled.append(ScheduledSequence(sequence, start, 1, token_ids, True, True, is_given, 0, uncounted))
            sequence.is_token_elsewhere, sequence.num_uncounted = False, 0
            sequence.num_scheduled = start + 1
            self.prefixes.reach(sequence)
            sequence.num_in_flight += 1
            sequence.num_pending += 1
            sequence.length += 1
            if takes_turns:
                self._take_turn(sequence)
        step.num_tokens = len(scheduled)
        step.tokens_left -= len(scheduled)
        step.logit_rows_left -= len(scheduled)
        return not is_stalled

    def _is_turn_of_waiting(self, prompts: SequenceOf[Sequence]) -> bool:
        """Whether a client that waits goes before the prompts of those that run."""
        return any(self._prompt_turns.is_before(client, prompts) for client in self._places.waiting.clients)

    def _take_turn(self, sequence: Sequence) -> None:
        self._num_turns += 1
        sequence.last_turn = self._num_turns

    def _place(self, sequence: Sequence, step: NextStep) -> None:
        """Add what fits of a prompt to the step; there is room for a token at least."""
        start, remaining = sequence.num_scheduled, sequence.num_remaining
        count = min(remaining, step.tokens_left)
        if count > 1:
            room = self._blocks.room(sequence)
            self._places.wants_blocks |= room < count and self._blocks.is_growing
            count = min(count, room)
        if sequence.want_logits:
            count = min(count, step.logit_rows_left)
        count = self.prefixes.cut(sequence, count)
        samples = count == remaining and sequence.samples
        self._blocks.grow(sequence, start + count)
        token_ids = sequence.token_ids(start, count)
        part = ScheduledSequence(sequence, start, count, token_ids, samples, is_decode=False)
        step.add(part, count if sequence.want_logits else samples)
        sequence.num_scheduled += count
        self.prefixes.know(sequence, sequence.num_scheduled)
        self.prefixes.reach(sequence)
        self._take_turn(sequence)
        self._prompt_turns.note(sequence.client)
        sequence.num_in_flight += 1
        sequence.num_pending += samples
        sequence.length += samples
        sequence.is_token_elsewhere &= not samples
