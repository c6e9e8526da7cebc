"""A step's arguments and results in mapped memory: what the host writes before a step, and reads after it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.engine.frame_layout import Field, FrameBlock, block_bytes
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.models.step_arrays import StepArrays
from unicorn_async.ops.attention_device import AttentionBatch
from unicorn_async.ops.sample_rows import SAMPLE_MARK, SAMPLE_RESULT, SAMPLE_ROW

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Sequence as SequenceOf

    from unicorn_async.config import EngineConfig
    from unicorn_async.engine.kv_plan import KVPlan
    from unicorn_async.gpu.device import Device
    from unicorn_async.models.activations import Residual
    from unicorn_async.ops.attention_plan import AttentionPlan

_GRID_BYTES = 12  # of one indirect dispatch


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """The largest step that a frame has room for; all are counts."""

    tokens: int
    sequences: int
    groups: int
    blocks: int  # of one sequence
    tiles: int  # of prefill attention
    logit_rows: int

    @classmethod
    def of(cls, options: EngineConfig, kv_plan: KVPlan, attention: AttentionPlan, logit_rows: int) -> FrameLimits:
        """Return the limits of an engine's steps; `logit_rows` is the largest number of them."""
        return cls(
            tokens=options.max_num_batched_tokens,
            sequences=options.max_num_seqs,
            groups=len(kv_plan.groups),
            blocks=-(-kv_plan.max_context // options.block_size),
            tiles=options.max_num_batched_tokens // attention.query_tile + options.max_num_seqs,
            logit_rows=logit_rows,
        )


class Frame:
    """The mapped memory of one step in flight, and its `residual`; whoever makes it closes it, after the step.

    Nothing of it is written while a submission that uses it is pending. `block_rows` is the writer's: by group and row,
    the table that was written there, and how many of its blocks.
    """

    def __init__(self, device: Device, limits: FrameLimits, partials: int, residual: Residual, index: int) -> None:
        tokens, sequences, groups = limits.tokens, limits.sequences, limits.groups
        fields = {
            "token_ids": Field(np.int32, (tokens,)),
            "positions": Field(np.uint32, (tokens,)),
            "logit_rows": Field(np.uint32, (limits.logit_rows,)),
            "sample_rows": Field(SAMPLE_ROW, (sequences,)),
            "resets": Field(np.uint32, (sequences,)),
            "marks": Field(SAMPLE_MARK, (tokens,)),
            "slot_mapping": Field(np.uint32, (groups, tokens)),
            "query_start": Field(np.uint32, (sequences,)),
            "query_len": Field(np.uint32, (sequences,)),
            "context_len": Field(np.uint32, (sequences,)),
            "block_tables": Field(np.uint32, (groups, sequences, limits.blocks)),
            "decode_items": Field(np.uint32, (sequences,)),
            "prefill_tiles": Field(np.uint32, (limits.tiles, 2)),
            "grids": Field(np.uint32, (groups, 3, 3)),
        }
        results = {"samples": Field(SAMPLE_RESULT, (sequences,)), "ticks": Field(np.uint64, (2,))}
        self.block_rows: dict[tuple[int, int], tuple[SequenceOf[int], int]] = {}
        with contextlib.ExitStack() as made:  # closes what there is if the next does not fit
            self.arguments = _block(made, device, fields, MemoryKind.FRAME, f"frame {index}")
            self.results = _block(made, device, results, MemoryKind.STAGING, f"results {index}")
            self._made = made.pop_all()
        address = self.arguments.address
        self.step = StepArrays(
            token_ids=address["token_ids"],
            positions=address["positions"],
            slot_mapping=tuple(address["slot_mapping"] + 4 * tokens * group for group in range(groups)),
            attention=tuple(self._attention(limits, partials, group) for group in range(groups)),
            logit_rows=address["logit_rows"],
            sample_rows=address["sample_rows"],
            resets=address["resets"],
            marks=address["marks"],
            results=self.results.address["samples"],
            residual=residual,
        )

    @property
    def nbytes(self) -> int:
        """Size of its memory."""
        return sum(block.buffer.nbytes for block in (self.arguments, self.results))

    def close(self) -> None:
        """Free the memory."""
        self.block_rows.clear()
        self._made.close()

    def _attention(self, limits: FrameLimits, partials: int, group: int) -> AttentionBatch:
        address, offset = self.arguments.address, self.arguments.offset["grids"] + 3 * _GRID_BYTES * group
        return AttentionBatch(
            query_start=address["query_start"],
            query_len=address["query_len"],
            context_len=address["context_len"],
            block_table=address["block_tables"] + 4 * limits.sequences * limits.blocks * group,
            max_blocks=limits.blocks,
            decode_items=address["decode_items"],
            prefill_tiles=address["prefill_tiles"],
            partials=partials,
            grids=self.arguments.buffer,
            decode_grid_offset=offset,
            combine_grid_offset=offset + _GRID_BYTES,
            prefill_grid_offset=offset + 2 * _GRID_BYTES,
        )


def _block(
    made: contextlib.ExitStack, device: Device, fields: Mapping[str, Field], kind: MemoryKind, name: str
) -> FrameBlock:
    buffer = device.memory.allocate(block_bytes(fields), kind, name=name)
    made.callback(buffer.close)
    block = FrameBlock(buffer, fields)
    made.callback(block.close)  # drops the views before the buffer goes
    return block
