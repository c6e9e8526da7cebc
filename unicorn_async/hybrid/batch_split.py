"""Splits a batch into two halves that alternate between two devices. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.scheduler.batch import Batch

if TYPE_CHECKING:
    from unicorn_async.scheduler.batch import ScheduledSequence

_LEAST_CUT = 16  # tokens on each side of a cut prompt: less is not worth a cut
LEAST_SPLIT = 2 * _LEAST_CUT  # tokens of one prompt


def split_batch(batch: Batch) -> tuple[Batch, ...]:
    """Return two halves of about equally many tokens, in the batch's order, or the batch where that can't be.

    A prompt's chunk may be cut. Its second part needs the first one's keys and values layer by layer: the first half
    has to attend first.
    """
    wanted = batch.num_tokens // 2
    first: list[ScheduledSequence] = []
    rest = list(batch.scheduled)
    taken = 0
    while rest and taken + rest[0].num_tokens <= wanted:
        taken += rest[0].num_tokens
        first.append(rest.pop(0))
    if rest and taken < wanted:
        room = wanted - taken
        if room >= _LEAST_CUT and rest[0].num_tokens - room >= _LEAST_CUT:
            head, rest[0] = cut(rest[0], room)
            first.append(head)
        elif 2 * room > rest[0].num_tokens:
            first.append(rest.pop(0))
    if not first or not rest:
        return (batch,)
    return tuple(Batch(tuple(items), sum(item.num_tokens for item in items), batch.step) for items in (first, rest))


def cut(item: ScheduledSequence, count: int) -> tuple[ScheduledSequence, ScheduledSequence]:
    """Return the first `count` tokens of a sequence's part of a step, and the others."""
    first = item._replace(num_tokens=count, token_ids=item.token_ids[:count], samples=False)
    second = item._replace(
        start=item.start + count, num_tokens=item.num_tokens - count, token_ids=item.token_ids[count:]
    )
    return first, second


def num_keys(batch: Batch) -> int:
    """Return how many keys the batch's queries see at most, windows left aside."""
    return sum(item.num_tokens * (item.start + item.num_tokens) for item in batch.scheduled)
