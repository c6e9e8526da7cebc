"""Who runs and who waits, and which blocks they have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf

    from unicorn_async.scheduler.block_manager import BlockGroup, BlockManager
    from unicorn_async.scheduler.places import Places
    from unicorn_async.scheduler.sequence import Sequence


class Occupancy:
    """What is told of places and blocks, which a scheduler gives."""

    def __init__(self, blocks: BlockManager, places: Places) -> None:
        self._blocks = blocks
        self._places = places

    @property
    def wants_blocks(self) -> bool:
        """Whether the last step lacked blocks that are to come."""
        return self._places.wants_blocks

    @property
    def num_preemptions(self) -> int:
        """How often a sequence lost its place."""
        return self._places.num_preemptions

    @property
    def num_fair_preemptions(self) -> int:
        """How often one lost it for another client's share."""
        return self._places.num_fair_preemptions

    @property
    def running(self) -> SequenceOf[Sequence]:
        """The sequences that have a place in the steps to come; it changes with them."""
        return self._places.running

    @property
    def num_running(self) -> int:
        """How many these are."""
        return len(self._places.running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a place, for the first time or again."""
        return len(self._places.waiting)

    def is_waiting(self, request_id: str) -> bool:
        """Whether a request waits for a place, for the first time or again."""
        return any(sequence.request_id == request_id for sequence in self._places.waiting)

    @property
    def blocks_used(self) -> tuple[int, ...]:
        """Blocks of each group that sequences have."""
        return tuple(pool.num_blocks - pool.num_free for pool in self._blocks.pools)

    @property
    def blocks_total(self) -> tuple[int, ...]:
        """Blocks of each group that there are."""
        return tuple(pool.num_blocks for pool in self._blocks.pools)

    @property
    def with_blocks(self) -> list[Sequence]:
        """The sequences that have blocks."""
        return [sequence for sequence in (*self._places.running, *self._places.leaving) if sequence.block_tables]

    @property
    def groups(self) -> tuple[BlockGroup, ...]:
        """The groups, with the blocks that there are, or will be."""
        return self._blocks.groups
