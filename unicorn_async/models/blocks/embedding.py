"""Embeddings: the rows of a step's tokens become the residual stream."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.models.blocks.declarations import WeightSpec
from unicorn_async.ops.embedding import embed
from unicorn_async.tensor import DType, MixedTensor, element_of
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.rules import WeightKind

if TYPE_CHECKING:
    from unicorn_async.models.block_recorder import BlockRecorder
    from unicorn_async.tensor import ElementType


@dataclass(frozen=True, slots=True)
class Embedding:
    """A table (vocab_size, hidden_size), of which a token takes a row, times `scale`."""

    vocab_size: int
    hidden_size: int
    scale: float = 1.0

    @property
    def name(self) -> str:
        """The table's name on disk."""
        return "model.embed_tokens.weight"

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """The table."""
        shape = (self.vocab_size, self.hidden_size)
        return (WeightSpec(self.name, shape, "embed", WeightKind.TABLE, MemoryGroup.EMBEDDINGS),)

    def record(self, recorder: BlockRecorder, last_token: int) -> None:
        """Record the rows of a step's tokens into `hidden`; `last_token` is the address of (states) u32."""
        table = recorder.weight("embed")
        assert not isinstance(table, MixedTensor), "the embeddings are one tensor"
        embed(
            recorder.commands,
            recorder.kernels,
            table=table,
            token_ids=recorder.arrays.token_ids,
            last_token=last_token,
            out=recorder.hidden,
            scale=embedding_scale(self.scale, element_of(table)),
        )
        recorder.barrier()


def embedding_scale(scale: float, table_type: ElementType) -> float:
    """Return the factor on embedding rows, rounded to the table's type as transformers does it, unless quantised."""
    if table_type is DType.F16:
        return float(struct.unpack("<e", struct.pack("<e", scale))[0])
    if table_type is DType.BF16:
        bits = struct.unpack("<I", struct.pack("<f", scale))[0]
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        return float(struct.unpack("<f", struct.pack("<I", rounded))[0])
    return scale
