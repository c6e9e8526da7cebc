"""RWKV-7's time mixing: norm, token shift, projections and small networks, recurrence, norm of heads, gate, output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.models.blocks.declarations import Fixed, Residue, WeightSpec, vector
from unicorn_async.models.blocks.token_shift import record_shift
from unicorn_async.ops.activate import Function, activate
from unicorn_async.ops.time_mix import MixedRows, time_mix, time_mix_keys, time_mix_out
from unicorn_async.ops.time_mix_chunks import time_mix_chunk, time_mix_chunks
from unicorn_async.tensor import Tensor
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.rules import WeightKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.models.block_recorder import BlockRecorder
    from unicorn_async.models.blocks.declarations import Norm
    from unicorn_async.ops.rows import Rows
    from unicorn_async.ops.time_mix import TimeMixShape

_SHIFTED = ("r", "w", "k", "v", "a", "g")  # what a mix of its own is made for
_ROWS = ("r", "w", "k", "v", "a", "direction", "blend", "gate")  # (tokens, columns) each


@dataclass(frozen=True, slots=True)
class Ranks:
    """How wide the small networks are: of the decay, of the rate, of the blend of values, and of the gate."""

    decay: int
    rate: int
    blend: int
    gate: int


@dataclass(frozen=True, slots=True)
class TimeMix:
    """Heads that keep a matrix of a sequence each, behind `norm`; `eps` is that of the norm of what each finds.

    The values of the first layer, which `is_first`, are carried to all others. On disk what tokens are mixed by are
    rows of one tensor if they are stacked, the bonus has no dimension of heads if it is flat, and small networks may
    be turned: with rows for columns.
    """

    shape: TimeMixShape
    ranks: Ranks
    norm: Norm
    eps: float
    is_first: bool = False
    are_shifts_stacked: bool = False
    is_bonus_flat: bool = False
    are_networks_turned: bool = False

    @property
    def norms(self) -> tuple[Norm, ...]:
        """See `Block`."""
        return (self.norm,)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """The norm, what tokens are mixed by, projections and small networks, the heads' norm, output projection."""
        size, norms = self.shape.columns, MemoryGroup.NORMS
        heads = (size,) if self.is_bonus_flat else (self.shape.num_heads, 1, self.shape.head_dim)
        shifts = [vector(f"attn.x_{name}", "mix_shifts", size, n * size) for n, name in enumerate(_SHIFTED)]
        if self.are_shifts_stacked:
            shifts = [WeightSpec("attn.x_x", (len(_SHIFTED), 1, size), "mix_shifts", WeightKind.VECTOR, norms)]
        return (
            *self.norm.weights,
            *shifts,
            *(self._matrix(f"attn.{name}_proj", f"mix_{name}", size, size) for name in ("r", "k", "v")),
            *self._network("w", self.ranks.decay),
            *self._network("a", self.ranks.rate),
            *(() if self.is_first else self._network("v", self.ranks.blend)),
            *self._network("g", self.ranks.gate, has_bias=False),
            vector("attn.k_k", "mix_k_k", size),
            vector("attn.k_a", "mix_k_a", size),
            WeightSpec("attn.r_k", heads, "mix_r_k", WeightKind.VECTOR, norms),
            vector("attn.g_norm.weight", "mix_norm", size),
            vector("attn.g_norm.bias", "mix_norm_bias", size),
            self._matrix("attn.o_proj", "mix_out", size, size),
        )

    @property
    def workspace(self) -> Mapping[str, int]:
        """See `Block`."""
        size, ranks = self.shape.columns, self.ranks
        widest = max(ranks.decay, ranks.rate, ranks.blend, ranks.gate)
        return {
            **dict.fromkeys((f"mix_{name}" for name in _ROWS), size),
            **dict.fromkeys(("normed", "attention", "gated"), size),
            **dict.fromkeys(("low_rank", "low_rank_input"), widest),
            "shifted": max(len(_SHIFTED) * size, self.shape.chunk_columns),
        }

    @property
    def sizes(self) -> Mapping[str, int]:
        """See `Block`."""
        ranks = self.ranks
        return {
            "decay_low_rank_dim": ranks.decay,
            "a_low_rank_dim": ranks.rate,
            "v_low_rank_dim": ranks.blend,
            "gate_low_rank_dim": ranks.gate,
        }

    @property
    def summary(self) -> str:
        """Number and size of its heads."""
        return f"time mixing of {self.shape.num_heads} heads of {self.shape.head_dim}"

    @property
    def state(self) -> Fixed:
        """Each head's matrix, and the last rows of this mixing and of the channels'."""
        return Fixed(self.shape.state_bytes)

    @property
    def alike(self) -> TimeMix:
        """See `Block`."""
        return self

    @property
    def residue(self) -> Residue:
        """See `Block`."""
        return Residue()

    def record(self, recorder: BlockRecorder) -> None:
        """See `Block`."""
        rows, gate = self._project(recorder)
        commands, kernels, info, shape = recorder.commands, recorder.kernels, recorder.info, self.shape
        time_mix_keys(
            commands,
            kernels,
            info,
            shape,
            rows=rows,
            first=recorder.carried(shape.columns),
            blend=None if self.is_first else recorder.rows("mix_blend", shape.columns),
            k_k=recorder.vector("mix_k_k"),
            k_a=recorder.vector("mix_k_a"),
        )
        recorder.barrier()
        found = self._recur(recorder, rows)
        gated = recorder.input("mix_out", "gated")
        time_mix_out(
            commands,
            kernels,
            info,
            shape,
            x=found,
            rows=rows,
            gate=gate,
            r_k=recorder.vector("mix_r_k"),
            weight=recorder.vector("mix_norm"),
            bias=recorder.vector("mix_norm_bias"),
            eps=self.eps,
            out=gated,
        )
        recorder.barrier()
        recorder.linear(gated, "mix_out", recorder.branch)
        recorder.leave(self.residue)

    def _matrix(self, name: str, dest: str, rows: int, columns: int) -> WeightSpec:
        return WeightSpec(f"{name}.weight", (rows, columns), dest, WeightKind.MATRIX, MemoryGroup.ATTENTION)

    def _network(self, name: str, rank: int, *, has_bias: bool = True) -> tuple[WeightSpec, ...]:
        size, inner = self.shape.columns, f"attn.{name}_lora.lora"
        into, out = f"mix_{name}_in", f"mix_{name}_out"
        bias = [vector(f"{inner}.2.bias", f"{out}_bias", size)] if has_bias else []
        return (
            replace(self._matrix(f"{inner}.0", into, rank, size), is_transposed=self.are_networks_turned),
            replace(self._matrix(f"{inner}.2", out, size, rank), is_transposed=self.are_networks_turned),
            *bias,
        )

    def _project(self, recorder: BlockRecorder) -> tuple[MixedRows, Tensor]:
        """Record what the recurrence is made of, and the gate, both (tokens, columns) f32."""
        mixed = record_shift(recorder, self.shape, self.norm, "mix_shifts", recorder.state, num_mixes=len(_SHIFTED))
        shifted = dict(zip(_SHIFTED, mixed, strict=True))
        rows = {name: recorder.rows(f"mix_{name}", self.shape.columns) for name in _ROWS}
        for name in ("r", "k", "v"):
            recorder.linear(shifted[name], f"mix_{name}", rows[name])
        ranks = self.ranks
        self._record_network(recorder, "w", shifted["w"], ranks.decay, rows["w"], Function.TANH)
        self._record_network(recorder, "a", shifted["a"], ranks.rate, rows["a"])
        self._record_network(recorder, "g", shifted["g"], ranks.gate, rows["gate"], Function.SIGMOID)
        if not self.is_first:
            self._record_network(recorder, "v", shifted["v"], ranks.blend, rows["blend"])
        return MixedRows(*(rows[name] for name in MixedRows._fields)), rows["gate"]

    def _recur(self, recorder: BlockRecorder, rows: MixedRows) -> Tensor:
        """Record what heads find, (tokens, columns) f32, and what they keep; of `rows` r, k and v stay as they are."""
        commands, kernels, info, shape = recorder.commands, recorder.kernels, recorder.info, self.shape
        found, state = recorder.rows("attention", shape.columns), recorder.state
        runs, positions = recorder.arrays.runs, recorder.arrays.positions
        is_chunked = recorder.has_prompts and shape.takes_chunks(recorder.num_tokens)
        if is_chunked:
            chunks = recorder.rows("shifted", shape.chunk_columns)  # what was there has been projected
            time_mix_chunk(commands, kernels, info, shape, rows=rows, runs=runs, out=chunks)
            recorder.barrier()
            time_mix_chunks(
                commands,
                kernels,
                info,
                shape,
                rows=rows,
                chunks=chunks,
                state=state,
                runs=runs,
                positions=positions,
                out=found,
            )
        time_mix(
            commands,
            kernels,
            info,
            shape,
            rows=rows,
            state=state,
            runs=runs,
            positions=positions,
            out=found,
            is_beside_chunks=is_chunked,
        )
        recorder.barrier()
        return found

    def _record_network(
        self,
        recorder: BlockRecorder,
        name: str,
        x: Tensor,
        rank: int,
        out: Tensor,
        function: Function | None = None,
    ) -> None:
        """Record a small network: two products, and a function between them."""
        inner: Rows = recorder.rows("low_rank", rank)
        assert isinstance(inner, Tensor), "it is no input yet"
        recorder.linear(x, f"mix_{name}_in", inner)
        if function is not None:
            activated = recorder.input(f"mix_{name}_out", "low_rank_input")
            activate(recorder.commands, recorder.kernels, recorder.info, x=inner, function=function, out=activated)
            recorder.barrier()
            inner = activated
        recorder.linear(inner, f"mix_{name}_out", out)
