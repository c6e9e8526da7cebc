"""The output head: logits of some rows of the residual stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.models.blocks.declarations import WeightSpec
from unicorn_async.ops.linear import Epilogue
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.rules import WeightKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.models.block_recorder import BlockRecorder
    from unicorn_async.models.blocks.declarations import Norm
    from unicorn_async.ops.rows import Rows
    from unicorn_async.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Head:
    """The last norm, and the table (vocab_size, hidden_size), its own or the embeddings'.

    Logits are multiplied by `scale`. With a `soft_cap` (0 = none) they become cap * tanh(logit / cap).
    """

    vocab_size: int
    hidden_size: int
    norm: Norm
    is_tied: bool
    soft_cap: float = 0.0
    scale: float = 1.0

    @property
    def name(self) -> str:
        """The table's name on disk, where it has one of its own."""
        return "lm_head.weight"

    @property
    def table(self) -> str:
        """The destination that holds the table."""
        return "embed" if self.is_tied else "head"

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """The norm's, and the table if it has one of its own."""
        shape = (self.vocab_size, self.hidden_size)
        table = WeightSpec(self.name, shape, "head", WeightKind.TABLE, MemoryGroup.HEAD)
        return self.norm.weights if self.is_tied else (*self.norm.weights, table)

    @property
    def workspace(self) -> Mapping[str, int]:
        """Elements a row of logits, all f32, of each intermediate result."""
        return {"head_input": self.hidden_size, "logits": self.vocab_size}

    def record(self, recorder: BlockRecorder, num_rows: int) -> Tensor:
        """Record the logits of the rows that the step's `logit_rows` names; returns them, (num_rows, vocab) f32."""
        normed = recorder.input(self.table, "head_input", num_rows)
        rows = recorder.arrays.logit_rows
        recorder.add_norm(self.norm, out=normed, rows=rows, num_rows=num_rows, scale=self.scale)
        return self.record_table(recorder, normed, num_rows)

    def record_table(self, recorder: BlockRecorder, normed: Rows, num_rows: int) -> Tensor:
        """Record the logits of rows behind a norm; returns them, (num_rows, vocab) f32."""
        logits = recorder.rows("logits", self.vocab_size, num_rows)
        recorder.linear(normed, self.table, logits, epilogue=Epilogue(soft_cap=self.soft_cap))
        return logits
