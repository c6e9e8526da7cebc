"""What a draft model has of the sequences that it drafts for: a copy of each, with blocks and a state of its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from unicorn_async.config import MAX_PROPOSED
from unicorn_async.scheduler.batch import Batch, ScheduledSequence
from unicorn_async.scheduler.block_manager import BlockManager
from unicorn_async.scheduler.draft_states import DraftStates
from unicorn_async.scheduler.sequence import PENDING, Sequence
from unicorn_async.scheduler.state_copies import GivenState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Sequence as SequenceOf

    from unicorn_async.scheduler.block_manager import BlockGroup

_FEW = 8  # positions at most that a draft's first step computes of a copy beside the newest token, one by one


@dataclass(slots=True, eq=False)
class _Copy:
    """A sequence as the draft model has it: `sequence` has the tokens that the host has seen.

    Of its positions `num_computed` are those of these tokens, and `drafted` were computed behind them.
    """

    sequence: Sequence
    drafted: list[int] = field(default_factory=list)


class DraftBook:
    """Copies of sequences, and the steps of a draft model for them; nothing of it is in flight between two calls.

    What was drafted and wrong is overwritten. Blocks of a draft's cache are shared among copies as those of sequences
    are, as far as their tokens are the answer's. A copy samples by its sequence's seed and parameters, but for what
    depends on tokens in other ways than through the model: so a draft is right as often as it can be. Of a grammar
    the first drafted token has the mask, which is known; those behind it come without the host, and may turn out wrong.
    States of fixed size are not shared: a draft goes on from where its copy has one.
    """

    def __init__(
        self,
        groups: SequenceOf[BlockGroup],
        block_size: int,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_sampled: int,
        max_context: int,
        vocab_size: int,
        shares_prefixes: bool,
        takes_masks: bool = True,
        num_spare_states: int | None = None,
    ) -> None:
        """There are no blocks yet: `add_blocks` brings them. Masks are taken by a model of as many logits.

        A draft's first step has up to `max_sampled` positions, of all copies together. Sequences with tokens of
        `vocab_size` and more, which the draft model has not, get no drafts. `num_spare_states` is None where
        no layer has a state.
        """
        assert num_spare_states is None or not shares_prefixes, "no copy has another one's state"
        self._blocks = BlockManager(groups, block_size, grows=True)
        self._max_num_batched_tokens = max_num_batched_tokens
        self._most_first = min(max_sampled, max_num_batched_tokens)  # positions of a draft's first step
        self._few = _FEW  # of each copy, with as many as there are now
        self._max_context = max_context
        self._vocab_size = vocab_size
        self._shares = shares_prefixes
        self._takes_masks = takes_masks
        self._states = None if num_spare_states is None else DraftStates(max_num_seqs, num_spare_states)
        self._free_states = list(range(max_num_seqs - 1, -1, -1))
        self._copies: dict[Sequence, _Copy] = {}
        self._refused: set[Sequence] = set()  # for which there was no room
        self._num_steps = 0

    def __len__(self) -> int:
        return len(self._copies)

    @property
    def blocks_used(self) -> int:
        """Blocks that copies have."""
        return sum(pool.num_blocks - pool.num_free for pool in self._blocks.pools)

    def add_blocks(self, group: int, blocks: Iterable[int]) -> None:
        """Have more blocks of a group."""
        self._blocks.pools[group].add(blocks)

    def follow(self, running: Iterable[Sequence]) -> None:
        """Forget what runs no more, and see what the others have got."""
        alive = {sequence for sequence in running if sequence.finish_reason is None}
        self._few = min(_FEW, self._most_first // max(len(alive), 1) - 1)
        self._refused &= alive
        for sequence in [one for one in self._copies if one not in alive]:
            self._forget(sequence)
        for sequence, copy in list(self._copies.items()):
            if not self._update(copy, sequence):
                self._refuse(sequence)

    def lag(self, sequence: Sequence) -> int | None:
        """Return how many tokens the draft model has yet to compute before a draft, or None where there can't be one.

        The sequence gets a copy if it has none; the host has seen all of its tokens, or will before the draft.
        """
        copy = self._copies.get(sequence)
        if sequence in self._refused:
            return None
        if sequence.length + 2 > self._max_context:
            self._refuse(sequence)
            return None
        if copy is None:
            if not self._free_states:
                return None
            if not self._knows(sequence.prompt_ids) or not self._knows(sequence.output_ids):
                self._refuse(sequence)
                return None
            copy = self._copies[sequence] = self._made(sequence)
            if self._blocks.room(copy.sequence) + copy.sequence.num_scheduled < copy.sequence.num_seen + MAX_PROPOSED:
                self._refuse(sequence)
                return None
        return max(copy.sequence.num_seen - copy.sequence.num_computed - 1 - self._few, 0)

    def catch_up(self, sequences: Iterable[Sequence]) -> Batch | None:
        """Return a step that computes some of what copies lack; None where there are no blocks for any of it."""
        parts: list[ScheduledSequence] = []
        given: list[GivenState] = []
        left = self._max_num_batched_tokens
        for sequence in sequences:
            copy = self._copies[sequence].sequence
            start = copy.num_computed
            self._trim(copy)
            count = min(copy.num_seen - start - 1, left, self._blocks.room(copy))
            if not left:
                break
            if count <= 0:
                self._refuse(sequence)
                continue
            self._blocks.grow(copy, start + count)
            row = -1
            if self._states is not None:
                row = self._states.stay(copy, start + count)
                given.append(GivenState(copy, row))
            tokens = copy.token_ids(start, count)
            parts.append(ScheduledSequence(copy, start, count, tokens, False, is_decode=False, state_row=row))
            self._computed(copy, start + count)
            left -= count
        return self._batch(parts, given) if parts else None

    def begin(self, counts: Mapping[Sequence, int]) -> dict[Sequence, int]:
        """Return how many tokens are drafted to each sequence: fewer than wanted where blocks or the context end."""
        found: dict[Sequence, int] = {}
        for at, (sequence, count) in enumerate(counts.items()):
            copy = self._copies[sequence]
            if not self._update(copy, sequence):
                self._refuse(sequence)
                continue
            copy.drafted.clear()
            copy.sequence.num_computed = min(copy.sequence.num_computed, copy.sequence.num_seen - 1)
            if self._states is not None:
                self._states.settle(copy.sequence)
                if copy.sequence.num_seen - copy.sequence.num_computed > self._few + 1:
                    continue  # a state was left behind more tokens than these have room for now
            self._trim(copy.sequence)
            last = copy.sequence.num_seen - 1  # the newest token's position; that of the last drafted is not computed
            room = self._blocks.room(copy.sequence) + copy.sequence.num_scheduled
            most = min(count, self._max_context - 1 - last, room - last)
            if most <= 0:
                self._refuse(sequence)
                continue
            if self._states is not None:
                most = min(most, self._states.room(copy.sequence, len(counts) - at))
                if not most:
                    continue
                self._states.reserve(copy.sequence, most)
            self._blocks.grow(copy.sequence, last + most)
            found[sequence] = most
        return found

    def step(self, counts: Mapping[Sequence, int], number: int) -> Batch:
        """Return the step that samples the drafted token of a number, from 0 on, of all that get so many."""
        parts: list[ScheduledSequence] = []
        given: list[GivenState] = []
        for sequence, count in counts.items():
            if number >= count:
                continue
            copy, row = self._copies[sequence].sequence, -1
            copy.mask = sequence.mask if number == 0 and self._takes_masks else None
            if self._states is not None:
                given.append(GivenState(copy, self._states.row(copy)))
                row = self._states.advance(copy, copy.num_seen + number)
            if number:
                position = copy.num_seen + number - 1
                parts.append(ScheduledSequence(copy, position, 1, (PENDING,), True, True, state_row=row))
                continue
            start = copy.num_computed
            *others, last = enumerate(copy.token_ids(start, copy.num_seen - start))
            parts += [ScheduledSequence(copy, start + at, 1, (token,), False, True, True, at) for at, token in others]
            parts.append(ScheduledSequence(copy, start + last[0], 1, last[1:], True, True, True, last[0], 0, row))
            self._computed(copy, copy.num_seen)
        return self._batch(parts, given)

    def note(self, counts: Mapping[Sequence, int], number: int, token_ids: SequenceOf[int]) -> None:
        """Take what the step of a number has sampled."""
        drafting = [sequence for sequence, count in counts.items() if number < count]
        for sequence, token_id in zip(drafting, token_ids, strict=True):
            copy = self._copies.get(sequence)
            if copy is not None:
                copy.drafted.append(token_id)

    def drafted(self, sequence: Sequence) -> tuple[int, ...]:
        """Return what was drafted behind the tokens of a sequence."""
        copy = self._copies.get(sequence)
        return () if copy is None else tuple(copy.drafted)

    def _batch(self, parts: list[ScheduledSequence], given: list[GivenState]) -> Batch:
        self._num_steps += 1
        return Batch(tuple(parts), sum(part.num_tokens for part in parts), self._num_steps - 1, tuple(given))

    def _made(self, sequence: Sequence) -> _Copy:
        sampling = replace(
            sequence.sampling,
            repetition_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            top_logprobs=None,
            grammar=None,
            stop=(),
        )
        copy = Sequence(f"draft for {sequence.request_id}", sequence.prompt_ids, sampling, sequence.seed)
        copy.cache_salt, copy.state_index = sequence.cache_salt, self._free_states.pop()
        copy.output_ids = list(sequence.output_ids)
        copy.length = copy.num_seen
        if self._states is not None:
            self._states.begin(copy)
        if self._shares:
            found = self._blocks.find(copy, (copy.length - 1) // self._blocks.block_size)
            self._blocks.claim(copy, found)
            copy.num_found = copy.num_scheduled = copy.num_computed = found * self._blocks.block_size
        return _Copy(copy)

    def _knows(self, tokens: Iterable[int]) -> bool:
        return max(tokens, default=0) < self._vocab_size

    def _update(self, copy: _Copy, sequence: Sequence) -> bool:
        """Give a copy the tokens that the host has seen since; returns whether the draft model has them all."""
        own = copy.sequence
        new = sequence.output_ids[len(own.output_ids) :]
        if not new:
            return True
        if not self._knows(new):
            return False
        right = 0
        for drafted, token in zip(copy.drafted[:-1], new, strict=False):  # the last was never computed
            if drafted != token:
                break
            right += 1
        computed = own.num_computed + right if own.num_computed == own.num_seen else own.num_computed
        own.output_ids += new
        own.length = own.num_seen
        copy.drafted.clear()
        self._computed(own, computed)
        if self._states is not None:
            self._states.settle(own)
        return True

    def _computed(self, own: Sequence, num_positions: int) -> None:
        own.num_computed = own.num_scheduled = num_positions
        if self._shares:
            self._blocks.know(own, num_positions)

    def _trim(self, own: Sequence) -> None:
        """Free what no position from the first that is not computed on sees; nothing is in flight."""
        if own.block_tables:
            self._blocks.trim(own, own.num_computed)

    def _refuse(self, sequence: Sequence) -> None:
        self._forget(sequence)
        self._refused.add(sequence)

    def _forget(self, sequence: Sequence) -> None:
        copy = self._copies.pop(sequence, None)
        if copy is not None:
            self._blocks.release(copy.sequence)
            if self._states is not None:
                self._states.forget(copy.sequence)
            self._free_states.append(copy.sequence.state_index)
