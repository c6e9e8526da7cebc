"""How a KV cache is cut into pieces, and how a block of any of them is named. Pure.

A piece has blocks of one group, for each of its layers keys and then values, if it keeps these, and every piece of a
group looks like the first. So a block is as far from the first piece's first block as its piece is from the first
piece, in every layer: that distance, in blocks, is its number, and kernels find it without knowing of pieces.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.tensor import aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

PIECE_BYTES = 64 << 20  # short allocations: drivers hold submissions up for as long as one takes
FIRST_TOKENS = 2048  # that there is room for when the first request comes
MOST_PIECES = 512  # about: drivers allow a few thousand allocations
NUM_SLOTS = (1 << 32) - 1  # that kernels can name, one number stands for none
# What slots must reach for a cache to be cut: a driver has begun at the lowest addresses and gone on at 890 GiB.
_LEAST_REACH = 1 << 40


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of one group: `count` of `num_blocks` blocks each, for `num_layers` layers.

    `block_nbytes` is the size of one layer's keys in a block; its values take as much, unless keys are its one part.
    """

    count: int
    num_blocks: int
    num_layers: int
    block_nbytes: int
    num_parts: int = 2

    @property
    def total_blocks(self) -> int:
        """Blocks of all pieces."""
        return self.count * self.num_blocks

    @property
    def nbytes(self) -> int:
        """Size of one piece, with what it takes to begin at a whole number of blocks from the first."""
        nbytes = self.whole_nbytes
        return nbytes if self.count == 1 else aligned(nbytes + self.block_nbytes)

    @property
    def whole_nbytes(self) -> int:
        """Size of a piece's blocks."""
        return self.num_parts * self.num_layers * self.num_blocks * self.block_nbytes

    def keys_offset(self, layer: int) -> int:
        """Return where in a piece the keys of the group's `layer`-th layer begin, in bytes."""
        return self.num_parts * layer * self.num_blocks * self.block_nbytes

    def values_offset(self, layer: int) -> int:
        """Return where in a piece the values of the group's `layer`-th layer begin, in bytes: with its last part."""
        return self.keys_offset(layer) + (self.num_parts - 1) * self.num_blocks * self.block_nbytes


@dataclass(frozen=True, slots=True)
class Numbering:
    """How blocks of a group are numbered: block 0 would lie at `origin`, which may be nobody's memory."""

    origin: int
    block_nbytes: int
    block_size: int

    @classmethod
    def around(cls, address: int, block_nbytes: int, block_size: int) -> Numbering:
        """Number a group whose first piece begins at `address`, so that others may lie before and behind it."""
        before = min(address // block_nbytes, NUM_SLOTS // block_size // 2)
        return cls(address - before * block_nbytes, block_nbytes, block_size)

    @property
    def nbytes(self) -> int:
        """How far blocks may lie from the origin."""
        return NUM_SLOTS // self.block_size * self.block_nbytes

    def start(self, address: int) -> int:
        """Return the first place from `address` on where a block may begin."""
        return address + (self.origin - address) % self.block_nbytes

    def blocks(self, start: int, num_blocks: int) -> range | None:
        """Return the numbers of blocks that follow each other from `start` on; None where no kernel could name them."""
        first = (start - self.origin) // self.block_nbytes
        last = (first + num_blocks) * self.block_size
        return range(first, first + num_blocks) if first >= 0 and last <= NUM_SLOTS else None


def can_be_cut(slot_nbytes: int) -> bool:
    """Whether kernels name slots of so many bytes as far as pieces may lie apart."""
    return (NUM_SLOTS + 1) * slot_nbytes >= _LEAST_REACH


def cut(sizes: Sequence[Pieces], *, block_size: int) -> tuple[Pieces, ...]:
    """Cut groups, each of which is given as one piece; they may get some blocks more.

    A block has `block_size` tokens.
    """
    total = sum(each.whole_nbytes for each in sizes)
    target = max(PIECE_BYTES, total // MOST_PIECES)
    pieces = []
    for each in sizes:
        blocks, nbytes = each.num_blocks, each.whole_nbytes
        count = min(-(-nbytes // target) if can_be_cut(each.block_nbytes // block_size) else 1, blocks)
        pieces.append(replace(each, count=count, num_blocks=-(-blocks // count)))
    return tuple(pieces)


def num_first(pieces: Sequence[Pieces], block_size: int) -> int:
    """Return how many pieces, in the order of growth, `FIRST_TOKENS` need."""
    return sum(min(each.count, -(-FIRST_TOKENS // (each.num_blocks * block_size))) for each in pieces)


def growth_order(pieces: Sequence[Pieces]) -> tuple[int, ...]:
    """Return the groups of all pieces in the order in which they are allocated: tokens need a block of every group."""
    reached = [(index * each.num_blocks, group) for group, each in enumerate(pieces) for index in range(each.count)]
    return tuple(group for _, group in sorted(reached))
