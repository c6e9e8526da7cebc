"""What a layer gets of its tokens themselves: a row of a table of its own and a product with their embeddings.

Source: transformers' `modeling_gemma4.py` (per-layer embeddings).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.models.blocks.declarations import Residue, WeightSpec, vector
from unicorn_async.models.blocks.embedding import TABLE
from unicorn_async.ops.layer_input import layer_input
from unicorn_async.ops.linear import prepare_input
from unicorn_async.tensor import Tensor
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.rules import WeightKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.config import Activation
    from unicorn_async.models.block_recorder import BlockRecorder
    from unicorn_async.models.blocks.declarations import Norm
    from unicorn_async.ops.rows import Rows

_IDENTITIES, _NORM = "embed_layers", "embed_layers_norm"
_GATE, _CONTEXT, _OUT = "input_gate", "input_context", "input_out"


def layer_tables(vocab_size: int, num_layers: int, size: int) -> tuple[WeightSpec, ...]:
    """Return what all layers read of: a table with `size` columns for each of them, and the norm of their products."""
    name, shape = "model.embed_tokens_per_layer.weight", (vocab_size, num_layers * size)
    return (
        WeightSpec(name, shape, _IDENTITIES, WeightKind.TABLE, MemoryGroup.EMBEDDINGS),
        vector("model.per_layer_projection_norm.weight", _NORM, size),
    )


@dataclass(frozen=True, slots=True)
class LayerInput:
    """Layer number `layer` adds a projection of act(gate(stream)) * ((norm(context) + identity) * 2^-0.5).

    The identity are `size` columns of the tokens' rows in a table, the context is a product with their embeddings.
    These are looked up again: a step keeps nothing but the stream from layer to layer.
    """

    hidden_size: int
    size: int
    layer: int
    activation: Activation
    post_norm: Norm
    embedding_scale: float
    factor: WeightSpec | None = None

    @property
    def norms(self) -> tuple[Norm, ...]:
        """See `Block`."""
        return (self.post_norm,)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """The gate, the product with embeddings, the projection, and the norm behind it."""
        kind, group, hidden = WeightKind.MATRIX, MemoryGroup.FFN, self.hidden_size
        return (
            WeightSpec("per_layer_input_gate.weight", (self.size, hidden), _GATE, kind, group),
            WeightSpec("per_layer_model_projection.weight", (self.size, hidden), _CONTEXT, kind, group),
            WeightSpec("per_layer_projection.weight", (hidden, self.size), _OUT, kind, group),
            self.post_norm.weight,
            *(() if self.factor is None else (self.factor,)),
        )

    @property
    def workspace(self) -> Mapping[str, int]:
        """See `Block`."""
        parts = dict.fromkeys((_GATE, _CONTEXT, "input_identity", "gated"), self.size)
        return {**parts, "embedded": self.hidden_size, "normed": self.hidden_size}

    @property
    def sizes(self) -> Mapping[str, int]:
        """See `Block`."""
        return {"hidden_size_per_layer_input": self.size}

    @property
    def summary(self) -> str:
        """How wide it is."""
        return f"{self.size} of each token for each layer"

    @property
    def state(self) -> None:
        """It keeps nothing."""

    @property
    def alike(self) -> LayerInput:
        """See `Block`."""
        return replace(self, layer=0)

    @property
    def residue(self) -> Residue:
        """See `Block`."""
        return Residue.of(self.post_norm, factor=self.factor)

    def record(self, recorder: BlockRecorder) -> None:
        """See `Block`."""
        gate, context = recorder.rows(_GATE, self.size), recorder.rows(_CONTEXT, self.size)
        recorder.linear(recorder.enter(None, _GATE), _GATE, gate)
        recorder.linear(self._embedded(recorder), _CONTEXT, context)
        identity, out = recorder.rows("input_identity", self.size), recorder.input(_OUT, "gated")
        first = self.layer * self.size
        recorder.look_up(_IDENTITIES, identity, scale=self.size**0.5, first=first)
        layer_input(
            recorder.commands,
            recorder.kernels,
            recorder.info,
            gate=gate,
            context=context,
            identity=identity,
            weight=recorder.model_vector(_NORM),
            eps=self.post_norm.eps * self.hidden_size,  # of what was not divided by the root of the hidden size
            out=out,
            activation=self.activation,
        )
        recorder.barrier()
        recorder.linear(out, _OUT, recorder.branch)
        recorder.leave(self.residue)

    def _embedded(self, recorder: BlockRecorder) -> Rows:
        """Record the tokens' embeddings, in the form that the product with them reads."""
        floats, wanted = recorder.rows("embedded", self.hidden_size), recorder.input(_CONTEXT, "embedded")
        recorder.look_up(TABLE, floats, scale=self.embedding_scale)
        if not isinstance(wanted, Tensor):
            prepare_input(recorder.commands, recorder.kernels, recorder.info, x=floats, out=wanted)
            recorder.barrier()
        return wanted
