"""Keeps a toy GPU's blocks in slots and on a disk, at any time between two steps, and loses some of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from unicorn_async.scheduler.kept_prefixes import BlockCopy

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from unicorn_async.scheduler.kept_blocks import BlockName, KeptBlocks
    from unicorn_async.scheduler.kept_prefixes import Restore
    from unicorn_async.scheduler.scheduler import Scheduler
    from unicorn_async.scheduler.sequence import Sequence

    from .toy_gpu import ToyGPU

Content = list[tuple[int, ...] | None]


class ToyKeeper:
    """What `BlockKeeper` does, in random parts; `fails` is how often the disk has not what it should."""

    def __init__(self, random: Random, scheduler: Scheduler, gpu: ToyGPU, kept: KeptBlocks, *, fails: float) -> None:
        assert scheduler.kept_prefixes is not None
        self.random, self.scheduler, self.gpu, self.kept = random, scheduler, gpu, kept
        self.prefixes = scheduler.kept_prefixes
        self.prefixes.is_open = True
        self.fails = fails
        self.slots: dict[tuple[int, int], Content] = {}
        self.disk: dict[BlockName, Content] = {}
        self.pending: list[Callable[[], None]] = []  # what is done when the device has done the copies
        self.restoring: Restore | None = None
        self.num_restored = self.num_failed = 0
        self.put_back: set[Sequence] = set()  # those that wait again, since their blocks have not come

    def act(self, times: int) -> None:
        """Do some things, or have the device do its copies."""
        for _ in range(times):
            self.random.choice((self.save, self.restore, self.restore, self.settle))()

    def settle(self) -> None:
        """Wait for the copies that are submitted, if no step lies before them."""
        if not self.gpu.submitted:
            self.gpu.run_copies()
            done, self.pending = self.pending, []
            for end in done:
                end()

    def save(self) -> None:
        copies, _, unwritten = self.prefixes.take_released(self.random.choice((1, 3, 100)), wants_disk=True)
        for copy in unwritten:
            self.written(copy.name)
        self.release(unwritten)
        for copy in copies:
            self.gpu.submit_copy(partial(self.to_slot, copy))
        self.pending.append(lambda: self.all_saved(copies))

    def all_saved(self, copies: list[BlockCopy]) -> None:
        for copy in copies:
            self.saved(copy)

    def release(self, copies: list[BlockCopy]) -> None:
        for copy in copies:
            self.kept.slots[copy.name.group].release(copy.slot)

    def saved(self, copy: BlockCopy) -> None:
        name = copy.name
        slots = self.kept.slots[name.group]
        slots.fill(copy.slot, name.key)
        slots.release(copy.slot)
        if slots.find(name.key) == copy.slot and self.random.random() < 0.7:
            self.written(name)

    def written(self, name: BlockName) -> None:
        slot = self.kept.await_writing(name)
        gone = self.kept.make_room_on_disk(1)
        assert gone is not None
        for lost in gone:
            del self.disk[lost]
        self.disk[name] = self.slots[name.group, slot]
        self.kept.add_to_disk(name, 1)
        self.kept.end_writing(name, slot)

    def to_slot(self, copy: BlockCopy) -> None:
        self.slots[copy.name.group, copy.slot] = self.gpu.content(copy)

    def from_slot(self, copy: BlockCopy) -> None:
        self.gpu.set_content(copy, self.slots[copy.name.group, copy.slot])

    def restore(self) -> None:
        if self.restoring is None and self.prefixes.restores:
            self.restoring = self.prefixes.restores.popleft()
        if self.restoring is not None and not self.pending:
            self.restore_part(self.restoring)

    def restore_part(self, restore: Restore) -> None:
        copies: list[BlockCopy] = []
        while restore.lacking and len(copies) < 3 and not restore.is_cancelled:
            name, block = restore.lacking[0]
            slot = self.slot_of(name)
            if slot is None:
                break
            copies.append(BlockCopy(name, block, slot))
            restore.lacking.popleft()
        if not copies or restore.is_cancelled:
            self.restoring = None
            if restore.lacking:
                self.num_failed += not restore.is_cancelled
                if not restore.is_cancelled:
                    self.put_back.add(restore.sequence)
                self.scheduler.restore_failed(restore)
            else:
                self.prefixes.end_restore(restore)
        if not restore.is_cancelled:
            for copy in copies:
                self.gpu.submit_copy(partial(self.from_slot, copy))
            self.prefixes.arrive(copies)
            self.num_restored += len(copies)
        self.pending.append(lambda: self.release(copies))

    def slot_of(self, name: BlockName) -> int | None:
        """The slot of a block, pinned, into which it may have to be read first."""
        slots = self.kept.slots[name.group]
        if slots.find(name.key) is not None:
            return slots.hold(name.key)
        if name not in self.disk:
            return None
        if self.random.random() < self.fails:
            self.kept.drop_from_disk(name)
            del self.disk[name]
            return None
        slot = slots.take()
        if slot is not None:
            self.slots[name.group, slot] = self.disk[name]
            slots.fill(slot, name.key)
        return slot
