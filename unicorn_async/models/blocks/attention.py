"""Attention over the paged cache: norm, q, k and v, rotation, attention, output projection."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.models.block_recorder import BRANCH
from unicorn_async.models.blocks.declarations import Paged, Residue, WeightSpec, vector
from unicorn_async.ops.attention_plan import MAX_ROTATING_TOKENS
from unicorn_async.ops.head_gate import HeadGate, head_gate
from unicorn_async.ops.norm import qk_norm
from unicorn_async.ops.rotary import HeadNorms, HeadRotation, rope_cache, rotary_pairs
from unicorn_async.ops.rows import HalfRows, form_of
from unicorn_async.rotary import RotaryConfig
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.row_order import HeadOrder
from unicorn_async.weights.rules import WeightKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from unicorn_async.models.block_recorder import BlockRecorder
    from unicorn_async.models.blocks.declarations import Norm
    from unicorn_async.ops.kv_cache import KVCache
    from unicorn_async.ops.rows import Rows
    from unicorn_async.tensor import Tensor

GATES = "head_gates"


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention behind `norm`, and with `post_norm` before one.

    Queries, keys and values lie in one destination, so that one dispatch reads them; with `is_fused` they are one
    tensor on disk. `window` is what a query sees of the keys, in tokens; 0 = all. `softmax_scale` multiplies q, and at
    position n 1 + query_growth * log(1 + n // query_period) as well. With a `soft_cap` (0 = none) scores become
    cap * tanh(score / cap). `q_norm` and `k_norm` are over a head's elements, or over those of all heads. Rotary pairs
    are neighbours on disk if `is_interleaved`. With `v_norm`, which goes with those of q and k, values are normed,
    without weights; with `v_from_k` they are the keys before norm and rotation, and have no projection. With a
    `kv_layer` keys and values are those of that layer, which comes before. What is left is multiplied by
    `residual_scale`. With `has_sinks` each head has a logit beside those of its keys, which takes its part of the
    softmax and leaves nothing. With `has_head_gates` what a head has found is multiplied by the sigmoid of a row's
    product with the token; with `is_gated` each of its elements is, by rows that lie behind those of its queries.
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int
    rotary: RotaryConfig
    softmax_scale: float
    norm: Norm | None
    post_norm: Norm | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    soft_cap: float = 0.0
    query_growth: float = 0.0
    query_period: int = 1
    residual_scale: float = 1.0
    is_fused: bool = False
    is_interleaved: bool = False
    is_gated: bool = False
    has_head_gates: bool = False
    has_sinks: bool = False
    v_norm: bool = False
    v_from_k: bool = False
    kv_layer: int | None = None

    def __post_init__(self) -> None:
        """Refuse norms of heads that no kernel applies.

        Raises:
            UnsupportedModelError: those of q and of k count differently, or not as norms of heads can, or there are
                sinks beside them.
        """
        if self.q_norm is None or self.k_norm is None:
            if self.v_norm:
                raise UnsupportedModelError("norms of v without those of q and k are not supported")
            return
        if self.has_sinks:
            raise UnsupportedModelError("attention sinks beside norms of q and k are not supported")
        rule, is_extra = self.q_norm.rule, self.q_norm.plus_one or self.v_norm
        if self.k_norm.rule != rule or self.q_norm.centred or (self._norms_whole and is_extra):
            raise UnsupportedModelError(f"norms of q and k: {self.q_norm} and {self.k_norm} are not supported together")

    @property
    def norms(self) -> tuple[Norm, ...]:
        """See `Block`."""
        return tuple(norm for norm in (self.norm, self.post_norm) if norm is not None)

    @property
    def heads(self) -> str:
        """What all attentions of a model have to have in common, for people."""
        cap = f", scores capped at {self.soft_cap}" if self.soft_cap else ""
        sinks = ", with sinks" if self.has_sinks else ""
        return f"{self.num_heads} heads{cap}{sinks}"

    @property
    def gates_results(self) -> bool:
        """Whether what heads have found is gated."""
        return self.is_gated or self.has_head_gates

    @property
    def latent_dim(self) -> int:
        """Elements of keys that are values, too: none."""
        return 0

    @property
    def rotated_dim(self) -> int:
        """Elements of a head of which some rotate."""
        return self.head_dim

    @property
    def inputs(self) -> tuple[str, ...]:
        """Destinations of what is multiplied by before the attention."""
        return ("qkv",)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Destinations of what is multiplied by after it."""
        return ("o",)

    @property
    def columns(self) -> int:
        """Elements of a token's queries."""
        return self.num_heads * self.head_dim

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """Norms, sinks, gates of heads, then q, k, v and the output projection, each with its bias."""
        return tuple(self._weights())

    @property
    def workspace(self) -> Mapping[str, int]:
        """See `Block`."""
        gates = {GATES: self.num_heads} if self.has_head_gates else {}
        results = {"normed": self.hidden_size, "qkv": self._qkv_columns, "q": self.columns, "attention": self.columns}
        return {**results, **gates}

    @property
    def sizes(self) -> Mapping[str, int]:
        """See `Block`."""
        return {"head_dim": self.head_dim}

    @property
    def summary(self) -> str:
        """Nothing: of all attentions together people are told."""
        return ""

    @property
    def keys(self) -> Paged:
        """The keys and values that it attends to."""
        return Paged(self.window, self.num_kv_heads, self.head_dim)

    @property
    def state(self) -> Paged | None:
        """Its own keys and values."""
        return self.keys if self.kv_layer is None else None

    @property
    def alike(self) -> Attention:
        """See `Block`: windows and frequencies are read when a step runs."""
        plain = RotaryConfig(2.0, dim=self.rotary.dim, amplitude=self.rotary.amplitude, is_still=self.rotary.is_still)
        plain = replace(plain, num_pairs=self.rotary.num_pairs)
        return replace(self, window=0, rotary=plain, kv_layer=None if self.kv_layer is None else 0)

    @property
    def residue(self) -> Residue:
        """See `Block`."""
        return Residue.of(self.post_norm, self.residual_scale)

    def record(self, recorder: BlockRecorder) -> None:
        """See `Block`; a step that decodes few tokens rotates while it attends."""
        place, num_tokens = recorder.attention, recorder.num_tokens
        q, attended = recorder.rows("q", self.columns), recorder.input("o", "attention")
        if self.gates_results or not place.device.writes(form_of(attended)):
            attended = recorder.rows("attention", self.columns)
        rotation = None
        # New keys of prompts and proposals are read by workgroups that would not make them; gates lie between heads.
        is_other = self.is_gated or self.kv_layer is not None
        if is_other or place.batch.has_prefill or place.batch.has_proposals or num_tokens > MAX_ROTATING_TOKENS:
            self.record_before(recorder, q=q, cache=place.cache, slot_mapping=place.slot_mapping)
        else:
            q, rotation = self._heads(recorder), self._rotation(recorder)
        place.device.record(
            recorder.commands,
            q=q,
            cache=place.cache,
            window=self.window,
            batch=place.batch,
            out=attended,
            rotation=rotation,
            sinks=recorder.vector("sinks") if self.has_sinks else None,
        )
        recorder.touch_pages()
        recorder.barrier()
        self.record_after(recorder, self._gated(recorder) if self.gates_results else attended)

    def record_before(self, recorder: BlockRecorder, *, q: Tensor, cache: KVCache, slot_mapping: int) -> None:
        """Record it up to the attention: rotated q, (tokens, num_heads * head_dim) f32, and k and v in `cache`.

        `slot_mapping` is the address of (tokens) u32, see `rope_cache`. Of what it computed only the step's own
        `hidden` is needed after it, so that other work may come before the rest of the layer.
        """
        qkv = self._heads(recorder)
        rope_cache(
            recorder.commands,
            recorder.kernels,
            recorder.info,
            shape=recorder.shape.with_heads(self),
            qkv=qkv,
            q=q,
            cache=cache,
            rotation=self._rotation(recorder),
            positions=recorder.arrays.positions,
            slot_mapping=slot_mapping,
            q_gated=self.is_gated,
            q_alone=self.kv_layer is not None,
        )
        recorder.barrier()

    def record_after(self, recorder: BlockRecorder, attended: Rows) -> None:
        """Record the rest of it; `attended` is the attention's result, f32 or in the form that its linear reads."""
        recorder.linear(attended, "o", recorder.branch, spare="qkv")
        recorder.leave(self.residue)

    def _heads(self, recorder: BlockRecorder) -> Tensor:
        """Record it up to q, k and v, not yet rotated; returns these, side by side for each token."""
        normed = self._normed(recorder)
        qkv = recorder.rows("qkv", self._qkv_columns)
        recorder.linear(normed, "qkv", qkv, spare=BRANCH)
        norms = self._norms(recorder)
        if norms is not None and self._norms_whole:
            qk_norm(
                recorder.commands,
                recorder.kernels,
                recorder.info,
                qkv=qkv,
                q_weight=norms.q_weight,
                k_weight=norms.k_weight,
                eps=norms.eps,
            )
            recorder.barrier()
        return qkv

    def _normed(self, recorder: BlockRecorder) -> Rows:
        """Record the norm, and the gates of heads; returns the input of q, k and v."""
        if not self.has_head_gates:
            return recorder.enter(self.norm, "qkv")
        normed = recorder.input("qkv", "normed")
        is_shared = form_of(normed) is form_of(recorder.input(GATES, "normed"))
        if not is_shared:
            normed = recorder.rows("normed", self.hidden_size)
        recorder.add_norm(self.norm, out=normed)
        # What the products bring into their own forms, and parts of sums of halves, lie in the one scratch.
        waits = not is_shared or isinstance(normed, HalfRows)
        recorder.linear(normed, GATES, recorder.rows(GATES, self.num_heads), waits=waits)
        return normed

    def _gated(self, recorder: BlockRecorder) -> Rows:
        """Record the gates; returns what they let through, in the form that the output projection reads."""
        out = recorder.input("o", "attention")
        if self.has_head_gates:
            gate = HeadGate(recorder.rows(GATES, self.num_heads))
        else:
            qkv = recorder.rows("qkv", self._qkv_columns)
            gate = HeadGate(qkv, first=self.head_dim, stride=2 * self.head_dim)
        head_gate(
            recorder.commands,
            recorder.kernels,
            recorder.info,
            x=recorder.rows("attention", self.columns),
            gate=gate,
            num_heads=self.num_heads,
            out=out,
        )
        recorder.barrier()
        return out

    @property
    def _qkv_columns(self) -> int:
        queries = self.num_heads * (2 if self.is_gated else 1)
        others = 0 if self.kv_layer is not None else 1 if self.v_from_k else 2
        return (queries + others * self.num_kv_heads) * self.head_dim

    def _rotation(self, recorder: BlockRecorder) -> HeadRotation:
        return HeadRotation(
            recorder.frequencies(self.rotary, self.head_dim),
            self.softmax_scale,
            None if self._norms_whole else self._norms(recorder),
            amplitude=self.rotary.amplitude,
            num_pairs=rotary_pairs(self.rotary, self.head_dim),
            q_growth=self.query_growth,
            q_period=self.query_period,
            v_norm=self.v_norm,
            v_from_k=self.v_from_k,
        )

    @property
    def _norms_whole(self) -> bool:
        return self.q_norm is not None and self.q_norm.size != self.head_dim

    def _norms(self, recorder: BlockRecorder) -> HeadNorms | None:
        if self.q_norm is None or self.k_norm is None:
            return None
        q_weight = recorder.vector(self.q_norm.dest)
        k_weight = q_weight if self.kv_layer is not None else recorder.vector(self.k_norm.dest)
        return HeadNorms(q_weight, k_weight, self.q_norm.eps, self.q_norm.plus_one)

    def _weights(self) -> Iterator[WeightSpec]:
        for norm in self.norms:
            yield norm.weight
        for head_norm in (self.q_norm, self.k_norm if self.kv_layer is None else None):
            if head_norm is not None:
                yield replace(head_norm.weight, head_order=self._head_order())
        if self.has_sinks:
            yield vector("self_attn.sinks", "sinks", self.num_heads)
        if self.has_head_gates:
            kind, group = WeightKind.MATRIX, MemoryGroup.ATTENTION
            yield WeightSpec("self_attn.g_proj.weight", (self.num_heads, self.hidden_size), GATES, kind, group)
        yield from self._projections()
        yield _matrix("self_attn.o_proj.weight", "o", self.hidden_size, self.columns)
        if self.output_bias:
            yield vector("self_attn.o_proj.bias", "o_bias", self.hidden_size)

    def _projections(self) -> Iterator[WeightSpec]:
        order, heads, kv_heads = self._head_order(), self.num_heads, self.num_kv_heads
        if self.is_fused:
            order = order and replace(order, num_heads=heads + kv_heads)
            rows = (heads + 2 * kv_heads) * self.head_dim
            yield replace(_matrix("self_attn.qkv_proj.weight", "qkv", rows, self.hidden_size), head_order=order)
            if self.qkv_bias:
                yield replace(vector("self_attn.qkv_proj.bias", "qkv_bias", rows), head_order=order)
            return
        row = 0
        num_parts = 1 if self.kv_layer is not None else 2 if self.v_from_k else 3
        for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))[:num_parts]:
            rows, own = count * self.head_dim, None if part == "v" else order
            if part == "q" and self.is_gated:
                rows *= 2
                own = order and HeadOrder((*order.rows, *range(self.head_dim, 2 * self.head_dim)))
            matrix = _matrix(f"self_attn.{part}_proj.weight", "qkv", rows, self.hidden_size, row)
            yield replace(matrix, head_order=own)
            if self.qkv_bias:
                yield replace(vector(f"self_attn.{part}_proj.bias", "qkv_bias", rows, row), head_order=own)
            row += rows

    def _head_order(self) -> HeadOrder | None:
        """How rows of q and k lie on disk, where that is not as the rotary kernel takes its pairs."""
        if not self.rotary.dim and not self.is_interleaved:
            return None
        return HeadOrder.rotary(self.head_dim, rotary_rows=self.rotary.dim, interleaved=self.is_interleaved)


def _matrix(name: str, dest: str, rows: int, columns: int, row_offset: int = 0) -> WeightSpec:
    kind, group = WeightKind.MATRIX, MemoryGroup.ATTENTION
    return WeightSpec(name, (rows, columns), dest, kind, group, row_offset, is_gathered=True)
