"""The KV cache's memory on the device that runs the model, which grows piece by piece."""

from __future__ import annotations

import contextlib
from bisect import bisect_right, insort
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.errors import OutOfMemoryError
from unicorn_async.gpu.memory_types import MemoryKind
from unicorn_async.memory.kv_pieces import Numbering, growth_order
from unicorn_async.ops.kv_cache import KVCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.gpu.budget import HeapKind
    from unicorn_async.gpu.memory import Buffer, Memory
    from unicorn_async.memory.kv_plan import KVPlan
    from unicorn_async.weights.placement import PlannedBlock


_MOST_TRIES = 4  # to be given memory that kernels reach


class NewBlocks(NamedTuple):
    """Blocks of a group that have memory now, by the numbers that kernels know them by."""

    group: int
    numbers: range


class KVPool:
    """Allocates the planned pieces in turn; close it when nothing on the device uses them any more.

    One thread at a time calls `grow`; everything else may be asked beside it.
    """

    def __init__(self, memory: Memory, plan: KVPlan, blocks: Sequence[PlannedBlock], block_size: int) -> None:
        """Take the places of a plan's pieces, `blocks` in the order of `growth_order`."""
        self._memory = memory
        self._plan = plan
        self._block_size = block_size
        self._pending = list(zip(growth_order(plan.pieces), blocks, strict=True))[::-1]
        self.num_first = plan.num_first
        self.most_nbytes = plan.nbytes  # that the pieces grow to
        self._numberings: dict[int, Numbering] = {}
        self._buffers: list[Buffer] = []
        self._places: dict[int, list[tuple[int, Buffer, int]]] = {}  # a group's first blocks, and where they begin
        of = plan.layer_group
        self._index = {layer: of[:layer].count(group) for layer, group in enumerate(of)}  # among its group's layers

    @property
    def is_complete(self) -> bool:
        """Whether all pieces are there."""
        return not self._pending

    @property
    def nbytes(self) -> int:
        """Size of the pieces that are there."""
        order = growth_order(self._plan.pieces)
        return sum(self._plan.pieces[group].nbytes for group in order[: len(self._buffers)])

    @property
    def piece_bytes(self) -> int:
        """Size of the next piece, which may be allocated and not counted yet; 0 if there is none."""
        pending = list(self._pending)
        return pending[-1][1].nbytes if pending else 0

    def pending_bytes(self, heap: HeapKind) -> int:
        """Return what is planned in one kind of memory and not there yet."""
        return sum(block.nbytes for _, block in list(self._pending) if block.heap is heap)

    def grow(self) -> NewBlocks:
        """Allocate the next piece, which blocks; there is one.

        Raises:
            OutOfMemoryError: it does not fit after all, or lies too far from the first for kernels to reach it.
        """
        group, block = self._pending[-1]
        with contextlib.ExitStack() as strays:  # held meanwhile, or the driver would give the same place again
            for _ in range(_MOST_TRIES):
                buffer = self._allocate(block)
                numbers = self._numbers(group, buffer.address)
                if numbers is not None:
                    self._buffers.append(buffer)
                    start = self._numberings[group].start(buffer.address) - buffer.address
                    insort(self._places.setdefault(group, []), (numbers.start, buffer, start), key=_first)
                    self._pending.pop()
                    return NewBlocks(group, numbers)
                strays.callback(buffer.close)
        numbering = self._numberings[group]
        raise OutOfMemoryError(
            f"{buffer.name}: the driver gave memory at {buffer.address:#x}, kernels reach no further than "
            f"{numbering.nbytes:#x} from {numbering.origin:#x} on"
        )

    def give_up(self) -> None:
        """Plan no more pieces than there are."""
        self._pending.clear()
        self.most_nbytes = self.nbytes

    def cache(self, layer: int) -> KVCache:
        """Return where a layer's cache begins, with block 0; there is a piece of its group."""
        group = self._plan.group_of(layer)
        pieces, origin, index = self._plan.pieces[group], self._numberings[group].origin, self._index[layer]
        return KVCache(origin + pieces.keys_offset(index), origin + pieces.values_offset(index))

    @property
    def num_groups(self) -> int:
        """Groups of layers that share block tables."""
        return len(self._plan.pieces)

    def most_blocks(self, group: int) -> int:
        """Return how many blocks of a group were planned."""
        return self._plan.pieces[group].total_blocks

    def block_nbytes(self, group: int) -> int:
        """Size of a block's keys and values, of all layers of a group."""
        pieces = self._plan.pieces[group]
        return pieces.num_parts * pieces.num_layers * self.part_nbytes(group)

    def part_nbytes(self, group: int) -> int:
        """Size of a block's keys of one layer, and of its values."""
        return self._plan.pieces[group].block_nbytes

    def place(self, group: int, block: int) -> tuple[Buffer, int, int]:
        """Return the buffer of a block that has memory, where its first part begins, and how far the parts are apart.

        The parts are the keys and then the values, if there are these, of one layer after the other.
        """
        places = self._places[group]
        first, buffer, start = places[bisect_right(places, block, key=_first) - 1]
        nbytes = self.part_nbytes(group)
        return buffer, start + (block - first) * nbytes, self._plan.pieces[group].num_blocks * nbytes

    def close(self) -> None:
        """Free all pieces; nothing on the device may still use them."""
        while self._buffers:
            self._buffers.pop().close()

    def _allocate(self, block: PlannedBlock) -> Buffer:
        name = f"KV cache[{len(self._buffers)}]"
        return self._memory.allocate(block.nbytes, MemoryKind.DEVICE, name=name, heap=block.heap)

    def _numbers(self, group: int, address: int) -> range | None:
        """The numbers of the blocks of a piece at an address; None where kernels do not reach it."""
        pieces = self._plan.pieces[group]
        numbering = self._numberings.get(group)
        if numbering is None:
            numbering = Numbering.around(address, pieces.block_nbytes, self._block_size)
            self._numberings[group] = numbering
        return numbering.blocks(numbering.start(address), pieces.num_blocks)


def _first(place: tuple[int, Buffer, int]) -> int:
    return place[0]
