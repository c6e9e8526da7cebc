"""Writes a batch's attention into a frame of the device that attends."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from unicorn_async.ops.attention_plan import MAX_ROTATING_TOKENS
from unicorn_async.ops.kv_cache import NO_SLOT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Sequence as SequenceOf

    from unicorn_async.ops.attention_plan import AttentionPlan
    from unicorn_async.scheduler.batch import Batch, ScheduledSequence
    from unicorn_async.step.attention_arguments import AttentionArguments


class AttentionParts(NamedTuple):
    """What of a step's attention decides which commands run it."""

    has_decode: bool
    has_prefill: bool
    has_proposals: bool = False  # few tokens, some of which see keys and values of others


class GroupCut(NamedTuple):
    """What of a block group decides how its layers' attention is cut into workgroups."""

    window: int
    plan: AttentionPlan


class AttentionWriter:
    """Fills frames, and reads nothing back from them: the CPU may read their memory slowly.

    It keeps no state of a batch. `groups` are those of blocks, none where nothing attends.
    """

    def __init__(self, block_size: int, groups: SequenceOf[GroupCut]) -> None:
        self._block_size = block_size
        self._groups = groups

    def write(self, batch: Batch, frame: AttentionArguments, num_tokens: int) -> AttentionParts:
        """Write all arrays; the batch's tokens are padded to `num_tokens`."""
        if not self._groups:
            sizes = [item.num_tokens for item in batch.scheduled]
            return AttentionParts(has_decode=1 in sizes, has_prefill=max(sizes) > 1)
        self._write_block_tables(batch.scheduled, frame)
        if batch.decodes_only and not batch.has_proposals:
            return self._write_decodes(batch, frame, num_tokens)
        frame.num_decodes = 0
        starts = self._write_slots(batch, frame, num_tokens)
        return self._write_work(batch, frame, starts, num_tokens)

    def write_further(
        self,
        parts: SequenceOf[ScheduledSequence],
        contexts: SequenceOf[int],
        frame: AttentionArguments,
        num_tokens: int,
    ) -> None:
        """Write what is known of tokens behind a step's own, one of each sequence: its part, and all possible contexts.

        The tables cover these. The device writes which contexts they are; `num_tokens` is what they are recorded for.
        """
        self._write_block_tables(parts, frame)
        for group, (window, plan) in enumerate(self._groups):
            splits, heads, _ = plan.decode_grid(contexts, window, num_tokens)
            frame.arrays["grids"][group] = (splits, heads, len(parts)), plan.prefill_grid(0)

    def _write_decodes(self, batch: Batch, frame: AttentionArguments, num_tokens: int) -> AttentionParts:
        """Write a step of one token each."""
        arrays, count = frame.arrays, len(batch.scheduled)
        contexts = [item.start + 1 for item in batch.scheduled]
        context_lens = np.array(contexts, np.uint32)
        offsets = (context_lens - 1) % self._block_size
        arrays["slot_mapping"][:, :count] = frame.last_blocks[:, :count] * self._block_size + offsets
        arrays["context_len"][:count] = context_lens
        if frame.num_decodes != count:
            rows = np.arange(count)
            arrays["slot_mapping"][:, count:num_tokens] = NO_SLOT
            arrays["query_start"][:count] = rows
            arrays["query_len"][:count] = 1
            arrays["decode_items"][:count] = rows[:, None]
            frame.num_decodes = count
        self._write_grids(frame, contexts, {}, num_tokens)
        return AttentionParts(has_decode=True, has_prefill=False)

    def _write_slots(self, batch: Batch, frame: AttentionArguments, num_tokens: int) -> list[int]:
        """Write where each token's key and value go, and each item's rows; returns the first row of each item."""
        arrays, size = frame.arrays, self._block_size
        slots: list[list[int]] = [[] for _ in self._groups]
        starts, row = [], 0
        for item in batch.scheduled:
            starts.append(row)
            row += item.num_tokens
            if item.num_tokens == 1:  # most items of most steps
                block, offset = divmod(item.start, size)
                for group, table in enumerate(item.sequence.block_tables):
                    slots[group].append(table[block] * size + offset)
                continue
            where = range(item.start, item.start + item.num_tokens)
            for group_slots, table in zip(slots, item.sequence.block_tables, strict=True):
                group_slots += [table[position // size] * size + position % size for position in where]
        for group, group_slots in enumerate(slots):
            arrays["slot_mapping"][group, :num_tokens] = group_slots + [NO_SLOT] * (num_tokens - row)
        arrays["query_start"][: len(starts)] = starts
        arrays["query_len"][: len(starts)] = [item.num_tokens for item in batch.scheduled]
        arrays["context_len"][: len(starts)] = [item.start + item.num_tokens for item in batch.scheduled]
        return starts

    def _write_block_tables(self, parts: SequenceOf[ScheduledSequence], frame: AttentionArguments) -> None:
        """Write what a row of the frame does not hold already: while a sequence runs, its tables only grow."""
        arrays, rows = frame.arrays["block_tables"], frame.block_rows
        rows += [([], 0, -1)] * (len(parts) - len(rows))
        for row, (item, (known, written, before)) in enumerate(zip(parts, rows, strict=False)):
            sequence = item.sequence
            tables = sequence.block_tables
            length = len(tables[0])  # and of all the others
            last = (item.start + item.num_tokens - 1) // self._block_size  # there may be more, for what was proposed
            if known is tables and written == length and before == last:
                continue
            for group, table in enumerate(tables):
                # What lies before the first block is freed, and seen by no query, also if the row never had it.
                first = max(written if known is tables else 0, sequence.first_blocks[group])
                arrays[group, row, first:length] = table[first:]
                frame.last_blocks[group, row] = table[last]
            rows[row] = (tables, length, last)

    def _write_work(
        self, batch: Batch, frame: AttentionArguments, starts: SequenceOf[int], num_tokens: int
    ) -> AttentionParts:
        """Write the lists of decode items and prefill tiles, and the sizes of their dispatches."""
        arrays = frame.arrays
        items = [index for index, item in enumerate(batch.scheduled) if item.num_tokens == 1]
        if items:
            arrays["decode_items"][: len(items)] = [(index, starts[index]) for index in items]
        tiles: dict[int, list[tuple[int, int]]] = {}  # by their sizes
        for group, (_, plan) in enumerate(self._groups):
            if plan.query_tile not in tiles:
                tiles[plan.query_tile] = _tiles(batch, plan.query_tile)
            if found := tiles[plan.query_tile]:
                arrays["prefill_tiles"][group, : len(found)] = found
        contexts = [batch.scheduled[index].start + 1 for index in items]
        self._write_grids(frame, contexts, {size: len(found) for size, found in tiles.items()}, num_tokens)
        has_prefill = any(tiles.values())
        return AttentionParts(bool(items), has_prefill, batch.has_proposals and num_tokens <= MAX_ROTATING_TOKENS)

    def _write_grids(
        self, frame: AttentionArguments, contexts: SequenceOf[int], num_tiles: Mapping[int, int], num_tokens: int
    ) -> None:
        """Write the sizes of the dispatches, for decode items with these contexts and so many prefill tiles by size."""
        grids = [
            (
                plan.decode_grid(contexts, window, num_tokens),
                plan.prefill_grid(num_tiles[plan.query_tile] if num_tiles else 0),
            )
            for window, plan in self._groups
        ]
        if grids != frame.grids:
            frame.arrays["grids"][:] = frame.grids = grids


def _tiles(batch: Batch, size: int) -> list[tuple[int, int]]:
    """The prefill tiles of a batch, of so many queries each: the sequence's row and the first query."""
    return [
        (index, start)
        for index, item in enumerate(batch.scheduled)
        if item.num_tokens > 1
        for start in range(0, item.num_tokens, size)
    ]
