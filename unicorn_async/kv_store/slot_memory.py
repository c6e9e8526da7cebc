"""The host's memory for blocks of the KV cache, which both the CPU and the device reach."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.errors import CacheError
from unicorn_async.gpu.memory_types import MemoryKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from unicorn_async.gpu.memory import Buffer, Memory

_PIECE_BYTES = 64 << 20  # of an allocation


class SlotMemory:
    """Slots of each group, a block in each, allocated piece by piece; close it when no copy is pending.

    A slot has the block's keys and values of one layer after the other, or all layers' states. The groups divide
    `nbytes` as `shares` say, whole numbers that are not all 0, and have the `least` number of slots each at least; one
    whose blocks are of no size needs none. One
    thread at a time calls `grow`. Any may copy a slot's bytes, also one that comes behind the end.
    """

    def __init__(
        self, memory: Memory, block_nbytes: Sequence[int], shares: Sequence[int], least: Sequence[int], nbytes: int
    ) -> None:
        self._memory = memory
        self.block_nbytes = tuple(block_nbytes)
        whole = sum(shares)
        self.counts = tuple(
            max(nbytes * share // whole // max(size, 1), few)
            for share, size, few in zip(shares, block_nbytes, least, strict=True)
        )
        self._per_piece = tuple(
            min(max(_PIECE_BYTES // max(size, 1), 1), count)
            for size, count in zip(block_nbytes, self.counts, strict=True)
        )
        self._pieces: tuple[list[Buffer], ...] = tuple([] for _ in block_nbytes)
        self.nbytes = 0  # that are allocated, or about to be
        self._copying = threading.Lock()
        self._is_closed = False

    def is_complete(self, group: int) -> bool:
        """Whether a group has all its slots."""
        return len(self._pieces[group]) * self._per_piece[group] >= self.counts[group]

    def grow(self, group: int) -> int:
        """Allocate and map a group's next piece, which blocks; returns how many slots there are more.

        Raises:
            OutOfMemoryError: it does not fit.
        """
        pieces = self._pieces[group]
        count = min(self._per_piece[group], self.counts[group] - len(pieces) * self._per_piece[group])
        nbytes = count * self.block_nbytes[group]
        self.nbytes += nbytes
        try:
            buffer = self._memory.allocate(nbytes, MemoryKind.STAGING, name=f"KV slots {group}[{len(pieces)}]")
        except BaseException:
            self.nbytes -= nbytes
            raise
        pieces.append(buffer)
        assert buffer.mapped is not None, "staging memory is mapped"
        return count

    def place(self, group: int, slot: int) -> tuple[Buffer, int]:
        """Return the buffer of a slot, and where in it the slot begins."""
        piece, index = divmod(slot, self._per_piece[group])
        return self._pieces[group][piece], index * self.block_nbytes[group]

    def copy_out(self, group: int, slot: int) -> memoryview:
        """Return a copy of a slot's bytes, over which a disk may take its time; raises CacheError behind the end."""
        data = np.empty(self.block_nbytes[group], np.uint8)
        with self._copying:
            np.copyto(data, self._bytes(group, slot))
        return data.data

    def copy_in(self, group: int, slot: int, data: memoryview) -> None:
        """Fill a slot; raises CacheError behind the end."""
        with self._copying:
            np.copyto(self._bytes(group, slot), np.frombuffer(data, np.uint8))

    def _bytes(self, group: int, slot: int) -> NDArray[np.uint8]:
        if self._is_closed:
            raise CacheError("the host's memory for blocks is closed")
        buffer, offset = self.place(group, slot)
        assert buffer.mapped is not None, "it was mapped when it was allocated"
        return np.frombuffer(buffer.mapped, np.uint8)[offset : offset + self.block_nbytes[group]]

    def close(self) -> None:
        """Free all of it."""
        with self._copying:
            self._is_closed = True
        for pieces in self._pieces:
            while pieces:
                pieces.pop().close()
