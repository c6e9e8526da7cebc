"""RWKV-7 as its authors publish it: tensors of other names, and no config.json."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.checkpoint.source_tensor import SourceTensor

_MARK = "blocks.0.att.r_k"
_MAX_POSITION = 4096  # that the family's models were trained on at least; no file says it
_WHOLE = {"emb.weight": "model.embeddings.weight", "head.weight": "lm_head.weight"}
_LAYER = re.compile(r"blocks\.(\d{1,5})\.(.+)", re.DOTALL)
_MODULES = {
    "ln0": "pre_norm",
    "ln1": "attn_norm",
    "ln2": "ffn_norm",
    "att.ln_x": "attn.g_norm",
    "att.receptance": "attn.r_proj",
    "att.key": "attn.k_proj",
    "att.value": "attn.v_proj",
    "att.output": "attn.o_proj",
}
_NETWORK = re.compile(r"att\.([wavg])([012])")
_SIDES = {"0": "2.bias", "1": "0.weight", "2": "2.weight"}
_RANKS = {"decay_low_rank_dim": "w1", "a_low_rank_dim": "a1", "v_low_rank_dim": "v1", "gate_low_rank_dim": "g1"}


def is_published(tensors: Mapping[str, object]) -> bool:
    """Whether tensors have the names that the family's authors give them."""
    return _MARK in tensors


def published_name(name: str) -> str:
    """Return the name in the models' layout of a tensor of such a checkpoint; its own where it has none."""
    if name in _WHOLE:
        return _WHOLE[name]
    if name.startswith("ln_out."):
        return name.replace("ln_out", "model.norm", 1)
    found = _LAYER.fullmatch(name)
    if found is None:
        return name
    prefix, part = f"model.layers.{int(found[1])}.", found[2]
    if (network := _NETWORK.fullmatch(part)) is not None:
        return f"{prefix}attn.{network[1]}_lora.lora.{_SIDES[network[2]]}"
    module, _, kind = part.rpartition(".")
    if module in _MODULES:
        return f"{prefix}{_MODULES[module]}.{kind}"
    return prefix + (part.replace("att.", "attn.", 1) if part.startswith("att.") else part)


def has_turned_networks(tensors: Mapping[str, SourceTensor]) -> bool:
    """Whether small networks have rows for columns, by the models' names: the authors' own have, converted ones not."""
    first = tensors.get("model.layers.0.attn.w_lora.lora.0.weight")
    table = tensors.get("model.embeddings.weight")
    return first is not None and table is not None and first.shape[:1] == table.shape[-1:]


def published_config(shapes: Mapping[str, tuple[int, ...]], where: str) -> dict[str, object]:
    """Return the keys of a config.json for tensors of these shapes, by their published names; `where` is their file.

    Raises:
        CheckpointError: a tensor that says a size is missing, or has not two dimensions.
    """

    def shape(name: str) -> tuple[int, int]:
        found = shapes.get(name)
        if found is None:
            raise CheckpointError(f"{where}: tensor {name!r} is missing")
        if len(found) != 2:
            raise CheckpointError(f"{where}: tensor {name!r}: expected two dimensions, got shape {list(found)}")
        return found[0], found[1]

    vocab_size, hidden_size = shape("emb.weight")
    layers = {int(match[1]) for name in shapes if (match := _LAYER.fullmatch(name))}

    def rank(name: str) -> int:
        rows, columns = shape(f"blocks.{int(name == 'v1' and len(layers) > 1)}.att.{name}")
        return columns if rows == hidden_size else rows

    return {
        "architectures": ["RWKV7ForCausalLM"],
        "hidden_size": hidden_size,
        "vocab_size": vocab_size,
        "num_hidden_layers": max(layers) + 1,
        "intermediate_size": shape("blocks.0.ffn.key.weight")[0],
        "head_dim": shape(_MARK)[1],
        "max_position_embeddings": _MAX_POSITION,
        **{key: rank(name) for key, name in _RANKS.items()},
    }
