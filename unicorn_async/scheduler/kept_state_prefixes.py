"""Which sequences begin with a copy of a state of fixed size that lies outside the device's memory, as blocks do."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from unicorn_async.scheduler.block_marks import BlockMarks
from unicorn_async.scheduler.kept_blocks import BlockName
from unicorn_async.scheduler.kept_prefixes import BlockCopy, KeptPrefixes, Released
from unicorn_async.scheduler.state_copies import GivenState
from unicorn_async.scheduler.state_prefixes import StatePrefixes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.scheduler.block_manager import BlockManager
    from unicorn_async.scheduler.kept_blocks import KeptBlocks
    from unicorn_async.scheduler.kept_prefixes import Restore
    from unicorn_async.scheduler.sequence import Sequence
    from unicorn_async.scheduler.state_copies import StateCopies


class KeptStatePrefixes(KeptPrefixes, StatePrefixes):
    """Shares blocks and copies of states, and has both brought back: a copy is a block of a group behind all others.

    A copy is saved when nobody runs any more whose text it is of, or when there is no room for more of them, but for
    that of a running answer, which another one soon replaces; for a disk also when it was used again. One that comes
    back has a row, which no other copy gets before its sequence has begun.
    """

    def __init__(self, blocks: BlockManager, copies: StateCopies, kept_tokens: int, kept: KeptBlocks) -> None:
        StatePrefixes.__init__(self, blocks, copies, kept_tokens)
        self._begin_keeping(kept)
        self._group = len(blocks.pools)
        self._kept_states = BlockMarks([partial(kept.knows, self._group)], kept.changes)
        self._running: set[Sequence] = set()
        self._unsaved: dict[bytes, int] = {}  # copies, and of how many blocks their text is; the oldest first
        self._used_again: set[bytes] = set()  # of these
        self._awaited: dict[Sequence, bytes] = {}  # copies, pinned, that sequences begin with in their first steps
        self._rows: dict[Sequence, tuple[bytes, int]] = {}  # for copies that are to come

    def begin(self, sequence: Sequence, found: int) -> None:
        """See `Prefixes`."""
        self._unpaid = None
        self._running.add(sequence)
        keys, row = self._keys(sequence), None
        if found and not self._copies.knows(keys[found - 1]):
            row = self._copies.take()
            if row is None:  # steps are about to fill all of them
                found = self._last_copied(sequence, self._blocks.find(sequence, len(keys)))
        if row is None and not self._blocks.lacking(sequence, found):
            StatePrefixes.begin(self, sequence, found)
            return
        here = self._blocks.find(sequence, found)
        begun = self._last_copied(sequence, here)
        lacking = self._without_empty(self._blocks.claim(sequence, found))
        self._begin_behind(sequence, found)
        key = keys[found - 1]
        if row is None:
            self._await(sequence, key)
            self._note(key, found)
        else:
            self._rows[sequence] = key, row
            lacking.append((BlockName(self._group, key), row))
        self._wait(sequence, lacking, here, begun)
        self._plan_end(sequence, keys, found)

    def cut(self, sequence: Sequence, count: int) -> int:
        """See `Prefixes`; what the step begins with is pinned no more."""
        key = self._awaited.pop(sequence, None)
        if key is not None:
            self._given.append(GivenState(sequence, self._copies.use(key)))
            self._copies.unpin(key)
        return super().cut(sequence, count)

    def arrive(self, copies: Iterable[BlockCopy]) -> None:
        """See `KeptPrefixes`."""
        blocks: list[BlockCopy] = []
        for copy in copies:
            if copy.name.group < self._group:
                blocks.append(copy)
                continue
            sequence = next(one for one, (_, row) in self._rows.items() if row == copy.block)
            del self._rows[sequence]
            self._copies.keep(copy.block, copy.name.key)
            self._await(sequence, copy.name.key)
            self._note(copy.name.key, sequence.num_found // self._blocks.block_size)
        super().arrive(blocks)

    def tokens_left(self, restore: Restore) -> int:
        """See `KeptPrefixes`; without the state, which comes last, blocks are of no use."""
        return restore.num_tokens if restore.sequence in self._rows else super().tokens_left(restore)

    def leave(self, sequence: Sequence) -> None:
        """See `Prefixes`."""
        super().leave(sequence)
        self._running.discard(sequence)
        if sequence in self._rows:
            self._copies.drop(self._rows.pop(sequence)[1])
        if sequence in self._awaited:
            self._copies.unpin(self._awaited.pop(sequence))

    def take_released(self, most_nbytes: int, *, wants_disk: bool) -> Released:
        """See `KeptPrefixes`; a copy of a state at a time, beside blocks: one is of no use without the others."""
        states = self._take_state(wants_disk=wants_disk)
        least, nbytes = most_nbytes // 2, self.kept.block_nbytes[self._group] * len(states.copies)
        blocks = super().take_released(max(most_nbytes - nbytes, least), wants_disk=wants_disk)
        return Released(states.copies + blocks.copies, states.used + blocks.used, states.unwritten + blocks.unwritten)

    def _take_state(self, *, wants_disk: bool) -> Released:
        group, of_answers = self._group, set(self._of_answers.values())
        used: list[BlockName] = []
        unwritten: list[BlockCopy] = []
        if wants_disk and not self.kept.has_room_to_write(group):
            return Released([], used, unwritten)
        for key, num_blocks in list(self._unsaved.items()):
            row = self._copies.row(key)
            is_elsewhere = self.kept.knows(group, key)
            if row is None or is_elsewhere:
                self._forget_unsaved(key)
                used += [BlockName(group, key)] if is_elsewhere else []
                if wants_disk and self.kept.is_in_slot_alone(group, key):
                    held = self.kept.slots[group].hold(key)
                    unwritten.append(BlockCopy(used[-1], -1 if row is None else row, held, num_blocks))
                    break  # one at a time
                continue
            may_wait = self._copies.has_free and not (wants_disk and key in self._used_again)
            if key in of_answers or (may_wait and self._is_of_running(key, num_blocks)):
                continue
            slot = self.kept.slots[group].take()
            if slot is None:
                break
            self._forget_unsaved(key)
            return Released([BlockCopy(BlockName(group, key), row, slot, num_blocks)], used, unwritten)
        return Released([], used, unwritten)

    def _note(self, key: bytes, num_blocks: int) -> None:
        if self._unsaved.pop(key, None) is not None:
            self._used_again.add(key)
        self._unsaved[key] = num_blocks
        if len(self._unsaved) > self._copies.count:  # while a disk is behind, some of them have gone
            self._unsaved = {one: size for one, size in self._unsaved.items() if self._copies.row(one) is not None}
            self._used_again &= self._unsaved.keys()

    def _forget_unsaved(self, key: bytes) -> None:
        del self._unsaved[key]
        self._used_again.discard(key)

    def _without_empty(self, lacking: Iterable[tuple[BlockName, int]]) -> deque[tuple[BlockName, int]]:
        """Return what has to be brought back, and know blocks of no size."""
        left: deque[tuple[BlockName, int]] = deque()
        for name, block in lacking:
            if self.kept.block_nbytes[name.group]:
                left.append((name, block))
            else:
                self._blocks.pools[name.group].know(block, name.key)
        return left

    def _is_of_running(self, key: bytes, num_blocks: int) -> bool:
        return any(one.block_keys[num_blocks - 1 : num_blocks] == [key] for one in self._running)

    def _await(self, sequence: Sequence, key: bytes) -> None:
        self._copies.pin(key)
        self._awaited[sequence] = key

    def _reached(self, sequence: Sequence) -> int:
        reached = self._blocks.find(sequence, len(self._keys(sequence)), self._anywhere)
        copied = self._copied(sequence, reached)
        kept = self._kept_states.of(sequence)[0] if self._copies.has_room else b""
        while reached:
            here = next((number for number in copied if number <= reached), 0)
            reached = max(here, kept.rfind(1, 0, reached) + 1)
            if self._blocks.find(sequence, reached, self._anywhere) == reached:
                break
            reached -= 1
        return reached

    def _nbytes(self, sequence: Sequence, num_blocks: int, marks: BlockMarks | None = None) -> int:
        nbytes, key = super()._nbytes(sequence, num_blocks, marks), sequence.block_keys[num_blocks - 1]
        is_there = marks is not None and self.kept.is_in_slot(self._group, key)
        return nbytes if is_there or self._copies.knows(key) else nbytes + self.kept.block_nbytes[self._group]
