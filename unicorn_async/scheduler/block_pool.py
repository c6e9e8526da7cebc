"""The blocks of the KV cache that nobody has, and how many users each of the others has."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from unicorn_async.scheduler.block_changes import BlockChanges

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as SequenceOf

WHOLE = 1 << 30  # of which parts are counted


class BlockPool:
    """The blocks of one group, whatever their numbers.

    A block whose content is known by a key may have several users. With none it keeps its content until the room is
    wanted: the one that has been idle longest goes first.
    """

    def __init__(self, blocks: Iterable[int] = ()) -> None:
        self._free: dict[int, None] = {}  # the one that is taken next is the last
        self._users: dict[int, int] = {}
        self._idle: dict[int, None] = {}  # known blocks without users, the one that is idle longest first
        self._keys: dict[int, bytes] = {}
        self._known: dict[bytes, int] = {}
        self.changes = BlockChanges()  # of what is known, and of what of that has users
        self.notes_released = False  # whether somebody asks for `first_released`
        self._released: dict[int, None] = {}  # known blocks that a sequence had to its end, the last ones of it first
        self._shared: dict[int, int] = {}  # blocks in use that somebody had to its end, and the steps until then
        self.add(blocks)

    @property
    def num_blocks(self) -> int:
        """Blocks that there are."""
        return len(self._free) + len(self._idle) + len(self._users)

    @property
    def num_free(self) -> int:
        """Blocks that nobody has."""
        return len(self._free) + len(self._idle)

    def add(self, blocks: Iterable[int]) -> None:
        """Have more blocks, which are used after those that are free now, in their order."""
        self._free = dict.fromkeys([*reversed(list(blocks)), *self._free])

    def allocate(self, after: int | None = None) -> int:
        """Take a free block, for a sequence whose last one is `after`, if it has any; its content is lost."""
        assert self._free or self._idle, f"all {self.num_blocks} blocks are in use"
        if self._free:
            block = self._take_free(after)
        else:
            block = next(iter(self._idle))
            key = self._keys.pop(block)
            del self._idle[block], self._known[key]
            self.changes.note(key)
            self._released.pop(block, None)
        self._users[block] = 1
        return block

    def _take_free(self, after: int | None) -> int:
        """Take one of those that are free."""
        del after
        return self._free.popitem()[0]

    def _give_back(self, block: int) -> None:
        """Have a block be free."""
        self._free[block] = None

    def know(self, block: int, key: bytes) -> None:
        """Note what a block in use holds; of two that hold the same, one in use is known, and an idle one is free."""
        known = self._known.get(key)
        if block in self._keys or known in self._users:
            return
        if known is not None:
            del self._idle[known], self._keys[known]
            self._released.pop(known, None)
            self._give_back(known)
        self._known[key], self._keys[block] = block, key
        self.changes.note(key)

    def knows(self, key: bytes) -> bool:
        """Whether there is a block that holds this."""
        return key in self._known

    def is_used(self, key: bytes) -> bool:
        """Whether there is a block that holds this, and it has a user."""
        return self._known.get(key) in self._users

    def share(self, key: bytes) -> int:
        """Use the block that holds this; there is one."""
        block = self._known[key]
        if block in self._idle:
            del self._idle[block]
            self.changes.note(key)
        self._users[block] = self._users.get(block, 0) + 1
        return block

    def num_alone(self, blocks: SequenceOf[int]) -> int:
        """Return how many of a table's blocks, the last ones, have no other user."""
        return len(blocks) - self._last_like(blocks, 0, 2)

    def part(self, blocks: SequenceOf[int]) -> int:
        """Return which part of all blocks these of a table are, each divided among its users."""
        part = start = 0
        while start < len(blocks):
            users = self._users[blocks[start]]
            end = len(blocks) if users == 1 else self._last_like(blocks, start, users)
            part += (end - start) * WHOLE // (users * self.num_blocks)
            start = end
        return part

    def _last_like(self, blocks: SequenceOf[int], start: int, num_users: int) -> int:
        """Return behind which of a table's blocks, from `start` on, they have fewer users.

        Whoever shares a block shares those before it. In a window, which leaves them behind, it is an estimate.
        """
        return bisect_right(blocks, -num_users, lo=start, key=lambda block: -self._users[block])

    def first_released(self) -> tuple[int, bytes] | None:
        """Return the block that `free` has noted before all others, and its key; it may have users."""
        block = next(iter(self._released), None)
        return None if block is None else (block, self._keys[block])

    def forget_released(self, block: int) -> None:
        """Return a block no more from `first_released` until it is freed once more."""
        del self._released[block]

    def note_shared(self, block: int, num_steps: int) -> None:
        """Have a block be returned by `first_shared`, as long as it is in use, with how many steps there were first."""
        self._shared.setdefault(block, num_steps)

    def first_shared(self) -> tuple[int, bytes, int] | None:
        """Return the block that was noted before all others, its key, and how many steps there were."""
        block = next(iter(self._shared), None)
        return None if block is None else (block, self._keys[block], self._shared[block])

    def forget_shared(self, block: int) -> None:
        """Return a block no more from `first_shared` until it is noted once more."""
        del self._shared[block]

    def free(self, blocks: Iterable[int], *, is_passed: bool = False) -> None:
        """Give blocks back, each for one user; `is_passed` where a window has left them behind."""
        for block in blocks:
            assert block in self._users, f"block {block} is freed twice"
            self._users[block] -= 1
            is_idle = not self._users[block]
            if is_idle:
                del self._users[block]
                self._shared.pop(block, None)
            if block in self._keys:
                if is_idle:
                    self._idle[block] = None
                    self.changes.note(self._keys[block])
                if self.notes_released and not is_passed:
                    self._released.pop(block, None)
                    self._released[block] = None
            elif is_idle:
                self._give_back(block)


class NeighbourPool(BlockPool):
    """A pool that gives a sequence neighbouring blocks where it can, for readers that read these at once.

    A sequence gets the block behind its last one, or begins a row of EXTENT blocks that are all free, and only where
    there is none takes what is left. Its contents are not known by keys.
    """

    EXTENT = 16

    def __init__(self, blocks: Iterable[int] = ()) -> None:
        self._sizes: dict[int, int] = {}  # of extents, in blocks
        self._num_free_of: dict[int, int] = {}
        self._whole: dict[int, None] = {}  # extents of which all blocks are free
        super().__init__(blocks)

    def add(self, blocks: Iterable[int]) -> None:
        """See `BlockPool`."""
        blocks = list(blocks)
        super().add(blocks)
        for block in blocks:
            extent = block // self.EXTENT
            self._sizes[extent] = self._sizes.get(extent, 0) + 1
            self._whole.pop(extent, None)
            self._count(extent, 1)

    def _take_free(self, after: int | None) -> int:
        block, extent = -1 if after is None else after + 1, next(iter(self._whole), None)
        if block not in self._free and extent is not None:
            block = self._first_of(extent)
        if block in self._free:
            del self._free[block]
        else:
            block = super()._take_free(after)
        self._count(block // self.EXTENT, -1)
        return block

    def _give_back(self, block: int) -> None:
        super()._give_back(block)
        self._count(block // self.EXTENT, 1)

    def _first_of(self, extent: int) -> int:
        return next(block for block in range(extent * self.EXTENT, (extent + 1) * self.EXTENT) if block in self._free)

    def _count(self, extent: int, more: int) -> None:
        self._num_free_of[extent] = self._num_free_of.get(extent, 0) + more
        if self._num_free_of[extent] == self._sizes[extent]:
            self._whole[extent] = None
        else:
            self._whole.pop(extent, None)
