"""Mamba-2: norm, projection, convolution, recurrence of heads, norm of what is gated, output projection."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.models.blocks.declarations import Fixed, Residue, WeightSpec, vector
from unicorn_async.ops.state_space import SsmTokens, gated_norm, ssm_conv, ssm_conv_state, ssm_scan
from unicorn_async.ops.state_space_chunks import ssm_chunk, ssm_chunks
from unicorn_async.tensor import DType, Tensor
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.rules import WeightKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.models.block_recorder import BlockRecorder
    from unicorn_async.models.blocks.declarations import Norm
    from unicorn_async.ops.state_space import SsmShape


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Heads that keep a matrix of a sequence each, behind `norm`; `eps` is that of the norm of what they find.

    What is left is multiplied by `residual_scale`. The convolution has a bias with `conv_bias`, projections have with
    `has_bias`. With `is_norm_stacked` the last norm's weight has a row for each group on disk.
    """

    hidden_size: int
    shape: SsmShape
    norm: Norm
    eps: float
    conv_bias: bool = True
    has_bias: bool = False
    residual_scale: float = 1.0
    is_norm_stacked: bool = False

    @property
    def norms(self) -> tuple[Norm, ...]:
        """See `Block`."""
        return (self.norm,)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """The norm, the projection, taps, biases, rates and skips, the norm of groups, the output projection."""
        shape, hidden, matrix, group = self.shape, self.hidden_size, WeightKind.MATRIX, MemoryGroup.ATTENTION
        taps = (shape.columns, 1, shape.num_taps)
        weights = [
            self.norm.weight,
            WeightSpec("mamba.in_proj.weight", (shape.projected, hidden), "ssm_in", matrix, group),
            WeightSpec("mamba.conv1d.weight", taps, "ssm_taps", WeightKind.VECTOR, MemoryGroup.NORMS),
            vector("mamba.A_log", "ssm_rates", shape.num_heads),
            vector("mamba.dt_bias", "ssm_step_bias", shape.num_heads),
            vector("mamba.D", "ssm_skips", shape.num_heads),
            replace(
                vector("mamba.norm.weight", "ssm_norm", shape.inner),
                stacked=shape.num_groups if self.is_norm_stacked else 1,
            ),
            WeightSpec("mamba.out_proj.weight", (hidden, shape.inner), "ssm_out", matrix, group),
        ]
        if self.conv_bias:
            weights.append(vector("mamba.conv1d.bias", "ssm_conv_bias", shape.columns))
        if self.has_bias:
            weights.append(vector("mamba.in_proj.bias", "ssm_in_bias", shape.projected))
            weights.append(vector("mamba.out_proj.bias", "ssm_out_bias", hidden))
        return tuple(weights)

    @property
    def workspace(self) -> Mapping[str, int]:
        """See `Block`."""
        return {
            "normed": self.hidden_size,
            "projected": self.shape.projected,
            "convolved": self.shape.columns,
            "attention": self.shape.inner,
            "gated": self.shape.inner,
            "ssm_chunks": self.shape.chunk_columns,
        }

    @property
    def sizes(self) -> Mapping[str, int]:
        """See `Block`."""
        return {"mamba_n_heads": self.shape.num_heads, "mamba_d_head": self.shape.head_dim}

    @property
    def summary(self) -> str:
        """Numbers and sizes of its heads."""
        shape = self.shape
        return f"Mamba-2 of {shape.num_heads} heads of {shape.head_dim} with states of {shape.state_dim}"

    @property
    def state(self) -> Fixed:
        """The last inputs of the convolution, and each head's matrix."""
        return Fixed(self.shape.state_bytes)

    @property
    def alike(self) -> Mamba2:
        """See `Block`."""
        return self

    @property
    def residue(self) -> Residue:
        """See `Block`."""
        return Residue(scale=self.residual_scale)

    def record(self, recorder: BlockRecorder) -> None:
        """See `Block`."""
        projected = recorder.rows("projected", self.shape.projected)
        recorder.linear(recorder.enter(self.norm, "ssm_in"), "ssm_in", projected)
        found = self._recur(recorder, projected)
        gated = recorder.input("ssm_out", "gated")
        gated_norm(
            recorder.commands,
            recorder.kernels,
            recorder.info,
            x=found,
            gate=projected,
            weight=recorder.vector("ssm_norm"),
            num_groups=self.shape.num_groups,
            eps=self.eps,
            out=gated,
        )
        recorder.barrier()
        recorder.linear(gated, "ssm_out", recorder.branch)
        recorder.leave(self.residue)

    def _recur(self, recorder: BlockRecorder, projected: Tensor) -> Tensor:
        """Record what heads find, (tokens, inner) f32, and what they keep."""
        shape, commands, kernels, info = self.shape, recorder.commands, recorder.kernels, recorder.info
        found = recorder.rows("attention", shape.inner)
        tokens = SsmTokens(
            shape,
            projected=projected,
            xbc=recorder.rows("convolved", shape.columns),
            rates=recorder.vector("ssm_rates"),
            step_bias=recorder.vector("ssm_step_bias"),
            skips=recorder.vector("ssm_skips"),
            state=recorder.state,
            runs=recorder.arrays.runs,
            positions=recorder.arrays.positions,
        )
        taps = Tensor(recorder.vector("ssm_taps").address, (shape.columns, shape.num_taps), DType.F32)
        ssm_conv(
            commands, kernels, tokens, taps=taps, bias=recorder.vector("ssm_conv_bias") if self.conv_bias else None
        )
        recorder.barrier()
        ssm_conv_state(commands, kernels, tokens)
        is_chunked = recorder.has_prompts and shape.takes_chunks(recorder.num_tokens)
        if is_chunked:
            chunks = recorder.rows("ssm_chunks", shape.chunk_columns)
            ssm_chunk(commands, kernels, info, tokens, out=chunks)
            recorder.barrier()
            ssm_chunks(commands, kernels, info, tokens, chunks=chunks, out=found)
        ssm_scan(commands, kernels, info, tokens, out=found, is_beside_chunks=is_chunked)
        recorder.barrier()
        return found
