"""Which sequences begin alike where layers keep a state of fixed size: who shares blocks begins with a copy of it."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from unicorn_async.scheduler.block_keys import extend_keys, number_keys
from unicorn_async.scheduler.prefixes import Prefixes
from unicorn_async.scheduler.state_copies import GivenState, KeptState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.scheduler.block_manager import BlockManager
    from unicorn_async.scheduler.sequence import Sequence
    from unicorn_async.scheduler.state_copies import StateCopies

_LEAST_BLOCKS = 8  # that a copy has to save
_LEAST_OF_TURN = 2  # where a copy was found: a conversation goes on
_ANSWER_BLOCKS = 4  # of an answer between two copies


class StatePrefixes(Prefixes):
    """Shares blocks as far as a copy of the state goes, and says at which ends of blocks copies are made.

    These are the last one of a prompt, where its next turn begins; where two prompts part, once that is seen, for a
    third; and every few blocks of an answer the last one, in place of the one before. Within what a step has of a
    prompt a copy is made behind a multiple of `kept_tokens` alone: where that is not the end of a block the step is
    cut, else it is the last one before that end. A sequence whose text is what a running one is to have a copy of
    waits for that.

    Steps run in order, but what a step makes is known when it is committed: tokens of an answer are seen then.
    """

    def __init__(self, blocks: BlockManager, copies: StateCopies, kept_tokens: int) -> None:
        super().__init__(blocks, shares=True)
        self._kept_tokens = kept_tokens
        self._copies = copies
        self._ends: dict[Sequence, list[int]] = {}  # positions of running sequences, in order
        self._planned: dict[bytes, Sequence] = {}  # what running sequences are to have copies of
        self._of_answers: dict[Sequence, bytes | None] = {}  # a running sequence's copy, None while it is made
        self._given: list[GivenState] = []
        self._kept: list[KeptState] = []

    def find(self, sequence: Sequence) -> int | None:
        """See `Prefixes`."""
        if self._is_coming(sequence.awaited_key, self._planned):
            return None
        keys = self._keys(sequence)
        there = self._blocks.find(sequence, len(keys))
        found = self._last_copied(sequence, there)
        self._plan_parting(keys, there, found)
        sequence.awaited_key = self._last_planned(sequence, found, len(keys))
        return found if sequence.awaited_key is None else None

    def expect(self, sequence: Sequence) -> None:
        """See `Prefixes`."""
        keys = self._keys(sequence)
        there = self._blocks.find(sequence, len(keys))
        self._plan_parting(keys, there, self._last_copied(sequence, there))

    def begin(self, sequence: Sequence, found: int) -> None:
        """See `Prefixes`."""
        keys = self._keys(sequence)
        there = self._blocks.find(sequence, len(keys))
        super().begin(sequence, found)
        if found:
            self._given.append(GivenState(sequence, self._copies.use(keys[found - 1])))
            self._note(keys[found - 1], found)
        if there - found >= _LEAST_BLOCKS:  # others have come so far, and went on in another way
            self._plan(sequence, there)
        self._plan_end(sequence, keys, found)

    def cut(self, sequence: Sequence, count: int) -> int:
        """Return how many of the `count` next tokens of a prompt a step has: copies are made where they can be."""
        start, size, every = sequence.num_scheduled, self._blocks.block_size, self._kept_tokens
        for end in list(self._ends.get(sequence, ())):
            if end >= start + count:
                break
            within = (end - start) // every * every
            if start % size or every % size or not within:
                return end - start
            if start + within != end:
                self._drop(sequence, end)
                self._plan(sequence, (start + within) // size)
        return count

    def reach(self, sequence: Sequence) -> None:
        """Make the copies that are to be made of what the step has of a sequence."""
        super().reach(sequence)
        position, size = sequence.num_scheduled, self._blocks.block_size
        ends = self._ends.get(sequence)
        while ends and ends[0] <= position:
            if not self._keep(sequence, ends[0]):
                self._unplan(sequence, ends[0] // size)
            del ends[0]
        if position > len(sequence.prompt_ids) and position % (_ANSWER_BLOCKS * size) == 0:
            self._follow_answer(sequence)

    def most_proposed(self, sequence: Sequence) -> int:
        """See `Prefixes`; a copy of an answer's state is made by a step that has nothing behind that position."""
        return -sequence.num_scheduled % (_ANSWER_BLOCKS * self._blocks.block_size) - 1

    def take_copies(self) -> tuple[tuple[GivenState, ...], tuple[KeptState, ...]]:
        """See `Prefixes`."""
        super().take_copies()
        copies = tuple(self._given), tuple(self._kept)
        self._given.clear()
        self._kept.clear()
        self._copies.end_step()
        return copies

    def commit(self, kept: Iterable[KeptState]) -> None:
        """Know the copies that a step has made, but for those behind tokens that are no part of an answer."""
        size = self._blocks.block_size
        for sequence, position, copy in kept:
            if position > sequence.num_seen:
                self._copies.drop(copy)
                continue
            num_blocks = position // size
            key = extend_keys(sequence, num_blocks, size)[num_blocks - 1]
            self._copies.keep(copy, key)
            self._note(key, num_blocks)
            self._unplan(sequence, num_blocks)
            if sequence in self._of_answers and position > len(sequence.prompt_ids):
                self._of_answers[sequence] = key

    def leave(self, sequence: Sequence) -> None:
        """See `Prefixes`."""
        super().leave(sequence)
        self._of_answers.pop(sequence, None)
        self._ends.pop(sequence, None)
        for key in sequence.block_keys:
            if self._planned.get(key) is sequence:
                del self._planned[key]

    def _keys(self, sequence: Sequence) -> list[bytes]:
        """Return the keys of the blocks that a sequence may have from others."""
        most = self._most(sequence)
        return extend_keys(sequence, most, self._blocks.block_size)[:most]

    def _last_copied(self, sequence: Sequence, there: int) -> int:
        """Return behind how many blocks a sequence can begin: there is a copy, and what windows see from there."""
        behind = self._copied(sequence, there)
        return next((number for number in behind if self._blocks.find(sequence, number) == number), 0)

    def _copied(self, sequence: Sequence, most: int) -> list[int]:
        """Return behind how many blocks of a sequence, of `most`, there are copies, the last ones first."""
        numbers = number_keys(sequence)
        return sorted(
            (number + 1 for key in self._copies.keys if (number := numbers.get(key, most)) < most), reverse=True
        )

    def _last_planned(self, sequence: Sequence, found: int, most: int) -> bytes | None:
        """Return the last of a sequence's blocks behind which a running one is to make a copy, of those not found."""
        if not self._planned:
            return None
        numbers = number_keys(sequence)
        coming = (
            key for key in self._planned if found <= numbers.get(key, -1) < most and self._is_coming(key, self._planned)
        )
        return max(coming, key=numbers.__getitem__, default=None)

    def _plan_parting(self, keys: list[bytes], there: int, found: int) -> None:
        """Have a running sequence make a copy where another one with these keys is about to part from it."""
        own = (number for number in range(there, len(keys)) if keys[number] not in self._to_come)
        parting = next(own, len(keys))
        if parting - found >= _LEAST_BLOCKS and keys[parting - 1] in self._to_come:
            self._plan(self._to_come[keys[parting - 1]], parting)

    def _plan_end(self, sequence: Sequence, keys: list[bytes], found: int) -> None:
        """Have a sequence that begins make a copy at its prompt's end, where that saves something."""
        if len(keys) - found >= (_LEAST_OF_TURN if found else _LEAST_BLOCKS):
            self._plan(sequence, len(keys))

    def _note(self, key: bytes, num_blocks: int) -> None:
        """Hear that there is a copy of the state behind a text of so many blocks, or that it is used."""

    def _plan(self, sequence: Sequence, num_blocks: int) -> None:
        """Have a running sequence make a copy behind so many blocks, which no step has yet."""
        size = self._blocks.block_size
        end, ends = num_blocks * size, self._ends.setdefault(sequence, [])
        if end > sequence.num_scheduled and end not in ends:
            insort(ends, end)
            self._is_to_have(sequence, sequence.block_keys[num_blocks - 1], self._planned)

    def _unplan(self, sequence: Sequence, num_blocks: int) -> None:
        key = sequence.block_keys[num_blocks - 1]
        if self._planned.get(key) is sequence:
            del self._planned[key]

    def _drop(self, sequence: Sequence, end: int) -> None:
        """Make no copy at a position after all."""
        self._ends[sequence].remove(end)
        self._unplan(sequence, end // self._blocks.block_size)

    def _keep(self, sequence: Sequence, position: int) -> bool:
        row = self._copies.take()
        if row is None:
            return False
        self._kept.append(KeptState(sequence, position, row))
        return True

    def _follow_answer(self, sequence: Sequence) -> None:
        """Replace the copy of an answer's state; answers have half of all copies at most."""
        if sequence in self._of_answers:
            before = self._of_answers[sequence]
            if before is None:  # the step that makes it is in flight
                return
            self._copies.forget(before)
        elif 2 * (len(self._of_answers) + 1) > self._copies.count:
            return
        if self._keep(sequence, sequence.num_scheduled):
            self._of_answers[sequence] = None
        else:
            self._of_answers.pop(sequence, None)
