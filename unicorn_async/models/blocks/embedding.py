"""Embeddings: the rows of a step's tokens become the residual stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.models.blocks.declarations import WeightSpec
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.rules import WeightKind

if TYPE_CHECKING:
    from unicorn_async.models.block_recorder import BlockRecorder
    from unicorn_async.models.blocks.declarations import Norm

TABLE = "embed"  # its destination


@dataclass(frozen=True, slots=True)
class Embedding:
    """A table (vocab_size, hidden_size), of which a token takes a row, times `scale`; on disk it is called `name`.

    `norm` is one of these rows themselves. `others` are weights that are no layer's either, and that layers read.
    """

    vocab_size: int
    hidden_size: int
    scale: float = 1.0
    others: tuple[WeightSpec, ...] = ()
    norm: Norm | None = None
    name: str = "model.embed_tokens.weight"

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """The table, and the others."""
        shape = (self.vocab_size, self.hidden_size)
        table = WeightSpec(self.name, shape, TABLE, WeightKind.TABLE, MemoryGroup.EMBEDDINGS)
        return (table, *(() if self.norm is None else self.norm.weights), *self.others)

    def record(self, recorder: BlockRecorder) -> None:
        """Record the rows of a step's tokens into `hidden`."""
        recorder.look_up(TABLE, recorder.hidden, scale=self.scale)
        if self.norm is not None:
            recorder.add_norm(self.norm, out=recorder.hidden)
