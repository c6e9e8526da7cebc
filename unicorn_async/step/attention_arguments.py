"""What a step's attention reads, in mapped memory of the device that attends."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.attention_op import AttentionBatch
from unicorn_async.step.mapped_arrays import Field, made_block

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf

    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.ops.attention_op import DecodeScratch
    from unicorn_async.ops.attention_plan import Grid
    from unicorn_async.step.frame import FrameLimits

_GRID_BYTES = 12  # of one indirect dispatch


class AttentionArguments:
    """The mapped memory of one step's attention; whoever makes it closes it, after the step.

    The host writes nothing of it while a submission that uses it is pending. `batches` are by block group, and so are
    `slot_mapping`, addresses of (tokens) u32. What the writer has left there is its own: in `block_rows`, by row, the
    tables that were written, how many blocks of each, and which of them has the part's last position; in `last_blocks`
    (groups, sequences) that block, in `num_decodes` the parts of the last step if it was of decodes alone, or 0, in
    `grids` the sizes of dispatches.
    """

    def __init__(self, device: Device, limits: FrameLimits, scratch: DecodeScratch, name: str) -> None:
        """Allocate; `scratch` is what decode may use.

        Raises:
            OutOfMemoryError: it does not fit.
        """
        tokens, sequences, groups = limits.tokens, limits.sequences, limits.groups
        fields = {
            "slot_mapping": Field(np.uint32, (groups, tokens)),
            "query_start": Field(np.uint32, (sequences,)),
            "query_len": Field(np.uint32, (sequences,)),
            "context_len": Field(np.uint32, (sequences,)),
            "decode_items": Field(np.uint32, (sequences, 2)),
            "prefill_tiles": Field(np.uint32, (groups, limits.tiles, 2)),
            "grids": Field(np.uint32, (groups, 2, 3)),
            "block_tables": Field(np.uint32, (groups, sequences, limits.blocks)),  # the last and the largest
        }
        self.block_rows: list[tuple[SequenceOf[SequenceOf[int]], int, int]] = []
        self.last_blocks = np.zeros((groups, sequences), np.uint32)
        self.num_decodes = 0
        self.grids: list[tuple[Grid, Grid]] = []
        with contextlib.ExitStack() as made:
            self._block = made_block(made, device, fields, MemoryKind.ARGUMENTS, name)
            self._made = made.pop_all()
        self._limits = limits
        self.arrays, address = self._block.arrays, self._block.address
        self.slot_mapping = tuple(address["slot_mapping"] + 4 * tokens * group for group in range(groups))
        self.batches = tuple(self._batch(limits, scratch, group) for group in range(groups))

    @property
    def nbytes(self) -> int:
        """Size of its memory."""
        return self._block.buffer.nbytes

    def record_copy(self, recorder: CommandRecorder, other: AttentionArguments, num_sequences: int) -> None:
        """Record a copy of what a step of so many sequences has into another frame of the same limits."""
        source, target, limits = self._block.buffer, other._block.buffer, self._limits
        tables, row_bytes = self._block.offset["block_tables"], 4 * limits.blocks
        recorder.copy(source, 0, target, 0, tables)
        for group in range(limits.groups):
            start = tables + group * limits.sequences * row_bytes
            recorder.copy(source, start, target, start, num_sequences * row_bytes)

    def close(self) -> None:
        """Free the memory."""
        self.block_rows.clear()
        self._made.close()

    def _batch(self, limits: FrameLimits, scratch: DecodeScratch, group: int) -> AttentionBatch:
        address, offset = self._block.address, self._block.offset["grids"] + 2 * _GRID_BYTES * group
        return AttentionBatch(
            query_start=address["query_start"],
            query_len=address["query_len"],
            context_len=address["context_len"],
            block_table=address["block_tables"] + 4 * limits.sequences * limits.blocks * group,
            max_blocks=limits.blocks,
            decode_items=address["decode_items"],
            prefill_tiles=address["prefill_tiles"] + 8 * limits.tiles * group,
            scratch=scratch,
            grids=self._block.buffer,
            decode_grid_offset=offset,
            prefill_grid_offset=offset + _GRID_BYTES,
        )
