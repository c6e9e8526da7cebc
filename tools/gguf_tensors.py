"""The tensors of a GGUF file of random weights: their names, shapes and types, and between what their values are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from gguf_blocks import BLOCKS, possible
from gguf_cycle import Fill, leaves
from gguf_latent import CORRECTIONS, latent_tensors
from gguf_recurrent import linear_tensors, mamba_tensors, rwkv_tensors, shared_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gguf_model import RandomModel
    from gguf_recurrent import Bounds, Named
    from model_shapes import Shape

TABLES = ("token_embd", "output")
TABLE_NAMES = tuple(f"{name}.weight" for name in TABLES)
_PROJECTION, _ROUTER = "nextn.eh_proj", "ffn_gate_inp"


@dataclass(frozen=True, slots=True)
class Matrix:
    """A tensor of the file; of one dimension are ones, unless there are `bounds` between which values are drawn."""

    name: str
    shape: tuple[int, ...]  # rows before columns, experts before both
    type: str
    bounds: tuple[float, float] | None = None
    fill: Fill = Fill.RANDOM

    @property
    def is_norm(self) -> bool:
        return len(self.shape) == 1 and self.bounds is None

    @property
    def pool(self) -> tuple[object, ...]:
        """What it has in common with those that are filled with the same bytes."""
        return self.type, self.shape if self.bounds else self.shape[-1:], self.is_norm, self.bounds, self.fill

    @property
    def nbytes(self) -> int:
        values, size, _ = BLOCKS[self.type]
        return int(np.prod(self.shape)) // values * size


def tensors(model: RandomModel) -> list[Matrix]:
    """Return all tensors in their order."""
    shape = model.shape
    if shape.ranks is not None:
        return [_matrix(model, *named) for named in rwkv_tensors(shape, shape.ranks)]
    numbers = range(shape.layers + model.num_predictors)
    return [_matrix(model, *named) for named in chain(_tables(shape), *(_layer(shape, number) for number in numbers))]


def _matrix(model: RandomModel, name: str, dims: tuple[int, ...], bounds: Bounds) -> Matrix:
    """Return a tensor; names are whole where there are bounds or it is a bias, and lack their ending otherwise."""
    if bounds is not None:
        return Matrix(name, dims, "F32", bounds)
    if name.endswith(".bias"):
        return Matrix(name, dims, "F32")
    full, last = f"{name}.weight", name.rpartition(".")[2]
    if len(dims) == 1:
        return Matrix(full, dims, "F32")
    if name.endswith(_PROJECTION):
        return Matrix(full, dims, "Q8_0", fill=Fill.PROJECTION)
    kind = model.type if last.endswith("_exps") else model.plain
    kind = model.embeddings if last in TABLES else "F32" if last == _ROUTER else kind
    fill = Fill.NOTHING if model.cycle is not None and leaves(name) else Fill.RANDOM
    return Matrix(full, dims, possible(kind, dims[-1]), fill=fill)


def _tables(shape: Shape) -> Iterator[Named]:
    yield "token_embd", (shape.vocab, shape.hidden), None
    yield "output_norm", (shape.hidden,), None
    if not shape.tied:
        yield "output", (shape.vocab, shape.hidden), None


def _layer(shape: Shape, number: int) -> Iterator[Named]:
    """Yield what a layer has; the one behind the last predicts a token more."""
    parts = chain(_norms(shape), _mixing(shape, number), _ffn(shape, number))
    if number == shape.layers:
        parts = chain(_predicting(shape.hidden), parts)
    for name, dims, bounds in parts:
        yield f"blk.{number}.{name}", dims, bounds


def _predicting(hidden: int) -> Iterator[Named]:
    for name in ("enorm", "hnorm", "shared_head_norm"):
        yield f"nextn.{name}", (hidden,), None
    yield _PROJECTION, (hidden, 2 * hidden), None


def _norms(shape: Shape) -> Iterator[Named]:
    before_ffn = "post_attention_norm" if shape.model_type == "gpt-oss" or shape.linear else "ffn_norm"
    around = ("post_attention_norm", "post_ffw_norm") if shape.model_type.startswith("gemma3") else ()
    for name in ("attn_norm", before_ffn, *around):
        yield name, (shape.hidden,), None
    if shape.model_type == "gpt-oss":
        yield "attn_sinks", (shape.heads,), None


def _mixing(shape: Shape, number: int) -> Iterator[Named]:
    """Yield what brings tokens together; a layer that predicts attends."""
    if number < shape.layers and not shape.attends(number):
        yield from _recurring(shape)
        return
    if shape.latents is not None:
        yield from latent_tensors(shape, shape.latents)
        return
    for name in ("attn_q_norm", "attn_k_norm") if shape.norms_heads else ():
        yield name, (shape.head_dim,), None
    hidden, keys = shape.hidden, shape.kv_heads * shape.head_dim
    yield from _biased(shape, "attn_q", shape.query_rows, hidden)
    yield from _biased(shape, "attn_k", keys, hidden)
    yield from _biased(shape, "attn_v", keys, hidden)
    yield from _biased(shape, "attn_output", hidden, shape.heads * shape.head_dim)


def _recurring(shape: Shape) -> list[Named]:
    """Return what a layer has that keeps a state."""
    if shape.linear is not None:
        return linear_tensors(shape, shape.linear)
    return [] if shape.mamba is None else mamba_tensors(shape, shape.mamba)


def _ffn(shape: Shape, number: int) -> Iterator[Named]:
    if not shape.experts or number < shape.dense_layers:
        yield from _gated(shape, shape.ffn)
        return
    hidden = shape.hidden
    yield from _biased(shape, _ROUTER, shape.experts, hidden)
    if shape.latents is not None:
        yield "exp_probs_b.bias", (shape.experts,), CORRECTIONS
    if shape.shared_ffn and shape.linear is not None:
        yield "ffn_gate_inp_shexp.weight", (hidden,), (-(hidden**-0.5), hidden**-0.5)
    if shape.shared_ffn:
        yield from shared_tensors(shape)
    yield from _gated(shape, shape.expert_ffn, "_exps", shape.experts)


def _gated(shape: Shape, ffn: int, ending: str = "", *experts: int) -> Iterator[Named]:
    """Yield a gated FFN of a width, or those of all experts."""
    yield from _biased(shape, f"ffn_gate{ending}", *experts, ffn, shape.hidden)
    yield from _biased(shape, f"ffn_up{ending}", *experts, ffn, shape.hidden)
    yield from _biased(shape, f"ffn_down{ending}", *experts, shape.hidden, ffn)


def _biased(shape: Shape, name: str, *dims: int) -> Iterator[Named]:
    """Yield a matrix, and its bias where the family has them."""
    yield name, dims, None
    if shape.model_type == "gpt-oss":
        yield f"{name}.bias", dims[:-1], None
