"""A model's places in device memory, allocated beside a load that already fills the first of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unicorn_async.background import run_to_end, wait_to_end
from unicorn_async.errors import EngineClosedError
from unicorn_async.gpu.arena import Arena
from unicorn_async.gpu.budget import HeapKind
from unicorn_async.gpu.memory_types import MemoryKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.memory import Memory
    from unicorn_async.weights.placement import Placement, PlannedBlock


class BackgroundAllocator:
    """Allocates what was planned, block after block in a thread: some drivers take 20 milliseconds a gigabyte.

    One event loop uses it, and closes it when nothing on the device uses the memory any more. `slices` has the places
    that there are, by the claims' names, and grows.
    """

    def __init__(self, memory: Memory, placement: Placement) -> None:
        self.slices: dict[str, ArenaSlice] = {}
        self._memory = memory
        self._blocks = placement.blocks
        self._heaps = {claim.name: block.heap for block in placement.blocks for claim in block.claims}
        self._arenas = {heap: Arena(memory, MemoryKind.DEVICE, 1, name=heap.value, heap=heap) for heap in HeapKind}
        self._changed = asyncio.Event()
        self._is_closed = False
        self._work: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Begin to allocate; to be called once. Who else allocates meanwhile waits for one block at most."""
        loop = asyncio.get_running_loop()
        self._work = loop.run_in_executor(None, self._allocate, loop)
        self._work.add_done_callback(lambda _: self._notify())

    def is_mappable(self, name: str) -> bool:
        """Whether the CPU sees a place; what is to be expected of it, while it is not there."""
        place = self.slices.get(name)
        return self._memory.expects_mappable(self._heaps[name]) if place is None else place.buffer.is_mappable

    async def wait(self, names: Iterable[str]) -> None:
        """Return when all these places are there.

        Raises:
            OutOfMemoryError: the memory did not fit after all, because another process was faster.
            EngineClosedError: this was closed.
        """
        for name in names:
            while name not in self.slices:
                changed = self._changed
                if self._work is not None and self._work.done():
                    self._work.result()
                    raise EngineClosedError(f"{name} has no memory any more")
                await changed.wait()

    async def all(self) -> Mapping[str, ArenaSlice]:
        """Return all places, once they are there; raises as `wait` does."""
        await self.wait(self._heaps)
        return self.slices

    async def close(self, keep: Collection[HeapKind] = ()) -> None:
        """Free everything, in a thread, after the block that is being allocated; what lies in `keep` is for `free`."""
        self._is_closed = True
        self._notify()
        try:
            if self._work is not None:
                await wait_to_end(self._work)
                self._work.exception()  # who waited has it
        finally:
            await run_to_end(lambda: self.free(set(HeapKind) - set(keep)))

    def free(self, heaps: Collection[HeapKind] = tuple(HeapKind)) -> None:
        """Free what lies in some kinds of memory, once this is closed."""
        for heap in heaps:
            self._arenas[heap].close()

    def _allocate(self, loop: asyncio.AbstractEventLoop) -> None:
        for block in self._blocks:
            if self._is_closed:
                return
            sizes = [claim.nbytes for claim in block.claims]
            slices = self._arenas[block.heap].allocate_block(sizes, gives_way=True)
            loop.call_soon_threadsafe(self._arrived, block, slices)

    def _arrived(self, block: PlannedBlock, slices: tuple[ArenaSlice, ...]) -> None:
        self.slices |= {claim.name: place for claim, place in zip(block.claims, slices, strict=True)}
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
