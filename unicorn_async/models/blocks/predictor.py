"""What stands in front of a layer that predicts a token more: the next token's embedding beside the state before it.

Source: DeepSeek-V3 (arXiv 2412.19437), multi-token prediction; which state it is, the families say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.models.blocks.declarations import Residue, WeightSpec
from unicorn_async.models.blocks.embedding import TABLE
from unicorn_async.ops.linear import prepare_input
from unicorn_async.ops.predictor_input import predictor_input
from unicorn_async.tensor import Tensor
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.rules import WeightKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.models.block_recorder import BlockRecorder
    from unicorn_async.models.blocks.declarations import Norm

STATE = "predictor_state"  # of each token, as the layers before have left it
_IN, _PAIRS = "predictor_in", "predictor_pairs"


@dataclass(frozen=True, slots=True)
class PredictorInput:
    """The stream of its layer: a product with norm(embedding of the next token) and norm(state), side by side.

    `head_norm` is that in front of the table of the output head, behind the layer. The state is the stream that the
    last layer leaves, or with `reads_normed` what the last norm makes of that.
    """

    hidden_size: int
    embedding_norm: Norm
    hidden_norm: Norm
    head_norm: Norm
    projection: str
    embedding_scale: float = 1.0
    reads_normed: bool = False

    @property
    def norms(self) -> tuple[Norm, ...]:
        """See `Block`."""
        return (self.embedding_norm, self.hidden_norm, self.head_norm)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """The norms, and the product."""
        shape = (self.hidden_size, 2 * self.hidden_size)
        product = WeightSpec(self.projection, shape, _IN, WeightKind.MATRIX, MemoryGroup.FFN)
        return (*(norm.weight for norm in self.norms), product)

    @property
    def workspace(self) -> Mapping[str, int]:
        """See `Block`."""
        return {"embedded": self.hidden_size, STATE: self.hidden_size, _PAIRS: 2 * self.hidden_size}

    @property
    def sizes(self) -> Mapping[str, int]:
        """See `Block`."""
        return {}

    @property
    def summary(self) -> str:
        """See `Block`."""
        return "a layer that predicts a token more"

    @property
    def state(self) -> None:
        """It keeps nothing."""

    @property
    def alike(self) -> PredictorInput:
        """See `Block`."""
        return self

    @property
    def residue(self) -> Residue:
        """See `Block`."""
        return Residue()

    def record(self, recorder: BlockRecorder) -> None:
        """Record the stream, of the `next_ids` of the step and of the states that lie there."""
        embedded, pairs = recorder.rows("embedded", self.hidden_size), recorder.rows(_PAIRS, 2 * self.hidden_size)
        recorder.look_up_next(TABLE, embedded, scale=self.embedding_scale)
        predictor_input(
            recorder.commands,
            recorder.kernels,
            recorder.info,
            embedding=embedded,
            hidden=recorder.rows(STATE, self.hidden_size),
            embedding_weight=recorder.vector(self.embedding_norm.dest),
            hidden_weight=recorder.vector(self.hidden_norm.dest),
            out=pairs,
            eps=self.embedding_norm.eps,
            plus_one=self.embedding_norm.plus_one,
        )
        recorder.barrier()
        wanted = recorder.input(_IN, _PAIRS)
        if not isinstance(wanted, Tensor):
            prepare_input(recorder.commands, recorder.kernels, recorder.info, x=pairs, out=wanted)
            recorder.barrier()
        recorder.linear(wanted, _IN, recorder.hidden)
