"""Which blocks lie outside the device's memory: in slots of the host's, and on a disk."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.scheduler.block_changes import BlockChanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Sequence as SequenceOf

_UNWRITTEN_SHARE = 2  # at most one in so many slots waits for the disk


class BlockName(NamedTuple):
    """What a block holds, of the layers of which group."""

    group: int
    key: bytes


class HostSlots:
    """The slots of one group. Those used longest ago go first, but for those that are pinned.

    A slot is pinned while somebody copies to or from it.
    """

    def __init__(self) -> None:
        self.count = 0
        self._free: list[int] = []
        self._known: dict[bytes, int] = {}  # the one that was used last is the last
        self._filled: set[int] = set()  # slots that are known
        self._pins: Counter[int] = Counter()
        self.changes = BlockChanges()  # of what is here

    def add(self, count: int) -> None:
        """Have so many slots more."""
        self._free.extend(range(self.count, self.count + count))
        self.count += count

    def find(self, key: bytes) -> int | None:
        """Return the slot of a block, if there is one."""
        return self._known.get(key)

    @property
    def has_free(self) -> bool:
        """Whether a slot can be taken for which no block has to go."""
        return bool(self._free)

    @property
    def num_known(self) -> int:
        """Blocks that are here."""
        return len(self._known)

    def take(self) -> int | None:
        """Return a pinned slot whose content is lost; None where all are in use."""
        if self._free:
            slot = self._free.pop()
        else:
            oldest = next((key for key, slot in self._known.items() if not self._pins[slot]), None)
            if oldest is None:
                return None
            slot = self._known.pop(oldest)
            self._filled.remove(slot)
            self.changes.note(oldest)
        self._pins[slot] += 1
        return slot

    def fill(self, slot: int, key: bytes) -> None:
        """Note what a slot that was taken holds; of two that hold the same the earlier one stays."""
        if key not in self._known:
            self._known[key] = slot
            self._filled.add(slot)
            self.changes.note(key)

    def use(self, key: bytes) -> None:
        """Note that a block is used now; harmless for one that is not here."""
        if key in self._known:
            self._known[key] = self._known.pop(key)

    def hold(self, key: bytes) -> int:
        """Pin the slot of a block that is here."""
        slot = self._known[key]
        self._pins[slot] += 1
        return slot

    def pin(self, slot: int) -> None:
        """Pin a slot that is pinned once more."""
        self._pins[slot] += 1

    def release(self, slot: int) -> None:
        """Unpin a slot; one that nobody knows what it holds is free."""
        self._pins[slot] -= 1
        if self._pins[slot] <= 0:
            del self._pins[slot]
            if slot not in self._filled:
                self._free.append(slot)


class KeptBlocks:
    """Says where a block lies, by its name, and which go where room is wanted. Pure: who copies tells what was done.

    Those used longest ago go first. A block is of no use without those before it in its text, so whoever saves or uses
    blocks of a text does so from the last to the first.
    `block_nbytes` is the size of a block, by group. A disk has room for `disk_limit` bytes, 0 where there is none.
    """

    def __init__(self, block_nbytes: SequenceOf[int], *, disk_limit: int = 0) -> None:
        self.block_nbytes = tuple(block_nbytes)
        self.slots = tuple(HostSlots() for _ in block_nbytes)
        self.disk_limit = disk_limit
        self.disk_bytes = 0
        self._disk_changes = BlockChanges()
        self._on_disk: dict[BlockName, int] = {}  # sizes of files; the one that was used last is the last
        self._num_unwritten = [0 for _ in block_nbytes]

    @property
    def num_on_disk(self) -> int:
        """Blocks that lie on the disk."""
        return len(self._on_disk)

    @property
    def changes(self) -> list[BlockChanges]:
        """Changes of what is here, in slots or on the disk."""
        return [self._disk_changes, *(slots.changes for slots in self.slots)]

    def knows(self, group: int, key: bytes) -> bool:
        """Whether a block is here, or of no size: it is nowhere, and nothing of it is ever lacking."""
        return not self.block_nbytes[group] or self.is_in_slot(group, key) or BlockName(group, key) in self._on_disk

    def is_in_slot(self, group: int, key: bytes) -> bool:
        """Whether the host's memory has a block."""
        return self.slots[group].find(key) is not None

    def is_in_slot_alone(self, group: int, key: bytes) -> bool:
        """Whether the host's memory has a block, and the disk does not."""
        return self.is_in_slot(group, key) and BlockName(group, key) not in self._on_disk

    def is_on_disk(self, name: BlockName) -> bool:
        """Whether the disk has a block."""
        return name in self._on_disk

    def has_room_to_write(self, group: int, num_coming: int = 0) -> bool:
        """Whether one block more of a group may wait for the disk, behind so many that are about to."""
        return self._num_unwritten[group] + num_coming < max(self.slots[group].count // _UNWRITTEN_SHARE, 1)

    def await_writing(self, name: BlockName) -> int:
        """Pin a block's slot until `end_writing`."""
        self._num_unwritten[name.group] += 1
        return self.slots[name.group].hold(name.key)

    def end_writing(self, name: BlockName, slot: int) -> None:
        """Take it that a block was written, or will not be."""
        self._num_unwritten[name.group] -= 1
        self.slots[name.group].release(slot)

    def find_on_disk(self, sizes: Mapping[BlockName, int]) -> None:
        """Begin with what a disk has, the block that was used longest ago first."""
        self._on_disk = dict(sizes)
        self._disk_changes.note_all()
        self.disk_bytes = sum(sizes.values())

    def add_to_disk(self, name: BlockName, nbytes: int) -> None:
        """Note that a block is on the disk."""
        self.drop_from_disk(name)
        self._on_disk[name] = nbytes
        self._disk_changes.note(name.key)
        self.disk_bytes += nbytes

    def drop_from_disk(self, name: BlockName) -> None:
        """Note that a block is not on the disk; harmless where it was not."""
        self.disk_bytes -= self._on_disk.pop(name, 0)
        self._disk_changes.note(name.key)

    def use_in_slots(self, names: Iterable[BlockName]) -> None:
        """Note that blocks are used now, the last of them last."""
        for name in names:
            self.slots[name.group].use(name.key)

    def use_on_disk(self, names: Iterable[BlockName]) -> None:
        """Note that blocks are used now, the last of them last."""
        for name in names:
            if name in self._on_disk:
                self._on_disk[name] = self._on_disk.pop(name)

    def make_room_on_disk(self, nbytes: int) -> dict[BlockName, int] | None:
        """Forget the blocks that have to go for so many bytes; returns their sizes, None where these would not fit."""
        if nbytes > self.disk_limit:
            return None
        gone = {}
        while self.disk_bytes + nbytes > self.disk_limit:
            name = next(iter(self._on_disk))
            gone[name] = self._on_disk[name]
            self.drop_from_disk(name)
        return gone

    def stay_on_disk(self, sizes: Mapping[BlockName, int]) -> None:
        """Take it that blocks for which room was to be made are there still, and are the first to go again."""
        self._on_disk = {**sizes, **self._on_disk}
        self._disk_changes.note_all()
        self.disk_bytes = sum(self._on_disk.values())
