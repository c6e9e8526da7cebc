"""The KV cache's blocks: who has which."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from unicorn_async.errors import RequestError
from unicorn_async.scheduler.block_keys import extend_keys
from unicorn_async.scheduler.block_marks import BlockMarks
from unicorn_async.scheduler.block_pool import WHOLE, BlockPool, NeighbourPool
from unicorn_async.scheduler.kept_blocks import BlockName

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as SequenceOf

    from unicorn_async.scheduler.block_changes import BlockChanges
    from unicorn_async.scheduler.sequence import Sequence


def num_blocks_spanned(num_positions: int, block_size: int) -> int:
    """Return how many blocks a run of positions can touch, wherever it starts."""
    return (num_positions + block_size - 2) // block_size + 1 if num_positions else 0


@dataclass(frozen=True, slots=True)
class BlockGroup:
    """Layers that share block tables, since their attention reaches back equally far."""

    window: int  # a query sees so many positions, its own among them; 0 = all
    num_blocks: int

    def blocks_needed(self, length: int, num_queries: int, block_size: int) -> int:
        """Return the most blocks that a sequence needs at once to compute `length` positions, `num_queries` a step."""
        blocks = -(-length // block_size)
        if self.window:
            blocks = min(blocks, num_blocks_spanned(self.window - 1 + num_queries, block_size))
        return blocks


class BlockManager:
    """Keeps the block tables of sequences.

    All tables of a sequence have the same length: the same positions are covered in every group, until the start of a
    table of a group with a window is freed. A freed entry is -1, so that a table's index stays position // block_size.

    `groups` says how many blocks there are, or will be: pools that grow begin with none, and are given theirs.

    Full blocks are known by their tokens and by all before them, so that a sequence that begins like another shares
    its blocks. Nobody writes to a full block, so none is ever copied.
    """

    def __init__(
        self, groups: SequenceOf[BlockGroup], block_size: int, *, grows: bool = False, side_by_side: bool = False
    ) -> None:
        """Make the pools; `side_by_side` has a sequence's blocks be neighbours where they can."""
        self.groups = tuple(groups)
        self.block_size = block_size
        self.is_growing = grows
        pool = NeighbourPool if side_by_side else BlockPool
        self.pools = tuple(pool(() if grows else range(group.num_blocks)) for group in groups)
        changes = [pool.changes for pool in self.pools]
        self._here = BlockMarks([pool.knows for pool in self.pools], changes)
        self._used = BlockMarks([pool.is_used for pool in self.pools], changes)

    def end_growth(self) -> int | None:
        """Take it that no more blocks come; returns how many tokens of a sequence there is room for, if some lack."""
        self.is_growing = False
        if all(pool.num_blocks == group.num_blocks for group, pool in zip(self.groups, self.pools, strict=True)):
            return None
        self.groups = tuple(
            replace(group, num_blocks=pool.num_blocks) for group, pool in zip(self.groups, self.pools, strict=True)
        )
        most = 1 << 62
        rooms = (
            most if group.blocks_needed(most, 1, self.block_size) <= group.num_blocks else group.num_blocks
            for group in self.groups
        )
        return min(rooms) * self.block_size

    @property
    def num_free(self) -> int:
        """Blocks by which a sequence can grow in every group."""
        return min(pool.num_free for pool in self.pools)

    def check_fits(self, sequence: Sequence) -> None:
        """Refuse what would not fit even alone; the last token's own position is never computed.

        Raises:
            RequestError: a group has too few blocks.
        """
        num_positions = sequence.max_length - sequence.samples
        for group in self.groups:
            needed = group.blocks_needed(num_positions, 1, self.block_size)
            if needed > group.num_blocks:
                raise RequestError(
                    f"prompt of {len(sequence.prompt_ids)} tokens and its answer, {sequence.max_length} together: "
                    f"need {needed} blocks of the KV cache, which has {group.num_blocks}"
                )

    def room(self, sequence: Sequence) -> int:
        """Return how many positions beyond `num_scheduled` the sequence can have without anybody giving up blocks."""
        return sequence.num_covered + self.num_free * self.block_size - sequence.num_scheduled

    def has_room(self, sequence: Sequence) -> bool:
        """Whether `room` is at least 1."""
        return sequence.num_covered > sequence.num_scheduled or self.num_free > 0

    def grow(self, sequence: Sequence, num_positions: int) -> None:
        """Cover the sequence's first `num_positions`; `room` has said that there are blocks for it."""
        if not sequence.block_tables:
            sequence.block_tables = [[] for _ in self.pools]
            sequence.first_blocks = [0] * len(self.pools)
            _forget_marks(sequence)
        while sequence.num_covered < num_positions:
            for table, pool in zip(sequence.block_tables, self.pools, strict=True):
                table.append(pool.allocate(table[-1] if table else None))
            sequence.num_covered += self.block_size

    def find(self, sequence: Sequence, most: int, marks: BlockMarks | None = None) -> int:
        """Return how many of a sequence's first blocks, of `most`, are here with all that lies in windows there.

        With `marks` of `marks_with` what these know of counts.
        """
        extend_keys(sequence, most, self.block_size)
        groups = list(zip(self.groups, (self._here if marks is None else marks).of(sequence), strict=True))
        found = most
        for group, is_here in groups:
            if not group.window and (missing := is_here.find(0, 0, found)) >= 0:
                found = missing
        windows = [(group, is_here) for group, is_here in groups if group.window]
        while found:
            behind = [
                is_here.rfind(1, 0, missing) + 1  # who begins between these lacks the block before
                for group, is_here in windows
                if (missing := is_here.rfind(0, self._first_seen(group, found), found)) >= 0
            ]
            if not behind:
                break
            found = min(behind)
        return found

    def marks_with(self, knows: Callable[[int, bytes], bool], changes: SequenceOf[BlockChanges]) -> BlockMarks:
        """Return the marks, by group, of blocks that are here or that somebody else `knows`."""

        def test(group: int, is_here: Callable[[bytes], bool], key: bytes) -> bool:
            return is_here(key) or knows(group, key)

        tests = [partial(test, group, pool.knows) for group, pool in enumerate(self.pools)]
        return BlockMarks(tests, [*(pool.changes for pool in self.pools), *changes])

    def num_shared(self, sequence: Sequence, num_blocks: int) -> tuple[int, ...]:
        """Return, per group, how many of the first blocks that `find` has found are in use by others."""
        return self._count(self._used.of(sequence), 1, num_blocks)

    def num_lacking(self, sequence: Sequence, num_blocks: int, marks: BlockMarks | None = None) -> tuple[int, ...]:
        """Return, per group, how many of the first blocks that `find` has found are not here, or known of `marks`."""
        return self._count((self._here if marks is None else marks).of(sequence), 0, num_blocks)

    def _count(self, marks: list[bytearray], mark: int, num_blocks: int) -> tuple[int, ...]:
        """Return, per group, how many blocks have a mark that the position behind the first `num_blocks` sees."""
        groups = zip(self.groups, marks, strict=True)
        return tuple(each.count(mark, self._first_seen(group, num_blocks), num_blocks) for group, each in groups)

    def lacking(self, sequence: Sequence, num_blocks: int) -> list[BlockName]:
        """Return which of the first blocks that `find` has found are not here, in the order of the text."""
        keys, here = sequence.block_keys, self._here.of(sequence)
        firsts = [self._first_seen(group, num_blocks) for group in self.groups]
        missing = [each.find(0, first, num_blocks) for each, first in zip(here, firsts, strict=True)]
        return [
            BlockName(group, keys[number])
            for number in range(min((number for number in missing if number >= 0), default=num_blocks), num_blocks)
            for group, is_here in enumerate(here)
            if number >= firsts[group] and not is_here[number]
        ]

    def claim(self, sequence: Sequence, num_blocks: int) -> list[tuple[BlockName, int]]:
        """Give a sequence that has no blocks the first ones that `find` has found.

        Those that are elsewhere get blocks without content, which are returned with their names.
        """
        if not num_blocks:
            return []
        keys = sequence.block_keys
        names = self.lacking(sequence, num_blocks)
        sequence.first_blocks = [self._first_seen(group, num_blocks) for group in self.groups]
        sequence.block_tables = [
            [-1] * first + [pool.share(key) if pool.knows(key) else -1 for key in keys[first:num_blocks]]
            for first, pool in zip(sequence.first_blocks, self.pools, strict=True)
        ]
        lacking = []
        numbers = {key: number for number, key in enumerate(keys[:num_blocks])}
        for name in names:  # behind all that are shared, or room would be made by what is about to be
            block = self.pools[name.group].allocate()
            sequence.block_tables[name.group][numbers[name.key]] = block
            lacking.append((name, block))
        sequence.num_covered = num_blocks * self.block_size
        sequence.num_known = num_blocks
        _forget_marks(sequence)
        return lacking

    def know(self, sequence: Sequence, num_positions: int) -> None:
        """Note what the sequence's full blocks hold; its first `num_positions` are computed, or will be in order."""
        num_blocks = num_positions // self.block_size
        if num_blocks <= sequence.num_known:
            return
        keys = extend_keys(sequence, num_blocks, self.block_size)
        for pool, table, first in zip(self.pools, sequence.block_tables, sequence.first_blocks, strict=True):
            for number in range(max(sequence.num_known, first), num_blocks):
                pool.know(table[number], keys[number])
        sequence.num_known = num_blocks

    def _first_seen(self, group: BlockGroup, num_blocks: int) -> int:
        """Return the first block that the position behind the first `num_blocks` sees."""
        return max(num_blocks * self.block_size - group.window + 1, 0) // self.block_size if group.window else 0

    def trim(self, sequence: Sequence, oldest: int) -> None:
        """Free blocks that lie before every window of the positions from `oldest` on."""
        if oldest < sequence.trim_start:
            return
        sequence.trim_start = oldest + self.block_size
        for index, group in enumerate(self.groups):
            if not group.window:
                continue
            first, passed_by = divmod(oldest - group.window + 1, self.block_size)
            sequence.trim_start = min(sequence.trim_start, oldest + self.block_size - passed_by)
            if first > sequence.first_blocks[index]:
                passed = slice(sequence.first_blocks[index], first)
                self._pass(sequence, index, passed)
                sequence.block_tables[index][passed] = [-1] * (first - passed.start)
                sequence.first_blocks[index] = first

    def _pass(self, sequence: Sequence, group: int, passed: slice) -> None:
        """Free blocks that a window has left behind; who asks the same again begins with those at the prompt's end."""
        end = (len(sequence.prompt_ids) - 1) // self.block_size
        first = min(max(self._first_seen(self.groups[group], end), passed.start), passed.stop)
        end = min(max(end, first), passed.stop)
        pool, table = self.pools[group], sequence.block_tables[group]
        pool.free(table[passed.start : first], is_passed=True)
        pool.free(table[first:end])
        pool.free(table[end : passed.stop], is_passed=True)

    def release(self, sequence: Sequence) -> None:
        """Free all blocks of the sequence; of those that are known, the last ones are used anew before the first."""
        for pool, table, first in zip(self.pools, sequence.block_tables, sequence.first_blocks, strict=False):
            pool.free(reversed(table[first:]))
        sequence.block_tables, sequence.first_blocks = [], []
        sequence.num_covered = sequence.trim_start = sequence.num_known = sequence.num_found = 0

    def weight(self, sequence: Sequence) -> int:
        """Return the largest part of a group's blocks that the sequence has, of `WHOLE`."""
        return max((pool.part(table) for pool, table in self._tables(sequence)), default=0)

    def part(self, numbers: SequenceOf[int]) -> int:
        """Return the largest part of a group's blocks that so many of each are, of `WHOLE`."""
        return max(number * WHOLE // pool.num_blocks for number, pool in zip(numbers, self.pools, strict=True))

    def num_alone(self, sequence: Sequence) -> tuple[int, ...]:
        """Return, per group, how many blocks come free with the sequence alone."""
        return tuple(pool.num_alone(table) for pool, table in self._tables(sequence)) or (0,) * len(self.pools)

    def _tables(self, sequence: Sequence) -> list[tuple[BlockPool, list[int]]]:
        """Return the sequence's tables, without what is freed, beside their pools; none if it has no blocks."""
        tables = zip(self.pools, sequence.block_tables, sequence.first_blocks, strict=False)
        return [(pool, table[first:] if first else table) for pool, table, first in tables]

    def shortage(self, sequence: Sequence, length: int, num_queries: int) -> tuple[int, ...]:
        """Return, per group, the blocks that the sequence lacks to reach `length`, `num_queries` a step."""
        lacking = []
        for index, group in enumerate(self.groups):
            held = len(sequence.block_tables[index]) - sequence.first_blocks[index] if sequence.block_tables else 0
            needed = group.blocks_needed(length, num_queries, self.block_size)
            lacking.append(max(min(needed, group.num_blocks) - held, 0))
        return tuple(lacking)


def _forget_marks(sequence: Sequence) -> None:
    """Take it that nobody asks which of a sequence's blocks are there while it has its own."""
    sequence.block_marks.clear()
    sequence.block_numbers.clear()
