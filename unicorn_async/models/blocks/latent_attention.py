"""Latent attention: one latent for a token's keys and values of all heads, and a key beside it that has the position.

A head's scores are products of its query with what its matrix makes of latents. That matrix is multiplied with the
query instead, and the other one with the sum of latents that attention leaves: the cache has latents alone.

Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1; transformers' `modeling_deepseek_v3.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.models.blocks.declarations import Paged, Residue, WeightSpec
from unicorn_async.ops.expert_linear import ExpertRows, expert_linear
from unicorn_async.ops.latent import (
    PAIR_WORDS,
    LatentRotation,
    head_pairs,
    head_rows,
    head_tiles,
    latent_keys,
    latent_queries,
)
from unicorn_async.ops.linear import prepare_input
from unicorn_async.ops.norm import rms_norm
from unicorn_async.ops.rotary import rotary_pairs
from unicorn_async.rotary import RotaryConfig
from unicorn_async.tensor import MixedTensor, Tensor
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.row_order import RowRun
from unicorn_async.weights.rules import WeightKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from unicorn_async.models.block_recorder import BlockRecorder
    from unicorn_async.models.blocks.declarations import Norm
    from unicorn_async.ops.routing import TiledPairs
    from unicorn_async.ops.rows import Rows
    from unicorn_async.tensor import QuantTensor

DOWN, Q_UP, K_UP, V_UP, OUT = "qkv_a", "q_b", "k_b", "v_b", "o"


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Attention of `num_heads` heads to latents of `latent_dim` elements, behind `norm`.

    A head's query has `plain_dim` elements that meet latents, and `rotary_dim` that meet the token's rotated key; its
    value has `value_dim`. Queries come from a latent of their own, normed by `q_norm`, or without that from the stream
    itself; `kv_norm` is that of the others. Rotary pairs are neighbours if `is_interleaved`. `softmax_scale`,
    `query_growth` and `query_period` are as for `Attention`. Matrices of keys and values are one on disk, head by head,
    or two with `is_split`: keys' have rows for columns then, as they are needed.
    """

    hidden_size: int
    num_heads: int
    plain_dim: int
    rotary_dim: int
    value_dim: int
    latent_dim: int
    rotary: RotaryConfig
    softmax_scale: float
    norm: Norm
    kv_norm: Norm
    q_norm: Norm | None = None
    is_interleaved: bool = True
    is_split: bool = False
    query_growth: float = 0.0
    query_period: int = 1

    @property
    def norms(self) -> tuple[Norm, ...]:
        """See `Block`."""
        return (self.norm,)

    @property
    def window(self) -> int:
        """What a query sees of the keys, in tokens: all."""
        return 0

    @property
    def soft_cap(self) -> float:
        """As for `Attention`: none."""
        return 0.0

    @property
    def kv_layer(self) -> None:
        """Its keys are its own."""

    @property
    def num_kv_heads(self) -> int:
        """All heads of queries meet the same keys."""
        return 1

    @property
    def head_dim(self) -> int:
        """Elements of a key."""
        return self.latent_dim + self.rotary_dim

    @property
    def rotated_dim(self) -> int:
        """Elements of what rotates, as of a head."""
        return self.rotary_dim

    @property
    def heads(self) -> str:
        """What all attentions of a model have to have in common, for people."""
        return f"{self.num_heads} heads on latents of {self.latent_dim}"

    @property
    def columns(self) -> int:
        """Elements of a token's queries, as they meet keys."""
        return self.num_heads * self.head_dim

    @property
    def inputs(self) -> tuple[str, ...]:
        """Destinations of what is multiplied by before the attention."""
        return (DOWN, K_UP) if self.q_norm is None else (DOWN, Q_UP, K_UP)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Destinations of what is multiplied by after it."""
        return (V_UP, OUT)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """Norms, what makes latents, queries, each head's matrices, then the output projection."""
        return tuple(self._weights())

    @property
    def workspace(self) -> Mapping[str, int]:
        """See `Block`; `head_rows` are what heads' matrices read, `latent_q` queries as they meet keys."""
        heads = self.num_heads
        return {
            "normed": self.hidden_size,
            "qkv_a": self._down_rows,
            **({} if self.q_norm is None else {"q_a": self.q_norm.size, "q": heads * self._query_dim}),
            "head_pairs": heads * PAIR_WORDS,
            "head_rows": heads * max(self.plain_dim, self.latent_dim),
            "latent_q": self.columns,
            "latents": heads * self.latent_dim,
            "attention": heads * self.value_dim,
        }

    @property
    def sizes(self) -> Mapping[str, int]:
        """See `Block`."""
        sizes = {
            "kv_lora_rank": self.latent_dim,
            "qk_nope_head_dim": self.plain_dim,
            "qk_rope_head_dim": self.rotary_dim,
            "v_head_dim": self.value_dim,
        }
        return sizes if self.q_norm is None else {**sizes, "q_lora_rank": self.q_norm.size}

    @property
    def summary(self) -> str:
        """Nothing: of all attentions together people are told."""
        return ""

    @property
    def state(self) -> Paged:
        """Latents, and the keys beside them."""
        return Paged(self.window, self.num_kv_heads, self.head_dim, self.latent_dim)

    @property
    def keys(self) -> Paged:
        """The keys that it attends to."""
        return self.state

    @property
    def alike(self) -> LatentAttention:
        """See `Block`: frequencies are read when a step runs."""
        plain = RotaryConfig(2.0, amplitude=self.rotary.amplitude)
        return replace(self, rotary=plain)

    @property
    def residue(self) -> Residue:
        """See `Block`."""
        return Residue()

    def record(self, recorder: BlockRecorder) -> None:
        """See `Block`."""
        place, num_rows = recorder.attention, recorder.num_tokens * self.num_heads
        pairs = self._pairs(recorder)
        head_tiles(recorder.commands, recorder.kernels, pairs=pairs, num_heads=self.num_heads)
        q = self._queries(recorder)
        met = recorder.rows("latent_q", self.head_dim, num_rows)
        plain = head_rows(_whole(recorder, K_UP), pairs.tile, recorder.rows("head_rows", 1).address, num_rows)
        latent_queries(
            recorder.commands,
            recorder.kernels,
            recorder.info,
            q=q,
            plain_dim=self.plain_dim,
            rotation=self._rotation(recorder),
            positions=recorder.arrays.positions,
            out=plain,
            rotated=met,
        )
        recorder.barrier()
        self._by_head(recorder, K_UP, plain, pairs, met, self.latent_dim)
        latents = recorder.rows("latents", self.latent_dim, num_rows)
        place.device.record(
            recorder.commands,
            q=replace(met, shape=(recorder.num_tokens, self.columns)),
            cache=place.cache,
            window=self.window,
            batch=place.batch,
            out=replace(latents, shape=(recorder.num_tokens, self.num_heads * self.latent_dim)),
        )
        recorder.touch_pages()
        recorder.barrier()
        self._record_out(recorder, latents, pairs)

    def _pairs(self, recorder: BlockRecorder) -> TiledPairs:
        return head_pairs(
            recorder.info,
            [_whole(recorder, name) for name in (K_UP, V_UP)],
            num_tokens=recorder.num_tokens,
            num_heads=self.num_heads,
            address=recorder.rows("head_pairs", self.num_heads * PAIR_WORDS).address,
        )

    def _queries(self, recorder: BlockRecorder) -> Tensor:
        """Record it up to queries and keys; returns the former as `latent_queries` reads them, the latter are kept."""
        down = recorder.rows("qkv_a", self._down_rows)
        recorder.linear(recorder.enter(self.norm, DOWN), DOWN, down)
        first = self._down_rows - self.head_dim
        latent_keys(
            recorder.commands,
            recorder.kernels,
            recorder.info,
            shape=recorder.shape.with_heads(self),
            kv=Tensor(down.address + 4 * first, (recorder.num_tokens, self.head_dim), down.dtype),
            weight=recorder.vector(self.kv_norm.dest),
            eps=self.kv_norm.eps,
            rotation=self._rotation(recorder),
            cache=recorder.attention.cache.k,
            positions=recorder.arrays.positions,
            slot_mapping=recorder.attention.slot_mapping,
            row_columns=self._down_rows,
        )
        if self.q_norm is None:
            return down
        normed = recorder.input(Q_UP, "q_a")
        rms_norm(
            recorder.commands,
            recorder.kernels,
            recorder.info,
            x=Tensor(down.address, (recorder.num_tokens, self.q_norm.size), down.dtype),
            weight=recorder.vector(self.q_norm.dest),
            out=normed,
            eps=self.q_norm.eps,
            row_columns=self._down_rows,
        )
        recorder.barrier()
        q = recorder.rows("q", self.num_heads * self._query_dim)
        recorder.linear(normed, Q_UP, q)
        return q

    def _record_out(self, recorder: BlockRecorder, latents: Tensor, pairs: TiledPairs) -> None:
        """Record what becomes of the sums of latents, a row for each head of each token."""
        num_rows = latents.shape[0]
        rows = head_rows(_whole(recorder, V_UP), pairs.tile, recorder.rows("head_rows", 1).address, num_rows)
        if isinstance(rows, Tensor):
            rows = latents
        else:
            prepare_input(recorder.commands, recorder.kernels, recorder.info, x=latents, out=rows)
            recorder.barrier()
        values = recorder.rows("attention", self.value_dim, num_rows)
        self._by_head(recorder, V_UP, rows, pairs, values, self.value_dim)
        attended = recorder.rows("attention", self.num_heads * self.value_dim)
        recorder.linear(attended, OUT, recorder.branch)
        recorder.leave(self.residue)

    def _by_head(
        self,
        recorder: BlockRecorder,
        name: str,
        x: Rows,
        pairs: TiledPairs,
        out: Tensor,
        num_outputs: int,
    ) -> None:
        recorder.commands.label(name)
        expert_linear(
            recorder.commands,
            recorder.kernels,
            recorder.info,
            x=x,
            weight=_whole(recorder, name),
            rows=ExpertRows(self.num_heads, num_outputs, num_outputs),
            pairs=pairs,
            shared_by=1,
            out=out,
        )
        recorder.barrier()

    @property
    def _query_dim(self) -> int:
        return self.plain_dim + self.rotary_dim

    @property
    def _down_rows(self) -> int:
        queries = self.num_heads * self._query_dim if self.q_norm is None else self.q_norm.size
        return queries + self.head_dim

    def _rotation(self, recorder: BlockRecorder) -> LatentRotation:
        return LatentRotation(
            self.rotary_dim,
            recorder.frequencies(self.rotary, self.rotary_dim),
            self.softmax_scale,
            self.is_interleaved,
            amplitude=self.rotary.amplitude,
            num_pairs=rotary_pairs(self.rotary, self.rotary_dim),
            q_growth=self.query_growth,
            q_period=self.query_period,
        )

    def _weights(self) -> Iterator[WeightSpec]:
        for norm in (self.norm, self.q_norm, self.kv_norm):
            if norm is not None:
                yield norm.weight
        queries = self._down_rows - self.head_dim
        yield _matrix("q_proj" if self.q_norm is None else "q_a_proj", DOWN, queries, self.hidden_size)
        keys = _matrix("kv_a_proj_with_mqa", DOWN, self.head_dim, self.hidden_size)
        yield replace(keys, row_offset=queries)
        if self.q_norm is not None:
            yield _matrix("q_b_proj", Q_UP, self.num_heads * self._query_dim, self.q_norm.size)
        yield from self._head_matrices()
        yield _matrix("o_proj", OUT, self.hidden_size, self.num_heads * self.value_dim)

    def _head_matrices(self) -> Iterator[WeightSpec]:
        heads, plain, latent, value = self.num_heads, self.plain_dim, self.latent_dim, self.value_dim
        keys = replace(_matrix("k_b_proj", K_UP, heads * latent, plain), kind=WeightKind.KEPT, stacked=heads)
        values = replace(_matrix("v_b_proj", V_UP, heads * value, latent), kind=WeightKind.KEPT, stacked=heads)
        if self.is_split:
            yield from (keys, values)
            return
        whole, rows = "self_attn.kv_b_proj.weight", plain + value
        of_keys = tuple(RowRun(head * rows, head * plain, plain) for head in range(heads))
        of_values = tuple(RowRun(head * rows + plain, head * value, value) for head in range(heads))
        yield replace(keys, name=whole, runs=of_keys, file_rows=heads * rows, is_transposed=True)
        yield replace(values, name=whole, runs=of_values, file_rows=heads * rows, stacked=1)


def _whole(recorder: BlockRecorder, name: str) -> Tensor | QuantTensor:
    weight = recorder.weight(name)
    assert not isinstance(weight, MixedTensor), f"{name} is one tensor"
    return weight


def _matrix(name: str, dest: str, rows: int, columns: int) -> WeightSpec:
    return WeightSpec(f"self_attn.{name}.weight", (rows, columns), dest, WeightKind.MATRIX, MemoryGroup.ATTENTION)
