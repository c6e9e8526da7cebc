"""Which tokens of which sequences the next step computes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from unicorn_async.errors import QueueFullError
from unicorn_async.scheduler.admission import fits_beside
from unicorn_async.scheduler.batch import Batch, Committed, ScheduledSequence
from unicorn_async.scheduler.block_manager import BlockGroup, BlockManager
from unicorn_async.scheduler.bounds import set_bounds
from unicorn_async.scheduler.draft import Draft, ready
from unicorn_async.scheduler.prefixes import Prefixes
from unicorn_async.scheduler.request import FinishReason
from unicorn_async.scheduler.sequence import PENDING
from unicorn_async.scheduler.waiting_queue import WaitingQueue

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as SequenceOf

    from unicorn_async.scheduler.sequence import Sequence
    from unicorn_async.scheduler.speculation import Speculation
    from unicorn_async.scheduler.step_budget import StepBudget


_FED_BACK = (PENDING,)


class Scheduler:
    """Continuous batching with steps in flight: clients take turns, and each is served in the order of arrival.

    `schedule` is called while earlier steps run: it takes for granted that each of them yields its tokens and that no
    sequence ends. `commit` sets that right, in the order in which the batches were scheduled. Every running sequence
    was admitted before every waiting one, and nobody can preempt the first of them, so that it always goes on.

    With a `step_budget` prompts get as many tokens beside decoding sequences as the budget allows, and a block's at
    least; without decoding sequences they get all there is room for. Where a step has no room for all sequences that
    decode and a block's tokens of prompts, prompts that want it get that block, but no more than half of the step, and
    the sequences that decode take turns: those go first that have waited longest.

    With `in_order` every layer takes the steps in the order in which they were scheduled, so that the next one may
    write where the last one, still in flight, reads for the last time: a prompt of any length then goes on through the
    blocks of a window and a step.

    With `grows` there are no blocks yet: `add_blocks` brings them, and `wants_blocks` says that the last step lacked
    some. Until `end_growth`, who lacks blocks waits for them, and takes none from others.

    With a `speculation` steps of decodes alone check tokens that it proposes to their sequences.

    With `shares_prefixes`, which wants them in order, a sequence begins behind those blocks of its prompt that others
    have computed, or will in this step; and one whose next block is to come of another's prompt waits for that.

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
        grows: bool = False,
        shares_prefixes: bool = False,
        side_by_side: bool = False,
    ) -> None:
        assert in_order or not shares_prefixes, "what is scheduled first has to be there first"
        self._blocks = BlockManager(groups, block_size, grows=grows, side_by_side=side_by_side)
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_context = max_context
        self._max_waiting = max_waiting
        self._max_logit_rows = max_logit_rows
        self._eos_token_ids = frozenset(eos_token_ids)
        self._step_budget = step_budget
        self.speculation = speculation
        self.in_order = in_order
        self.prefixes = Prefixes(self._blocks, shares=shares_prefixes)
        self._waiting = WaitingQueue()
        self._running: list[Sequence] = []  # in order of their first admission
        self._leaving: list[Sequence] = []  # ended or preempted, with steps in flight that use their blocks
        self._in_flight: deque[Batch] = deque()
        self._free_states = list(range(max_num_seqs - 1, -1, -1))
        self._num_arrivals = 0
        self._num_steps = 0
        self._num_turns = 0  # of parts of prompts, and of decodes where not all had one
        self._num_found = 0  # blocks that the first in the queue can begin behind
        self.wants_blocks = False
        self.num_preemptions = 0
        self.num_bounded_steps = 0  # whose prompts got less than there was room for

    @property
    def has_work(self) -> bool:
        """Whether anything waits, runs or is in flight; then `schedule` or the commit of a step in flight goes on."""
        return bool(self._waiting or self._running or self._in_flight)

    @property
    def num_running(self) -> int:
        """Sequences that have a place in the steps to come."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a place, for the first time or again."""
        return len(self._waiting)

    def is_waiting(self, request_id: str) -> bool:
        """Whether a request waits for a place, for the first time or again."""
        return any(sequence.request_id == request_id for sequence in self._waiting)

    @property
    def max_context(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self._max_context

    @property
    def blocks_used(self) -> tuple[int, ...]:
        """Blocks of each group that sequences have."""
        return tuple(pool.num_blocks - pool.num_free for pool in self._blocks.pools)

    @property
    def blocks_total(self) -> tuple[int, ...]:
        """Blocks of each group that there are."""
        return tuple(pool.num_blocks for pool in self._blocks.pools)

    @property
    def with_blocks(self) -> list[Sequence]:
        """The sequences that have blocks."""
        return [sequence for sequence in (*self._running, *self._leaving) if sequence.block_tables]

    @property
    def groups(self) -> tuple[BlockGroup, ...]:
        """The groups, with the blocks that there are, or will be."""
        return self._blocks.groups

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
        return [sequence for sequence in (*self._running, *self._waiting) if not sequence.confine(room)]

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
        if len(self._waiting) + self._max_num_seqs - len(self._free_states) >= self._max_num_seqs + self._max_waiting:
            displaced = self._waiting.place_for(sequence)
            if displaced is None:
                raise QueueFullError(f"{len(self._waiting)} requests wait already, at most {self._max_waiting} may")
        sequence.arrival = self._num_arrivals
        self._num_arrivals += 1
        self._waiting.add(sequence)
        return displaced

    def schedule(self, *, known_only: bool = False) -> Batch | None:
        """Return the next step, or None where nothing can be computed before a step in flight is committed.

        With `known_only` no step has tokens that a step in flight is to sample: it needs nothing of that step's end.
        """
        self.wants_blocks = False
        draft = Draft(self._max_num_batched_tokens, self._max_logit_rows)
        decodes, prompts = ready(self._running, known_only=known_only)
        room = self._room_for_decodes(len(decodes), prompts, draft)
        is_stalled = not self._place_decodes(decodes, draft, room)
        for sequence in prompts:
            if draft.is_full:
                break
            if sequence.preempted:  # by one before it in this very step
                continue
            if self.in_order:
                self._blocks.trim(sequence, sequence.num_scheduled)
            if self._has_room(sequence):
                draft.bound_prompts(self._step_budget, self._blocks.block_size)
                self._place(sequence, draft)
            else:
                is_stalled = True
        while not draft.is_full and not is_stalled and self._can_admit():
            draft.bound_prompts(self._step_budget, self._blocks.block_size)
            self._place(self._admit(), draft)
        if not draft.scheduled and not room:  # left to prompts that could not go on
            self._place_decodes(decodes, draft, draft.most_sampled)
        if not draft.scheduled:
            return None
        if self.speculation is not None and draft.scheduled[-1].is_decode and not known_only and not is_stalled:
            self.speculation.place(draft, self._blocks, len(self._running))
        self.num_bounded_steps += draft.is_bounded and draft.tokens_left == 0
        batch = Batch(tuple(draft.scheduled), draft.num_tokens, self._num_steps)
        self._num_steps += 1
        self._in_flight.append(batch)
        return batch

    def commit(
        self, batch: Batch, sampled: SequenceOf[int], *, step_s: float | None = None, start_s: float = 0.0
    ) -> list[Committed]:
        """Take the tokens of the oldest step in flight, one for each of its parts that samples, in order.

        Tokens of sequences that have ended meanwhile are dropped, and those behind wrong proposals. The rest of the
        result keeps the batch's order. `step_s` is how long the device worked on the step, where that is known, and
        `start_s` when it began, by the device's clock.
        """
        assert self._in_flight and self._in_flight[0] is batch, f"step {batch.step} is not the oldest in flight"
        assert len(sampled) == batch.num_samples, f"step {batch.step}: {batch.num_samples} tokens, got {len(sampled)}"
        self._in_flight.popleft()
        if self._step_budget is not None and step_s is not None and not batch.has_proposals:
            self._step_budget.observe(batch.num_decodes, batch.num_tokens, step_s)
        if self.speculation is not None and step_s is not None:
            self.speculation.observe(batch, step_s, start_s)
        committed: list[Committed] = []
        row = 0
        for sequence, start, num_tokens, token_ids, samples, _, _, proposal in batch.scheduled:
            sequence.num_in_flight -= 1
            if proposal:
                assert self.speculation is not None
                sequence.num_proposed -= 1
                is_computed = sequence.accept_proposal(start, token_ids[0])
                self.speculation.count(sequence, is_right=is_computed)
            else:
                is_computed = True
                sequence.num_computed = start + num_tokens
                sequence.num_pending -= samples
            self.prefixes.know(sequence, sequence.num_computed)
            if is_computed and sequence.finish_reason is None:
                if samples:
                    sequence.accept(sampled[row])
                    committed.append(Committed(sequence, sampled[row], sequence.finish_reason, row))
                elif not sequence.samples and start + num_tokens == sequence.max_length:
                    sequence.finish_reason = FinishReason.STOP
                    committed.append(Committed(sequence, None, FinishReason.STOP, row))
            row += samples
            if sequence.finish_reason is not None or sequence.preempted:
                self._retire(sequence)
            else:
                self._blocks.trim(sequence, sequence.num_computed)  # what steps in flight compute comes behind it
        return committed

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence from outside; what has ended already keeps its reason.

        Its blocks and its state are free at once, or when its last step in flight is committed.
        """
        if sequence.finish_reason is None:
            sequence.finish_reason = reason
            self._waiting.remove(sequence)
            self._retire(sequence)

    def _room_for_decodes(self, num_decodes: int, prompts: SequenceOf[Sequence], draft: Draft) -> int:
        """Return how many decodes the step may begin with, for prompts to get what they are promised."""
        most, block_size = draft.most_sampled, self._blocks.block_size
        if num_decodes + block_size <= most:
            return most
        wanted = sum([prompt.num_remaining for prompt in prompts])
        if wanted < block_size and self._can_admit():
            wanted += self._waiting.first.length
        half = (most + self._num_steps % 2) // 2  # of a step of one token, every other step
        return most - min(wanted, block_size, half)

    def _place_decodes(self, decodes: list[Sequence], draft: Draft, room: int) -> bool:
        """Begin the step with a token of each, as far as there is `room`; returns whether they had the blocks."""
        scheduled, is_stalled, takes_turns = draft.scheduled, False, len(decodes) > room
        if takes_turns:
            decodes.sort(key=lambda sequence: sequence.last_turn)
        for sequence in decodes:
            if len(scheduled) == room:
                break
            if sequence.preempted:  # by one before it in this very loop
                continue
            start = sequence.num_scheduled
            if start == sequence.num_covered:
                if not self._has_room(sequence):
                    is_stalled = True
                    continue
                self._blocks.grow(sequence, start + 1)
            token_ids = _FED_BACK if sequence.num_pending else sequence.token_ids(start, 1)
            scheduled.append(ScheduledSequence(sequence, start, 1, token_ids, True, True, sequence.is_token_elsewhere))
            sequence.is_token_elsewhere = False
            sequence.num_scheduled = start + 1
            sequence.num_in_flight += 1
            sequence.num_pending += 1
            sequence.length += 1
            if takes_turns:
                self._take_turn(sequence)
        draft.num_tokens = len(scheduled)
        draft.tokens_left -= len(scheduled)
        draft.logit_rows_left -= len(scheduled)
        return not is_stalled

    def _take_turn(self, sequence: Sequence) -> None:
        self._num_turns += 1
        sequence.last_turn = self._num_turns

    def _has_room(self, sequence: Sequence) -> bool:
        """Make sure of at least one position more, at the cost of those who came later."""
        while not self._blocks.has_room(sequence):
            if self._leaving or self._blocks.is_growing:  # who leaves gives up blocks in every group
                self.wants_blocks |= not self._leaving
                return False
            victim = self._running[-1]
            if victim is sequence:
                return False
            victim.preempted = True
            self.num_preemptions += 1
            self._retire(victim)
        return True

    def _place(self, sequence: Sequence, draft: Draft) -> None:
        """Add what fits of a prompt to the step; there is room for a token at least."""
        start, remaining = sequence.num_scheduled, sequence.num_remaining
        count = min(remaining, draft.tokens_left)
        if count > 1:
            room = self._blocks.room(sequence)
            self.wants_blocks |= room < count and self._blocks.is_growing
            count = min(count, room)
        if sequence.want_logits:
            count = min(count, draft.logit_rows_left)
        samples = count == remaining and sequence.samples
        self._blocks.grow(sequence, start + count)
        token_ids = sequence.token_ids(start, count)
        part = ScheduledSequence(sequence, start, count, token_ids, samples, is_decode=False)
        draft.add(part, count if sequence.want_logits else samples)
        sequence.num_scheduled += count
        self.prefixes.know(sequence, sequence.num_scheduled)
        self._take_turn(sequence)
        sequence.num_in_flight += 1
        sequence.num_pending += samples
        sequence.length += samples
        sequence.is_token_elsewhere &= not samples

    def _can_admit(self) -> bool:
        """Whether the first in the queue fits beside what runs, with a block more for each that runs."""
        if not self._waiting or not self._free_states or any(sequence.preempted for sequence in self._leaving):
            return False
        first = self._waiting.first
        found = None if first.awaits_mask else self.prefixes.find(first)
        if found is None:
            return False
        self._num_found = found
        if fits_beside(self._blocks, first, found, self._running, self._max_num_batched_tokens):
            return True
        self.wants_blocks = self._blocks.is_growing
        return False

    def _admit(self) -> Sequence:
        sequence = self._waiting.pop()
        sequence.state_index = self._free_states.pop()
        sequence.preempted = False
        sequence.num_given = sequence.length
        self._running.append(sequence)
        self.prefixes.begin(sequence, self._num_found)
        return sequence

    def _retire(self, sequence: Sequence) -> None:
        """Take an ended or preempted sequence's blocks and state, as soon as no step in flight uses them."""
        if sequence in self._running:
            self._running.remove(sequence)
            self.prefixes.leave(sequence)
        if sequence.num_in_flight:
            if sequence not in self._leaving:
                self._leaving.append(sequence)
            return
        if sequence in self._leaving:
            self._leaving.remove(sequence)
        self._blocks.release(sequence)
        if sequence.state_index >= 0:
            self._free_states.append(sequence.state_index)
            sequence.state_index = -1
        if sequence.finish_reason is None:
            sequence.num_scheduled = sequence.num_computed = 0
            self._waiting.put_back(sequence)
