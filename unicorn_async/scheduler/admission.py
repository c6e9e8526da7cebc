"""Whether there are blocks for one more sequence beside those that run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as SequenceOf

    from unicorn_async.scheduler.block_manager import BlockManager
    from unicorn_async.scheduler.sequence import Sequence


def fits_beside(
    blocks: BlockManager,
    first: Sequence,
    num_found: int,
    running: SequenceOf[Sequence],
    max_queries: int,
    leaving: Iterable[Sequence] = (),
) -> bool:
    """Whether a sequence has room beside a block more for each that runs, in steps of so many tokens.

    It begins behind `num_found` blocks that are there, of which those in use by others take no room. What those have
    alone that are `leaving` counts as free.
    """
    left = [pool.num_free for pool in blocks.pools]
    for sequence in leaving:
        left = [number + alone for number, alone in zip(left, blocks.num_alone(sequence), strict=True)]
    for sequence in running:
        wanted = _shortage(blocks, sequence, blocks.block_size, max_queries)
        left = [number - lacking for number, lacking in zip(left, wanted, strict=True)]
        if min(left) < 0:
            return False
    lacking = wanted_by(blocks, first, max_queries)
    if all(map(int.__le__, lacking, left)):
        return True
    shared = blocks.num_shared(first, num_found)
    return all(max(number - held, 0) <= room for number, held, room in zip(lacking, shared, left, strict=True))


def wanted_by(blocks: BlockManager, first: Sequence, max_queries: int) -> tuple[int, ...]:
    """Return, per group, the blocks that a sequence begins with, in steps of so many tokens."""
    return _shortage(blocks, first, 0, max_queries)


def _shortage(blocks: BlockManager, sequence: Sequence, growth: int, max_queries: int) -> tuple[int, ...]:
    length = min(sequence.length + growth, sequence.max_length)
    return blocks.shortage(sequence, length, min(sequence.num_remaining, max_queries))
