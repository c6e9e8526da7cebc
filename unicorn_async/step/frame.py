"""A step's arguments and results in mapped memory: what the host writes before a step, and reads after it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.config import MAX_COUNTED, MAX_PROPOSED, MAX_SPECULATING
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.models.step_arrays import StepArrays
from unicorn_async.ops.pool_parts import POOL
from unicorn_async.ops.runs import TOKEN_RUN
from unicorn_async.ops.sample_rows import SAMPLE_MARK, SAMPLE_RESULT, SAMPLE_ROW
from unicorn_async.step.bias_rows import BiasRows
from unicorn_async.step.mapped_arrays import Field, made_block
from unicorn_async.step.mask_rows import MaskRows
from unicorn_async.step.pooled_rows import PooledRows

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.memory.kv_plan import KVPlan
    from unicorn_async.models.activations import Residual
    from unicorn_async.ops.attention_plan import AttentionPlan
    from unicorn_async.ops.sampling import SamplingPath
    from unicorn_async.sampling_params import SamplingParams
    from unicorn_async.scheduler.batch import Batch
    from unicorn_async.scheduler.sequence import Sequence

MOST_UNCOUNTED = MAX_SPECULATING * MAX_PROPOSED  # tokens that came behind proposed ones in earlier steps


@dataclass(frozen=True, slots=True)
class StepShape:
    """What of a step decides which commands run it; steps of one shape replay the same commands.

    `tokens`, `logit_rows` and `samples` are buckets; the last two are 0 where a step has none.
    """

    tokens: int
    logit_rows: int
    samples: int
    path: SamplingPath
    has_counts: bool  # a sequence of the step has penalties
    has_found: bool = False  # and one begins behind tokens that are counted for them and not computed
    has_masks: bool = False  # not every token may come next in a sequence of the step
    has_biases: bool = False  # some tokens of one have biases, or are banned
    has_pools: bool = False  # hidden states of one become an embedding
    has_predictions: bool = False  # it goes through the layer that predicts a token more
    num_drafts: int = 0  # so many tokens are chosen by that, one behind the other
    num_drafting: int = 0  # bucket of sequences for which there are more than one

    @property
    def num_marks(self) -> int:
        """Tokens that are counted at most before the step samples."""
        return self.tokens + MOST_UNCOUNTED + MAX_COUNTED * self.has_found


@dataclass(frozen=True, slots=True)
class WrittenDecodes:
    """A step of decodes alone that a frame holds: of the same sequences with the same state, only positions change."""

    sequences: list[Sequence]
    state_indices: list[int]
    shape: StepShape


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """The largest step that a frame has room for; all are counts."""

    tokens: int
    sequences: int  # or single tokens that are proposed to one
    groups: int
    blocks: int  # of one sequence
    tiles: int  # of prefill attention
    logit_rows: int
    predicts: bool = False  # whether steps may predict what comes behind the tokens that they sample
    has_runs: bool = False  # whether steps say how their tokens follow each other: states of fixed size go by that

    @classmethod
    def of(
        cls,
        options: EngineConfig,
        kv_plan: KVPlan,
        attention: SequenceOf[AttentionPlan],
        logit_rows: int,
        *,
        has_runs: bool = False,
        predicts: bool = False,
    ) -> FrameLimits:
        """Return the limits of an engine's steps; `logit_rows` is the largest number of them.

        `attention` has the plans of the Vulkan device that attends, none if another device does.
        """
        tile = min((plan.query_tile for plan in attention), default=1)
        return cls(
            tokens=options.max_num_batched_tokens,
            sequences=options.max_sampled,
            groups=len(kv_plan.groups),
            blocks=-(-kv_plan.max_context // options.block_size),
            tiles=options.max_num_batched_tokens // tile + options.max_sampled,
            logit_rows=logit_rows,
            predicts=predicts,
            has_runs=has_runs,
        )


class Frame:
    """The mapped memory of one step in flight, and its `residual`; whoever makes it closes it, after the step.

    The host writes nothing of it while a submission that uses it is pending. What the attention reads is an
    `AttentionArguments`'s. What the writer has left there is its own: in `sampled_rows`, by row of what is sampled, the
    parameters, state index and seed; in `decodes` the last step, if it was of decodes alone.
    """

    def __init__(self, device: Device, limits: FrameLimits, residual: Residual, index: int) -> None:
        tokens, sequences = limits.tokens, limits.sequences
        fields = {
            "token_ids": Field(np.int32, (tokens,)),
            "positions": Field(np.uint32, (tokens,)),
            "logit_rows": Field(np.uint32, (limits.logit_rows,)),
            "sample_rows": Field(SAMPLE_ROW, (sequences,)),
            "resets": Field(np.uint32, (sequences,)),
            "marks": Field(SAMPLE_MARK, (tokens + MOST_UNCOUNTED + MAX_COUNTED,)),
            "pools": Field(POOL, (sequences,)),
            **({"runs": Field(TOKEN_RUN, (tokens,))} if limits.has_runs else {}),
            **(_next_fields(limits) if limits.predicts else {}),
        }
        results = {"samples": Field(SAMPLE_RESULT, (sequences,)), "ticks": Field(np.uint64, (3,))}
        if limits.predicts:
            results["predicted"] = Field(SAMPLE_RESULT, (sequences,))
        self.sampled_rows: list[tuple[SamplingParams, int, int]] = []
        self.decodes: WrittenDecodes | None = None
        with contextlib.ExitStack() as made:  # closes what there is if the next does not fit
            self.arguments = made_block(made, device, fields, MemoryKind.ARGUMENTS, f"frame {index}")
            self.results = made_block(made, device, results, MemoryKind.STAGING, f"results {index}")
            self.masks = MaskRows(device, sequences, f"masks {index}")
            made.callback(self.masks.close)
            self.biases = BiasRows(device, sequences, f"biases {index}")
            made.callback(self.biases.close)
            self.pooled = PooledRows(device, sequences, f"embeddings {index}")
            made.callback(self.pooled.close)
            self._made = made.pop_all()
        address = self.arguments.address
        self.step = StepArrays(
            token_ids=address["token_ids"],
            positions=address["positions"],
            logit_rows=address["logit_rows"],
            sample_rows=address["sample_rows"],
            resets=address["resets"],
            marks=address["marks"],
            pools=address["pools"],
            results=self.results.address["samples"],
            runs=address.get("runs", 0),
            residual=residual,
            next_ids=address.get("next_ids", 0),
            next_rows=address.get("next_rows", 0),
            predicted=self.results.address.get("predicted", 0),
        )

    @property
    def nbytes(self) -> int:
        """Size of its memory."""
        blocks = sum(block.buffer.nbytes for block in (self.arguments, self.results))
        return blocks + self.masks.nbytes + self.biases.nbytes + self.pooled.nbytes

    async def prepare(self, batch: Batch, hidden_size: int) -> None:
        """Allocate what few batches need, if this one does and it is not there yet, in a thread.

        Raises:
            OutOfMemoryError: it can't be allocated.
        """
        await self.masks.prepare(batch)
        await self.biases.prepare(batch)
        await self.pooled.prepare(batch, hidden_size)

    def record_copy(self, recorder: CommandRecorder, other: Frame) -> None:
        """Record a copy of the arguments, without masks and biases, into another frame of the same limits."""
        source, target = self.arguments.buffer, other.arguments.buffer
        recorder.copy(source, 0, target, 0, source.nbytes)

    def close(self) -> None:
        """Free the memory."""
        self._made.close()


def _next_fields(limits: FrameLimits) -> dict[str, Field]:
    """What steps say of the tokens behind those that they sample."""
    return {"next_ids": Field(np.int32, (limits.tokens,)), "next_rows": Field(SAMPLE_ROW, (limits.sequences,))}
