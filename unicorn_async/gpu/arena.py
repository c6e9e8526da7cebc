"""Arenas: large blocks of device memory, cut into slices."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.tensor import aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.gpu.budget import HeapKind
    from unicorn_async.gpu.memory import Buffer, Memory
    from unicorn_async.gpu.memory_types import MemoryKind


@dataclass(frozen=True, slots=True)
class ArenaSlice:
    """A part of an arena's block, `offset` bytes into `buffer`; it lives as long as its arena."""

    buffer: Buffer
    offset: int
    address: int
    nbytes: int

    @property
    def mapped(self) -> memoryview | None:
        """The slice as writable bytes, None where the CPU can't see it."""
        mapped = self.buffer.mapped
        return None if mapped is None else mapped[self.offset : self.offset + self.nbytes]


class Arena:
    """Cuts blocks of one kind into slices; slices are never freed singly. Close it when nothing uses them any more.

    DEVICE memory may be told the kind of `heap` that it is to lie in.
    """

    def __init__(
        self, memory: Memory, kind: MemoryKind, block_bytes: int, *, name: str = "arena", heap: HeapKind | None = None
    ) -> None:
        self._memory = memory
        self._kind = kind
        self._heap = heap
        self._block_bytes = min(block_bytes, memory.max_allocation)
        self._name = name
        self._blocks: list[Buffer] = []
        self._current: Buffer | None = None
        self._used = 0
        self._lock = threading.Lock()

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all blocks, used or not."""
        return sum(block.nbytes for block in self._blocks)

    def allocate(self, nbytes: int) -> ArenaSlice:
        """Return a slice at a multiple of 256 bytes; one larger than a block gets a block of its own.

        Raises:
            OutOfMemoryError: a new block does not fit.
        """
        with self._lock:
            if nbytes > self._block_bytes:
                block = self._new_block(nbytes)
                return ArenaSlice(block, 0, block.address, nbytes)
            offset = aligned(self._used)
            if self._current is None or offset + nbytes > self._current.nbytes:
                self._current, offset = self._new_block(self._block_bytes), 0
            self._used = offset + nbytes
            return ArenaSlice(self._current, offset, self._current.address + offset, nbytes)

    def allocate_block(self, sizes: Sequence[int], *, gives_way: bool = False) -> tuple[ArenaSlice, ...]:
        """Return slices of these sizes in a block of their own that has room for no more; see `block_nbytes`.

        Its allocation may give way to others, see `Memory.allocate`.

        Raises:
            OutOfMemoryError: the block does not fit.
        """
        with self._lock:
            block = self._new_block(block_nbytes(sizes), gives_way=gives_way)
        slices, offset = [], 0
        for nbytes in sizes:
            slices.append(ArenaSlice(block, offset, block.address + offset, nbytes))
            offset += aligned(nbytes)
        return tuple(slices)

    def close(self) -> None:
        """Free all blocks; nothing on the GPU may still use a slice."""
        with self._lock:
            blocks, self._blocks, self._current = self._blocks, [], None
            self._used = 0
        for block in blocks:
            block.close()

    def _new_block(self, nbytes: int, *, gives_way: bool = False) -> Buffer:
        name = f"{self._name}[{len(self._blocks)}]"
        block = self._memory.allocate(nbytes, self._kind, name=name, heap=self._heap, gives_way=gives_way)
        self._blocks.append(block)
        return block


def block_nbytes(sizes: Sequence[int]) -> int:
    """Return the size of a block with slices of these sizes, each at a multiple of 256 bytes."""
    return sum(aligned(nbytes) for nbytes in sizes)
