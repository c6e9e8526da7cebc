"""What a step's frame has for tokens that the model's own layer predicts behind the first predicted one."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.config import MAX_PREDICTED, MAX_SPECULATING
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.models.step_arrays import StepArrays
from unicorn_async.ops.predictor_steps import PREDICTOR_STEP, PredictorSteps
from unicorn_async.ops.sample_rows import NO_STATE, SAMPLE_RESULT, SAMPLE_ROW
from unicorn_async.step.attention_arguments import AttentionArguments
from unicorn_async.step.buckets import bucket_for, bucket_sizes
from unicorn_async.step.mapped_arrays import Field, made_block

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device
    from unicorn_async.models.activations import Residual
    from unicorn_async.ops.attention_op import AttentionBatch, DecodeScratch
    from unicorn_async.scheduler.batch import Batch
    from unicorn_async.step.attention_writer import AttentionWriter
    from unicorn_async.step.frame import Frame, FrameLimits

_SIZES = bucket_sizes(MAX_SPECULATING)


def drafting_bucket(batch: Batch) -> int:
    """Return the bucket of sequences to which a step predicts tokens."""
    return bucket_for(len({item.sequence for item in batch.scheduled if item.samples}), _SIZES)


class FurtherTokens:
    """The mapped memory of predictions that go on, a row for each sequence; whoever makes it closes it, after the step.

    The host says which rows a sequence has among those that the step samples, and how it samples; the device finds out
    behind which of them the prediction goes on, and writes token, position and place in the cache before each one.
    """

    def __init__(
        self,
        device: Device,
        limits: FrameLimits,
        scratch: DecodeScratch,
        residual: Residual,
        *,
        group: int,
        block_size: int,
        name: str,
    ) -> None:
        """`group` is that of the predicting layer's blocks, `residual` the frame's own.

        Raises:
            OutOfMemoryError: it does not fit.
        """
        count = MAX_SPECULATING
        fields = {
            "steps": Field(PREDICTOR_STEP, (count,)),
            "from_rows": Field(np.uint32, (count,)),
            "own_rows": Field(np.uint32, (count,)),
            "positions": Field(np.uint32, (count,)),
            "next_ids": Field(np.int32, (count,)),
            "sample_rows": Field(SAMPLE_ROW, (count,)),
        }
        self._group, self._block_size = group, block_size
        with contextlib.ExitStack() as made:
            self._arguments = made_block(made, device, fields, MemoryKind.ARGUMENTS, name)
            results = {"tokens": Field(SAMPLE_RESULT, (MAX_PREDICTED - 1, count))}
            self._results = made_block(made, device, results, MemoryKind.STAGING, f"results of {name}")
            own = replace(limits, tokens=count, sequences=count, tiles=1, logit_rows=count)
            self._attention = AttentionArguments(device, own, scratch, f"attention of {name}")
            made.callback(self._attention.close)
            self._made = made.pop_all()
        self._arguments.arrays["own_rows"][:] = range(count)
        attends = self._attention.arrays
        attends["query_start"][:] = range(count)
        attends["query_len"][:] = 1
        attends["decode_items"][:] = np.arange(count)[:, None]
        address = self._arguments.address
        self.from_rows = address["from_rows"]
        self.slot_mapping = self._attention.slot_mapping[group]
        self.step = StepArrays(
            token_ids=0,
            positions=address["positions"],
            logit_rows=address["own_rows"],
            sample_rows=0,
            resets=0,
            marks=0,
            pools=0,
            results=0,
            runs=0,
            residual=residual,
            next_ids=address["next_ids"],
            next_rows=address["sample_rows"],
        )

    @property
    def nbytes(self) -> int:
        """Size of its memory."""
        return self._arguments.buffer.nbytes + self._results.buffer.nbytes + self._attention.nbytes

    @property
    def batch(self) -> AttentionBatch:
        """The attention of one of them: a token of each sequence."""
        return replace(self._attention.batches[self._group], has_decode=True, has_prefill=False)

    @property
    def places(self) -> PredictorSteps:
        """The arrays that the device writes."""
        address, batch = self._arguments.address, self.batch
        return PredictorSteps(
            steps=address["steps"],
            block_table=batch.block_table,
            from_rows=self.from_rows,
            next_ids=address["next_ids"],
            positions=address["positions"],
            context_len=batch.context_len,
            slots=self.slot_mapping,
            sample_rows=address["sample_rows"],
            max_blocks=batch.max_blocks,
            block_size=self._block_size,
        )

    def results(self, number: int) -> int:
        """Return the address of (sequences) SAMPLE_RESULT: what was predicted behind so many others, 1 or more."""
        return self._results.address["tokens"] + (number - 1) * MAX_SPECULATING * SAMPLE_RESULT.itemsize

    def write(self, batch: Batch, frame: Frame, attention: AttentionWriter, num_rows: int) -> None:
        """Write a step that is in a frame already, with so many rows for its sequences.

        `attention` writes that of the model itself.
        """
        arrays, next_rows = self._arguments.arrays, frame.arguments.arrays["next_rows"]
        sampled = [item for item in batch.scheduled if item.samples]
        firsts = [row for row, item in enumerate(sampled) if not item.proposal]
        counts = np.diff([*firsts, len(sampled)])
        arrays["steps"][:num_rows] = 0
        arrays["steps"]["first_row"][: len(firsts)] = firsts
        arrays["steps"]["num_rows"][: len(firsts)] = counts
        arrays["sample_rows"][: len(firsts)] = next_rows[firsts]
        arrays["sample_rows"]["state_index"][len(firsts) : num_rows] = NO_STATE
        first_parts = [sampled[row] for row in firsts]
        last_parts = [sampled[row + count - 1] for row, count in zip(firsts, counts, strict=True)]
        contexts = [
            first.start + first.num_tokens + 1 + number
            for first, count in zip(first_parts, counts, strict=True)
            for number in range(int(count) + batch.num_drafts - 2)
        ]
        attention.write_further(last_parts, contexts, self._attention, num_rows)

    def read(self, batch: Batch) -> list[tuple[int, ...]]:
        """Return what was predicted to each sequence of a step that is done, behind the first predicted token."""
        count = sum(item.samples and not item.proposal for item in batch.scheduled)
        tokens = self._results.arrays["tokens"]["token"][: batch.num_drafts - 1, :count]
        return [tuple(row) for row in tokens.T.tolist()]

    def close(self) -> None:
        """Free the memory."""
        self._made.close()
