"""Writes a batch's attention into a frame of the device that attends."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.ops.sample_rows import NO_SLOT

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf

    from unicorn_async.engine.attention_frame import AttentionFrame
    from unicorn_async.ops.attention_plan import AttentionPlan
    from unicorn_async.scheduler.batch import Batch


class AttentionParts(NamedTuple):
    """What of a step's attention decides which commands run it."""

    has_decode: bool
    has_prefill: bool


class AttentionWriter:
    """Fills frames; it keeps no state of a batch. `windows` are those of the block groups."""

    def __init__(self, block_size: int, windows: SequenceOf[int], plan: AttentionPlan) -> None:
        self._block_size = block_size
        self._windows = windows
        self._plan = plan

    def write(self, batch: Batch, frame: AttentionFrame, num_tokens: int) -> AttentionParts:
        """Write all arrays; the batch's tokens are padded to `num_tokens`."""
        self._write_slots(batch, frame, num_tokens)
        self._write_block_tables(batch, frame)
        return self._write_work(batch, frame)

    def _write_slots(self, batch: Batch, frame: AttentionFrame, num_tokens: int) -> None:
        arrays, size = frame.arrays, self._block_size
        slots: list[list[int]] = [[] for _ in self._windows]
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

    def _write_block_tables(self, batch: Batch, frame: AttentionFrame) -> None:
        """Write what a row of the frame does not hold already: while a sequence runs, its tables only grow."""
        tables = frame.arrays["block_tables"]
        for index, item in enumerate(batch.scheduled):
            sequence = item.sequence
            for group, table in enumerate(sequence.block_tables):
                key, length = (group, index), len(table)
                known, written = frame.block_rows.get(key, (None, 0))
                if known is table and written == length:
                    continue
                # What lies before the first block is freed, and seen by no query, also if the row never had it.
                written = max(written if known is table else 0, sequence.first_blocks[group])
                tables[group, index, written:length] = table[written:]
                frame.block_rows[key] = (table, length)

    def _write_work(self, batch: Batch, frame: AttentionFrame) -> AttentionParts:
        """Write the lists of decode items and prefill tiles, and the sizes of their dispatches."""
        arrays, tile = frame.arrays, self._plan.query_tile
        starts = arrays["query_start"][: len(batch.scheduled)].tolist()
        items = [index for index, item in enumerate(batch.scheduled) if item.num_tokens == 1]
        tiles = [
            (index, start)
            for index, item in enumerate(batch.scheduled)
            if item.num_tokens > 1
            for start in range(0, item.num_tokens, tile)
        ]
        if items:
            arrays["decode_items"][: len(items)] = [(index, starts[index]) for index in items]
        if tiles:
            arrays["prefill_tiles"][: len(tiles)] = tiles
        contexts = [batch.scheduled[index].start + 1 for index in items]
        for group, window in enumerate(self._windows):
            decode, prefill = self._plan.decode_grid(contexts, window), self._plan.prefill_grid(len(tiles))
            arrays["grids"][group] = (decode, prefill)
        return AttentionParts(bool(items), bool(tiles))
