"""Arenas: large blocks of device memory, cut into slices."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
        return None if self.buffer.mapped is None else self.buffer.mapped[self.offset : self.offset + self.nbytes]


class Arena:
    """Cuts blocks of one kind into slices; slices are never freed singly. Close it when nothing uses them any more."""

    def __init__(self, memory: Memory, kind: MemoryKind, block_bytes: int, *, name: str = "arena") -> None:
        self._memory = memory
        self._kind = kind
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

    def allocate(self, nbytes: int, align: int = 256) -> ArenaSlice:
        """Return a slice at an offset that is a multiple of `align`; one larger than a block gets a block of its own.

        Raises:
            OutOfMemoryError: a new block does not fit.
        """
        with self._lock:
            if nbytes > self._block_bytes:
                block = self._new_block(nbytes)
                return ArenaSlice(block, 0, block.address, nbytes)
            offset = -(-self._used // align) * align
            if self._current is None or offset + nbytes > self._current.nbytes:
                self._current, offset = self._new_block(self._block_bytes), 0
            self._used = offset + nbytes
            return ArenaSlice(self._current, offset, self._current.address + offset, nbytes)

    def close(self) -> None:
        """Free all blocks; nothing on the GPU may still use a slice."""
        with self._lock:
            blocks, self._blocks, self._current = self._blocks, [], None
            self._used = 0
        for block in blocks:
            block.close()

    def _new_block(self, nbytes: int) -> Buffer:
        block = self._memory.allocate(nbytes, self._kind, name=f"{self._name}[{len(self._blocks)}]")
        self._blocks.append(block)
        return block
