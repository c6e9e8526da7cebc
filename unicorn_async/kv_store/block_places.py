"""Where the parts of what is kept lie on the device: a block's keys and values, and the layers' states of a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.memory.kv_plan import PASSING_STATES
from unicorn_async.memory.plan import fixed_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.memory import Buffer
    from unicorn_async.memory.kv_pool import KVPool
    from unicorn_async.models.spec import ModelSpec

_FEW_BLOCKS = 8  # that there has to be room for elsewhere; a state may be as large as hundreds of them


class FixedStates:
    """The rows of states of fixed size, of which `num_copies` may be kept: `sizes` of each layer, by its place's name.

    The places need not be there before a copy is.
    """

    def __init__(self, places: Mapping[str, ArenaSlice], sizes: Mapping[str, int], num_copies: int) -> None:
        self._places = places
        self._sizes = sizes
        self.num_copies = num_copies

    @classmethod
    def of(cls, model: ModelSpec, places: Mapping[str, ArenaSlice], num_copies: int) -> FixedStates | None:
        """Return those of a model, None where no layer has any; `places` are those of all that was planned."""
        layers = enumerate(model.layers)
        sizes = {fixed_name(layer): found.fixed.nbytes for layer, found in layers if found.fixed is not None}
        return cls(places, sizes, num_copies) if sizes else None

    @property
    def nbytes(self) -> int:
        """Size of one row, of all layers."""
        return sum(self._sizes.values())

    def parts(self, row: int) -> Iterator[tuple[Buffer, NDArray[np.uint64]]]:
        """Return the buffer of each layer's part, and (1, 2): where it begins, and its bytes."""
        for name, nbytes in self._sizes.items():
            place = self._places[name]
            yield place.buffer, np.array([(place.offset + row * nbytes, nbytes)], np.uint64)


class BlockPlaces:
    """The groups of blocks, and behind these one of states, where there are some.

    Without a pool blocks lie nowhere, and are of no size, in one group.
    """

    def __init__(self, pool: KVPool | None, states: FixedStates | None) -> None:
        self._pool = pool
        self._states = states

    @property
    def nbytes(self) -> tuple[int, ...]:
        """Size of a block, by group."""
        pool = self._pool
        blocks = (0,) if pool is None else tuple(map(pool.block_nbytes, range(pool.num_groups)))
        return blocks if self._states is None else (*blocks, self._states.nbytes)

    @property
    def shares(self) -> tuple[int, ...]:
        """Bytes of all blocks that there may be, by group."""
        pool = self._pool
        counts = [0] if pool is None else list(map(pool.most_blocks, range(pool.num_groups)))
        counts += [] if self._states is None else [self._states.num_copies]
        return tuple(size * count for size, count in zip(self.nbytes, counts, strict=True))

    @property
    def least(self) -> tuple[int, ...]:
        """Blocks that there has to be room for elsewhere, by group."""
        blocks = (0,) if self._pool is None else (_FEW_BLOCKS,) * self._pool.num_groups
        return blocks + (() if self._states is None else (PASSING_STATES,))

    def parts(self, group: int, block: int) -> Sequence[tuple[Buffer, NDArray[np.uint64]]]:
        """Return a block's parts in their order: in which buffer, and (parts, 2), where there and how many bytes."""
        pool = self._pool
        if self._states is not None and group == len(self.nbytes) - 1:
            return tuple(self._states.parts(block))
        assert pool is not None, "what lies nowhere is not copied"
        device, first, stride = pool.place(group, block)
        nbytes = pool.part_nbytes(group)
        parts = np.empty((pool.block_nbytes(group) // nbytes, 2), np.uint64)
        parts[:, 0] = first + np.arange(len(parts), dtype=np.uint64) * np.uint64(stride)
        parts[:, 1] = nbytes
        return ((device, parts),)
