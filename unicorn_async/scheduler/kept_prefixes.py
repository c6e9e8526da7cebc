"""Which sequences begin with blocks that lie outside the device's memory, and have to be brought back to it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.scheduler.fetch_costs import FetchCosts
from unicorn_async.scheduler.kept_blocks import BlockName
from unicorn_async.scheduler.prefixes import Prefixes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.scheduler.block_manager import BlockManager
    from unicorn_async.scheduler.block_marks import BlockMarks
    from unicorn_async.scheduler.kept_blocks import KeptBlocks
    from unicorn_async.scheduler.sequence import Sequence
    from unicorn_async.scheduler.state_copies import KeptState

MOST_COPIES = 256  # of blocks at a time
_MOST_TRIES = 2  # a sequence is computed where its blocks did not come back so often


class BlockCopy(NamedTuple):
    """A block, or a state's row: its name, its number on the device, and the slot that is copied to or from."""

    name: BlockName
    block: int
    slot: int
    num_blocks: int = 1  # whose tokens are computed where it is not there


class Released(NamedTuple):
    """What is to be copied to the host, and which blocks that are elsewhere already were used until now.

    In either the last ones of a text come first; those that were used are to be noted before the copies are made. Of
    these the `unwritten` are in slots, which are pinned, too, and not on the disk.
    """

    copies: list[BlockCopy]
    used: list[BlockName]
    unwritten: list[BlockCopy]


@dataclass(slots=True, eq=False)
class Restore:
    """Blocks that a sequence waits for, in the order of its text; `is_cancelled` when it does not any more.

    `num_tokens` are those that are computed where nothing comes back. One that `is_tried` did not pay when it was asked
    for, and is brought back to see whether it does.
    """

    sequence: Sequence
    lacking: deque[tuple[BlockName, int]]  # names, and blocks of the device that are theirs
    num_tokens: int
    num_lacking: int = field(init=False)  # at first
    is_cancelled: bool = False
    is_tried: bool = False

    def __post_init__(self) -> None:
        self.num_lacking = len(self.lacking)


