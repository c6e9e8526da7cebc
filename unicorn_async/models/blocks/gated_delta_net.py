"""Linear attention by the gated delta rule: norm, projections, convolution, recurrence, gate, output projection."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.models.blocks.declarations import Fixed, Residue, WeightSpec, vector
from unicorn_async.ops.delta_chunks import delta_chunk, delta_chunks
from unicorn_async.ops.delta_rule import DeltaTokens, delta_conv, delta_conv_state, delta_rule
from unicorn_async.ops.head_gate import HeadGate, head_gate
from unicorn_async.tensor import DType, Tensor
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.row_order import grouped_runs
from unicorn_async.weights.rules import WeightKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.models.block_recorder import BlockRecorder
    from unicorn_async.models.blocks.declarations import Norm
    from unicorn_async.ops.delta_rule import DeltaShape


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Heads that keep a matrix of a sequence each, behind `norm`; `eps` is that of the norm of what each finds.

    With `is_grouped` two tensors on disk have what makes q, k, v and the gate, and beta and the decay: those of a head
    of keys side by side; with `is_gate_apart` the gate and the rest of the first are tensors of their own, as they are
    otherwise.
    """

    hidden_size: int
    shape: DeltaShape
    norm: Norm
    eps: float
    is_grouped: bool = False
    is_gate_apart: bool = False

    @property
    def norms(self) -> tuple[Norm, ...]:
        """See `Block`."""
        return (self.norm,)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """The norm, projections to q, k, v, gate, beta and decay, taps, decays, the heads' norm, output projection."""
        shape, hidden, matrix, group = self.shape, self.hidden_size, WeightKind.MATRIX, MemoryGroup.ATTENTION
        columns, values, heads = shape.columns, shape.value_columns, shape.num_value_heads
        taps = (columns, 1, shape.num_taps)
        return (
            self.norm.weight,
            *self._projections(),
            WeightSpec("linear_attn.conv1d.weight", taps, "delta_taps", WeightKind.VECTOR, MemoryGroup.NORMS),
            vector("linear_attn.A_log", "delta_decays", heads),
            vector("linear_attn.dt_bias", "delta_decay_bias", heads),
            vector("linear_attn.norm.weight", "delta_norm", shape.value_dim),
            WeightSpec("linear_attn.out_proj.weight", (hidden, values), "delta_out", matrix, group),
        )

    @property
    def workspace(self) -> Mapping[str, int]:
        """See `Block`."""
        columns, values = self.shape.columns, self.shape.value_columns
        return {
            "normed": self.hidden_size,
            "projected": columns + values,
            "delta_ba": 2 * self.shape.num_value_heads,
            "convolved": columns,
            "attention": values,
            "delta_chunks": self.shape.chunk_columns,
        }

    @property
    def sizes(self) -> Mapping[str, int]:
        """See `Block`."""
        return {"linear_key_head_dim": self.shape.key_dim, "linear_value_head_dim": self.shape.value_dim}

    @property
    def summary(self) -> str:
        """Numbers and sizes of its heads."""
        shape = self.shape
        return (
            f"linear attention of {shape.num_value_heads} heads of {shape.value_dim} "
            f"on {shape.num_key_heads} of {shape.key_dim}"
        )

    @property
    def state(self) -> Fixed:
        """The last inputs of the convolution, and each head's matrix."""
        return Fixed(self.shape.state_bytes)

    @property
    def alike(self) -> GatedDeltaNet:
        """See `Block`."""
        return self

    @property
    def residue(self) -> Residue:
        """See `Block`."""
        return Residue()

    def record(self, recorder: BlockRecorder) -> None:
        """See `Block`."""
        projected, ba = self._project(recorder)
        found = self._recur(recorder, projected, ba)
        gated = recorder.input("delta_out", "attention")
        head_gate(
            recorder.commands,
            recorder.kernels,
            recorder.info,
            x=found,
            gate=HeadGate(projected, first=self.shape.columns, stride=self.shape.value_dim),
            num_heads=self.shape.num_value_heads,
            out=gated,
            norm=recorder.vector("delta_norm"),
            eps=self.eps,
        )
        recorder.barrier()
        recorder.linear(gated, "delta_out", recorder.branch)
        recorder.leave(self.residue)

    def _projections(self) -> tuple[WeightSpec, ...]:
        shape, hidden, matrix, group = self.shape, self.hidden_size, WeightKind.MATRIX, MemoryGroup.ATTENTION
        columns, values = shape.columns, shape.value_columns
        heads, groups = shape.num_value_heads, shape.num_key_heads
        parts = (shape.key_dim, shape.key_dim, values // groups, values // groups)
        qkvz = WeightSpec("linear_attn.in_proj_qkvz.weight", (columns + values, hidden), "delta_in", matrix, group)
        inputs: tuple[WeightSpec, ...] = (replace(qkvz, runs=grouped_runs(groups, parts)),)
        if self.is_gate_apart or not self.is_grouped:
            inputs = (
                WeightSpec("linear_attn.in_proj_qkv.weight", (columns, hidden), "delta_in", matrix, group),
                WeightSpec("linear_attn.in_proj_z.weight", (values, hidden), "delta_in", matrix, group, columns),
            )
        if self.is_grouped:
            ba = WeightSpec("linear_attn.in_proj_ba.weight", (2 * heads, hidden), "delta_ba", matrix, group)
            return (*inputs, replace(ba, runs=grouped_runs(groups, (heads // groups, heads // groups))))
        return (
            *inputs,
            WeightSpec("linear_attn.in_proj_b.weight", (heads, hidden), "delta_ba", matrix, group),
            WeightSpec("linear_attn.in_proj_a.weight", (heads, hidden), "delta_ba", matrix, group, heads),
        )

    def _project(self, recorder: BlockRecorder) -> tuple[Tensor, Tensor]:
        """Record q, k, v and the gate, side by side for each token; then beta and the decay, likewise."""
        hidden = recorder.rows("normed", self.hidden_size)
        recorder.add_norm(self.norm, out=hidden)  # as it is: the two products may read it in forms of their own
        projected = recorder.rows("projected", self.shape.columns + self.shape.value_columns)
        ba = recorder.rows("delta_ba", 2 * self.shape.num_value_heads)
        recorder.linear(hidden, "delta_in", projected)
        recorder.linear(hidden, "delta_ba", ba)
        return projected, ba

    def _recur(self, recorder: BlockRecorder, projected: Tensor, ba: Tensor) -> Tensor:
        """Record what heads find, (tokens, value_columns) f32, and what they keep."""
        shape, commands, kernels = self.shape, recorder.commands, recorder.kernels
        state, runs, positions = recorder.state, recorder.arrays.runs, recorder.arrays.positions
        convolved, found = recorder.rows("convolved", shape.columns), recorder.rows("attention", shape.value_columns)
        taps = Tensor(recorder.vector("delta_taps").address, (shape.columns, shape.num_taps), DType.F32)
        delta_conv(
            commands,
            kernels,
            recorder.info,
            shape,
            projected=projected,
            taps=taps,
            state=state,
            runs=runs,
            positions=positions,
            out=convolved,
        )
        recorder.barrier()
        delta_conv_state(commands, kernels, shape, projected=projected, state=state, runs=runs)
        tokens = DeltaTokens(
            shape,
            qkv=convolved,
            ba=ba,
            decays=recorder.vector("delta_decays"),
            decay_bias=recorder.vector("delta_decay_bias"),
            state=state,
            runs=runs,
            positions=positions,
        )
        is_chunked = recorder.has_prompts and shape.takes_chunks(recorder.num_tokens)
        if is_chunked:
            self._record_chunks(recorder, tokens, found)
        delta_rule(commands, kernels, recorder.info, tokens, out=found, is_beside_chunks=is_chunked)
        recorder.barrier()
        return found

    def _record_chunks(self, recorder: BlockRecorder, tokens: DeltaTokens, found: Tensor) -> None:
        """Record what heads find in long runs, without a barrier behind it."""
        commands, kernels, info = recorder.commands, recorder.kernels, recorder.info
        chunks = recorder.rows("delta_chunks", self.shape.chunk_columns)
        delta_chunk(commands, kernels, info, tokens, out=chunks)
        recorder.barrier()
        delta_chunks(commands, kernels, info, tokens, chunks=chunks, out=found)
