"""RWKV-7: layers of time mixing and channel mixing, whose state does not grow, and no attention.

Source: RWKV-7 "Goose" (arXiv 2503.14456); config.json and names as flash-linear-attention has them
(`configuration_rwkv7.py`, `modeling_rwkv7.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.models.blocks.channel_mix import ChannelMix
from unicorn_async.models.blocks.declarations import Norm
from unicorn_async.models.blocks.embedding import Embedding
from unicorn_async.models.blocks.head import Head
from unicorn_async.models.blocks.time_mix import Ranks, TimeMix
from unicorn_async.models.spec import Layer, ModelSpec
from unicorn_async.ops.time_mix import TimeMixShape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.checkpoint.json_config import JsonConfig

# Keys that would change the results, with the values that change nothing.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "attn": (),
    "hidden_act": ("sqrelu",),
    "norm_bias": (True,),
    "norm_first": (True,),
}


def rwkv7(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of an `RWKV7ForCausalLM`."""
    raw.refuse_unread(_NEUTRAL)
    hidden_size, eps = raw.count("hidden_size"), raw.number("norm_eps", 1e-5)
    shape = _shape(raw, hidden_size)
    ranks = Ranks(
        decay=_rank(raw, "decay_low_rank_dim", shape, 2.5),
        rate=_rank(raw, "a_low_rank_dim", shape, 2.5),
        blend=_rank(raw, "v_low_rank_dim", shape, 1.7),
        gate=_rank(raw, "gate_low_rank_dim", shape, 5.0, grows=False),
    )

    def norm(name: str, dest: str) -> Norm:
        return Norm(f"{name}.weight", dest, hidden_size, eps, centred=True, bias=f"{name}.bias")

    channels = ChannelMix(shape, _width(raw, hidden_size), norm("ffn_norm", "ffn_norm"))
    first = TimeMix(
        shape,
        ranks,
        norm("attn_norm", "input_norm"),
        shape.head_dim * eps,
        is_first=True,
        are_shifts_stacked=raw.traits.are_shifts_stacked,
        is_bonus_flat=raw.traits.is_bonus_flat,
        are_networks_turned=raw.traits.are_networks_turned,
    )
    mixes = (first, replace(first, is_first=False))
    vocab_size = raw.count("vocab_size")
    return ModelSpec(
        architecture="RWKV7ForCausalLM",
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        max_position=raw.count("max_position_embeddings", 2048),
        embedding=Embedding(
            vocab_size,
            hidden_size,
            norm=norm("model.layers.0.pre_norm", "embed_norm"),
            name="model.embeddings.weight",
        ),
        layers=tuple(
            Layer((mixes[number > 0], channels), f"model.layers.{number}.") for number in range(raw.num_layers())
        ),
        head=Head(vocab_size, hidden_size, norm("model.norm", "norm"), is_tied=raw.flag("tie_word_embeddings", False)),
        bos_token_id=next(iter(raw.token_ids("bos_token_id")), None),
        eos_token_ids=raw.token_ids("eos_token_id"),
        unread=("model.layers.0.attn.v_lora.",),
        carried_size=hidden_size,
    )


def _shape(raw: JsonConfig, hidden_size: int) -> TimeMixShape:
    """Return the heads: of `head_dim` elements, or as many as `num_heads` says."""
    if raw.has("head_dim") or not raw.has("num_heads"):
        head_dim = raw.count("head_dim", 64)
        num_heads = hidden_size // head_dim
    else:
        num_heads = raw.count("num_heads")
        head_dim = hidden_size // num_heads
    if not num_heads or num_heads * head_dim != hidden_size:
        raise CheckpointError(f"{raw.where}: hidden_size {hidden_size} is no multiple of heads of {head_dim}")
    sizes = raw.raw.get("value_dim")
    if sizes is not None and any(size != hidden_size for size in (sizes if isinstance(sizes, list) else [sizes])):
        raise UnsupportedModelError(
            f"{raw.where}: value_dim: {str(sizes)[:100]} is not supported, only the hidden size {hidden_size}"
        )
    return TimeMixShape(num_heads, head_dim)


def _rank(raw: JsonConfig, name: str, shape: TimeMixShape, times: float, *, grows: bool = True) -> int:
    """Return how wide a small network is; where the file does not say it, by the root of the hidden size."""
    factor = times * shape.head_dim / 64 if grows else times
    default = max(32, round(factor * shape.columns**0.5 / 32) * 32)
    return raw.count(name, default) if raw.has(name) else default


def _width(raw: JsonConfig, hidden_size: int) -> int:
    """Return the columns of the channel mixing: `intermediate_size`, or `hidden_ratio` times the hidden size."""
    if raw.has("intermediate_size"):
        return raw.count("intermediate_size")
    width = int(hidden_size * (raw.factor("hidden_ratio") if raw.has("hidden_ratio") else 4.0))
    return -(-width // 32) * 32
