"""The tensors that a decoder needs: their names on disk and their places on the device.

Query, key and value projections lie in one destination, as do gate and up: one dispatch reads each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.plan import WantedTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unicorn_async.config import ModelConfig

EMBED_LAYER = -1
_ATTENTION_MATRICES, _FFN_MATRICES = ("qkv", "o"), ("gate_up", "down")
_DERIVED = (".rotary_emb.inv_freq", ".self_attn.masked_bias", ".self_attn.bias")  # follow from config.json


def wanted_tensors(config: ModelConfig) -> tuple[WantedTensor, ...]:
    """Return all tensors in the order in which a first prompt needs them."""
    wanted = [_table("model.embed_tokens.weight", "embed", config, EMBED_LAYER)]
    for layer in range(config.num_layers):
        wanted += _layer(config, layer)
    wanted.append(_vector("model.norm.weight", "norm", config.hidden_size, config.num_layers))
    if not config.tie_embeddings:
        wanted.append(_table("lm_head.weight", "head", config, config.num_layers))
    return tuple(wanted)


def check_unused(names: Iterable[str], config: ModelConfig) -> None:
    """Check that what a checkpoint has beyond the wanted tensors does not belong to the decoder.

    Raises:
        UnsupportedModelError: a tensor would change the result, and nothing here computes with it.
    """
    for name in names:
        unused_head = config.tie_embeddings and name == "lm_head.weight"
        if not unused_head and not name.endswith(_DERIVED):
            raise UnsupportedModelError(
                f"tensor {name!r}: {config.architecture} as it is supported here has no such tensor"
            )


def head_name(config: ModelConfig) -> str:
    """Return the destination that holds the output head's matrix."""
    return "embed" if config.tie_embeddings else "head"


def memory_group(name: str, config: ModelConfig) -> MemoryGroup:
    """Return what a destination is read for; a table that serves as embeddings and as head counts as the head."""
    if name == head_name(config):
        return MemoryGroup.HEAD
    if name == "embed":
        return MemoryGroup.EMBEDDINGS
    part = name.rpartition(".")[2]
    if part in _FFN_MATRICES:
        return MemoryGroup.FFN
    return MemoryGroup.ATTENTION if part in _ATTENTION_MATRICES else MemoryGroup.NORMS


def _layer(config: ModelConfig, layer: int) -> Iterator[WantedTensor]:
    source, dest = f"model.layers.{layer}.", f"layers.{layer}."
    hidden, head_dim = config.hidden_size, config.head_dim
    for name, target in _norm_names(config):
        yield _vector(f"{source}{name}.weight", dest + target, hidden, layer)
    if config.qk_norm:
        for part in "qk":
            yield _vector(f"{source}self_attn.{part}_norm.weight", f"{dest}{part}_norm", head_dim, layer)
    row = 0
    for part, heads in (("q", config.num_heads), ("k", config.num_kv_heads), ("v", config.num_kv_heads)):
        rows = heads * head_dim
        yield _matrix(f"{source}self_attn.{part}_proj.weight", f"{dest}qkv", rows, hidden, layer, row)
        if config.qkv_bias:
            yield _vector(f"{source}self_attn.{part}_proj.bias", f"{dest}qkv_bias", rows, layer, row)
        row += rows
    yield _matrix(f"{source}self_attn.o_proj.weight", f"{dest}o", hidden, config.num_heads * head_dim, layer)
    if config.output_bias:
        yield _vector(f"{source}self_attn.o_proj.bias", f"{dest}o_bias", hidden, layer)
    width = config.intermediate_size
    for index, part in enumerate(("gate", "up")):
        yield _matrix(f"{source}mlp.{part}_proj.weight", f"{dest}gate_up", width, hidden, layer, index * width)
    yield _matrix(f"{source}mlp.down_proj.weight", f"{dest}down", hidden, width, layer)


def _norm_names(config: ModelConfig) -> tuple[tuple[str, str], ...]:
    if config.post_norms:
        return (
            ("input_layernorm", "input_norm"),
            ("post_attention_layernorm", "post_attention_norm"),
            ("pre_feedforward_layernorm", "ffn_norm"),
            ("post_feedforward_layernorm", "post_ffn_norm"),
        )
    return (("input_layernorm", "input_norm"), ("post_attention_layernorm", "ffn_norm"))


def _matrix(name: str, dest: str, rows: int, columns: int, layer: int, row_offset: int = 0) -> WantedTensor:
    return WantedTensor(name, (rows, columns), layer, dest, row_offset, as_f32=False)


def _table(name: str, dest: str, config: ModelConfig, layer: int) -> WantedTensor:
    return WantedTensor(name, (config.vocab_size, config.hidden_size), layer, dest, is_table=True)


def _vector(name: str, dest: str, size: int, layer: int, row_offset: int = 0) -> WantedTensor:
    return WantedTensor(name, (size,), layer, dest, row_offset, as_f32=True)