class KeptPrefixes(Prefixes):
    """Shares blocks as `Prefixes` does, and has those brought back that `kept` has and the device has no more.

    A sequence that waits for them has its place and its blocks, and no step: others run meanwhile. While the model
    loads (`is_open` is False) nothing is brought back: earlier steps may have to read yet what would be written.
    """

    def __init__(self, blocks: BlockManager, kept: KeptBlocks) -> None:
        super().__init__(blocks, shares=True)
        self._begin_keeping(kept)

    def _begin_keeping(self, kept: KeptBlocks) -> None:
        self.kept = kept
        self.costs = FetchCosts()
        self.is_open = False
        self.restores: deque[Restore] = deque()  # to begin with, for who copies; one a sequence that runs, at most
        self._restoring: dict[Sequence, Restore] = {}
        self._num_committed = 0  # steps
        self._unpaid: Sequence | None = None  # who waits for a place, and is faster computed
        in_slots = [slots.changes for slots in kept.slots]
        self._anywhere = self._blocks.marks_with(kept.knows, kept.changes)
        self._in_memory = self._blocks.marks_with(kept.is_in_slot, in_slots)
        for pool in self._blocks.pools:
            pool.notes_released = True

    def find(self, sequence: Sequence) -> int | None:
        """See `Prefixes`; what has to be brought back is among what is found, where that pays."""
        found = super().find(sequence)
        if found is None or not self.is_open or sequence.num_restores == _MOST_TRIES or self._unpaid is sequence:
            return found
        reached = self._reached(sequence)
        if reached <= found:
            return found
        if not self._pays(sequence, found, reached):
            self._unpaid = sequence  # it is looked at before each step until it has its place
            return found
        return reached

    def begin(self, sequence: Sequence, found: int) -> None:
        """See `Prefixes`."""
        self._unpaid = None
        here = self._blocks.find(sequence, found)
        lacking = self._blocks.claim(sequence, found)
        self._begin_behind(sequence, found)
        if lacking:
            self._wait(sequence, deque(lacking), here, here)
            return
        self._count(sequence)
        self._announce(sequence, found)

    def arrive(self, copies: Iterable[BlockCopy]) -> None:
        """Know blocks whose copies to the device are submitted; their sequence has not been cancelled."""
        for copy in copies:
            self._blocks.pools[copy.name.group].know(copy.block, copy.name.key)

    def end_restore(self, restore: Restore) -> None:
        """Let a sequence go on behind its blocks, all of which are known; harmless for one that was cancelled."""
        if not restore.is_cancelled:
            self._forget(restore.sequence)
            self._count(restore.sequence)

    def tokens_left(self, restore: Restore) -> int:
        """Return about how many tokens are computed where no more of a sequence's blocks come back."""
        return restore.num_tokens * len(restore.lacking) // restore.num_lacking

    def bytes_left(self, restore: Restore) -> tuple[int, int]:
        """Return the size of what a sequence lacks yet, and of the part of it that only the disk has."""
        sizes = [(name, self.kept.block_nbytes[name.group]) for name, _ in restore.lacking]
        from_disk = sum(nbytes for name, nbytes in sizes if not self.kept.is_in_slot(name.group, name.key))
        return sum(nbytes for _, nbytes in sizes), from_disk

    def pays_yet(self, restore: Restore) -> bool:
        """Whether to begin with what was asked for: a disk may have become slow while others were before it."""
        return restore.is_tried or self._is_faster(restore)

    def compute_rest(self, restore: Restore) -> None:
        """Have nothing more be brought back to a sequence that is to begin anew: that takes too long."""
        restore.sequence.num_restores = _MOST_TRIES

    def commit(self, kept: Iterable[KeptState]) -> None:
        """See `Prefixes`."""
        super().commit(kept)
        self._num_committed += 1

    def observe(self, num_tokens: int, num_decodes: int, step_s: float) -> None:
        """Note what a step took on the device, if it was mostly for prompts."""
        if num_tokens - num_decodes >= max(self._blocks.block_size, num_decodes):
            self.costs.computed.observe(num_tokens, step_s)

    def leave(self, sequence: Sequence) -> None:
        """See `Prefixes`."""
        self._forget(sequence)
        super().leave(sequence)

    def take_released(self, most_nbytes: int, *, wants_disk: bool) -> Released:
        """Return what is to be copied to the host of blocks that nobody has, and the slots, pinned, for it.

        A block that is elsewhere already waits for those behind it in its text, which are to be copied first; if it is
        in a slot, and the disk lacks it, since it was full, say, it is to be written, as others are. One that others
        use yet is to be copied for the disk alone: it may have users until the process ends, however that is.
        """
        copies: list[BlockCopy] = []
        used: list[BlockName] = []
        unwritten: list[BlockCopy] = []
        has_room = self.kept.has_room_to_write
        for group, pool in enumerate(self._blocks.pools):
            slots, nbytes, before = self.kept.slots[group], self.kept.block_nbytes[group], len(copies)
            behind = len(unwritten)
            while most_nbytes > 0 and len(copies) < MOST_COPIES:
                released = pool.first_released()
                if released is None:
                    break
                block, key = released
                if self.kept.knows(group, key):
                    lacks_file = wants_disk and self.kept.is_in_slot_alone(group, key)
                    if len(copies) > before or (lacks_file and not has_room(group, len(unwritten) - behind)):
                        break
                    pool.forget_released(block)
                    used.append(BlockName(group, key))
                    if lacks_file:
                        unwritten.append(BlockCopy(used[-1], block, slots.hold(key)))
                    continue
                if pool.is_used(key):  # and noted once more when it is not
                    pool.forget_released(block)
                    if wants_disk:
                        pool.note_shared(block, self._num_steps)
                    continue
                if wants_disk and not has_room(group, len(copies) - before + len(unwritten) - behind):
                    break
                slot = slots.take()
                if slot is None:
                    break
                pool.forget_released(block)
                copies.append(BlockCopy(BlockName(group, key), block, slot))
                most_nbytes -= nbytes
            if wants_disk:
                num_waiting = len(copies) - before + len(unwritten) - behind
                most_nbytes -= nbytes * self._take_shared(group, most_nbytes, copies, num_waiting)
        return Released(copies, used, unwritten)

    def _take_shared(self, group: int, most_nbytes: int, copies: list[BlockCopy], num_waiting: int) -> int:
        """Add to copies what is in use, behind so many that wait for the disk; returns how many there are more.

        Steps that were scheduled when a block was noted may be to write it yet, and not be submitted, until they are
        committed.
        """
        pool, slots, count = self._blocks.pools[group], self.kept.slots[group], len(copies)
        while most_nbytes > 0 and len(copies) < MOST_COPIES:
            shared = pool.first_shared()
            if shared is None or shared[2] > self._num_committed:
                break
            block, key, _ = shared
            if not self.kept.knows(group, key):
                num_coming = num_waiting + len(copies) - count
                slot = slots.take() if self.kept.has_room_to_write(group, num_coming) else None
                if slot is None:
                    break
                copies.append(BlockCopy(BlockName(group, key), block, slot))
                most_nbytes -= self.kept.block_nbytes[group]
            pool.forget_shared(block)
        return len(copies) - count

    def _reached(self, sequence: Sequence) -> int:
        """Return how many blocks a sequence can begin behind with what is kept."""
        return self._blocks.find(sequence, self._most(sequence), self._anywhere)

    def _wait(self, sequence: Sequence, lacking: deque[tuple[BlockName, int]], here: int, begun: int) -> None:
        """Have a sequence wait for what it lacks, which has its places; its blocks from `here` on are to come.

        Without them it would be computed from behind the first `begun` on.
        """
        sequence.is_restoring = True
        sequence.num_restores += 1
        restore = Restore(sequence, lacking, sequence.num_found - begun * self._blocks.block_size)
        restore.is_tried = not self._is_faster(restore)
        names = [name for name, _ in reversed(lacking)]
        self.kept.use_in_slots(names)  # others need room before their turn comes
        self.kept.use_on_disk(names)
        self.restores.append(restore)
        self._restoring[sequence] = restore
        self._announce(sequence, here)

    def _forget(self, sequence: Sequence) -> None:
        restore = self._restoring.pop(sequence, None)
        if restore is None:
            return
        restore.is_cancelled = True
        if restore in self.restores:
            self.restores.remove(restore)  # who copies may be waiting for a disk, and others come and go meanwhile
        sequence.is_restoring = False
        for key in sequence.block_keys[: sequence.num_found // self._blocks.block_size]:
            if self._to_come.get(key) is sequence:
                del self._to_come[key]

    def _pays(self, sequence: Sequence, found: int, reached: int) -> bool:
        nbytes = self._nbytes(sequence, reached)
        from_disk = self._nbytes(sequence, reached, self._in_memory)
        return self.costs.pays((reached - found) * self._blocks.block_size, nbytes, from_disk)

    def _is_faster(self, restore: Restore) -> bool:
        nbytes, from_disk = self.bytes_left(restore)
        return not from_disk or self.costs.is_faster(restore.num_tokens, nbytes, from_disk)

    def _nbytes(self, sequence: Sequence, num_blocks: int, marks: BlockMarks | None = None) -> int:
        """Return the size of what a sequence can begin behind and is not here, or known of marks."""
        numbers = self._blocks.num_lacking(sequence, num_blocks, marks)
        return sum(number * nbytes for number, nbytes in zip(numbers, self.kept.block_nbytes, strict=False))
