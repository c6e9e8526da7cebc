"""A dense network and a mixture of experts side by side: both read the stream, each behind a norm of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.models.blocks.gated_ffn import GatedNetwork
from unicorn_async.ops.norm import add_rms_norm, rms_norm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.models.block_recorder import BlockRecorder
    from unicorn_async.models.blocks.declarations import Norm, Residue, WeightSpec
    from unicorn_async.models.blocks.experts import Experts
    from unicorn_async.models.blocks.gated_ffn import GatedFFN
    from unicorn_async.tensor import Tensor


@dataclass(frozen=True, slots=True)
class DenseAndExperts:
    """What `dense` leaves and what `experts` do, each behind a norm, added up; `dense.post_norm` is over the sum."""

    dense: GatedFFN
    experts: Experts
    dense_norm: Norm
    experts_norm: Norm

    @property
    def norms(self) -> tuple[Norm, ...]:
        """See `Block`."""
        return (*self.dense.norms, *self.experts.norms, self.dense_norm, self.experts_norm)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """Those of the dense network, then those of the experts."""
        own = (self.dense_norm.weight, self.experts_norm.weight)
        return (*self.dense.weights, *self.experts.weights, *own)

    @property
    def workspace(self) -> Mapping[str, int]:
        """See `Block`."""
        hidden = self.dense.hidden_size
        parts = {**self.dense.workspace, **self.experts.workspace}
        return {**parts, "dense_output": hidden, "experts_output": hidden}

    @property
    def sizes(self) -> Mapping[str, int]:
        """See `Block`."""
        return {**self.dense.sizes, **self.experts.sizes}

    @property
    def summary(self) -> str:
        """Those of both."""
        return f"{self.dense.summary} beside {self.experts.summary}"

    @property
    def state(self) -> None:
        """It keeps nothing."""

    @property
    def alike(self) -> DenseAndExperts:
        """See `Block`."""
        return self

    @property
    def residue(self) -> Residue:
        """See `Block`."""
        return self.dense.residue

    def record(self, recorder: BlockRecorder) -> None:
        """See `Block`."""
        dense, hidden = self.dense, self.dense.hidden_size
        normed = recorder.enter(dense.norm, "gate_up")
        network = GatedNetwork(dense.intermediate_size, dense.activation, "gate_up", "down")
        own, mixed = recorder.rows("dense_output", hidden), recorder.rows("experts_output", hidden)
        recorder.linear(network.record(recorder, normed), "down", own, spare="gate_up")
        self.experts.mix(recorder, mixed)
        self._add(recorder, own, mixed)
        recorder.leave(self.residue)

    def _add(self, recorder: BlockRecorder, own: Tensor, mixed: Tensor) -> None:
        """Record the sum of both behind their norms into `branch`."""
        commands, kernels, info = recorder.commands, recorder.kernels, recorder.info
        rms_norm(
            commands,
            kernels,
            info,
            x=own,
            weight=recorder.vector(self.dense_norm.dest),
            out=recorder.branch,
            eps=self.dense_norm.eps,
            plus_one=self.dense_norm.plus_one,
        )
        recorder.barrier()
        add_rms_norm(
            commands,
            kernels,
            info,
            x=mixed,
            hidden=recorder.branch,
            post_weight=recorder.vector(self.experts_norm.dest),
            weight=None,
            out=None,
            eps=self.experts_norm.eps,
            plus_one=self.experts_norm.plus_one,
        )
        recorder.barrier()
