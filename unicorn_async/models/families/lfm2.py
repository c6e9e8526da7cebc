"""LFM2: short convolutions, and some layers of attention among them.

Source: the models' config.json and transformers' `configuration_lfm2.py` and `modeling_lfm2.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.models.blocks.short_conv import ShortConv
from unicorn_async.models.families.dense import Dimensions, decoder, layer_kinds
from unicorn_async.models.rotary_config import read_rotary

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.spec import ModelSpec

_MOST_TAPS = 16
_NAMES = (
    ("self_attn.o_proj", "self_attn.out_proj"),
    ("self_attn.q_norm", "self_attn.q_layernorm"),
    ("self_attn.k_norm", "self_attn.k_layernorm"),
    ("mlp.gate_proj", "feed_forward.w1"),
    ("mlp.up_proj", "feed_forward.w3"),
    ("mlp.down_proj", "feed_forward.w2"),
)


def lfm2(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of an `Lfm2ForCausalLM`."""
    num_taps = raw.count("conv_L_cache", 3)
    if not 2 <= num_taps <= _MOST_TAPS:
        raise UnsupportedModelError(f"{raw.where}: conv_L_cache: expected 2 to {_MOST_TAPS}, got {num_taps}")
    ffn_size = raw.count("block_ff_dim", raw.count("intermediate_size", 12288))
    sizes = Dimensions.read(raw, intermediate_size=_adjusted(raw, ffn_size))
    sizes = replace(sizes, norm_eps=raw.number("norm_eps", 1e-5))
    rotary = read_rotary(raw, sizes.head_dim, default_base=1_000_000.0)
    attention = sizes.attention(rotary, norm="operator_norm", qk_norm=True)
    norm, has_bias = sizes.norm("operator_norm", "input_norm"), raw.flag("conv_bias", False)
    conv = ShortConv(sizes.hidden_size, num_taps, norm, has_bias=has_bias)
    ffn = sizes.gated_ffn(raw.activation("hidden_act", "silu"), norm="ffn_norm")
    layers = [(attention if attends else conv, ffn) for attends in _attending(raw, sizes.num_layers)]
    return decoder(
        raw,
        "Lfm2ForCausalLM",
        sizes,
        layers,
        max_position=128_000,
        tied=raw.flag("tie_embedding", True),
        norm="model.embedding_norm",
        names=_NAMES,
    )


def _attending(raw: JsonConfig, num_layers: int) -> list[bool]:
    """Return which layers attend: by `layer_types`, by `full_attn_idxs`, or all."""
    kinds = layer_kinds(raw, num_layers, ("conv", "full_attention"))
    if kinds is not None:
        return [kind == "full_attention" for kind in kinds]
    indices = raw.indices("full_attn_idxs")
    if indices is not None and not all(index < num_layers for index in indices):
        raise CheckpointError(f"{raw.where}: full_attn_idxs: expected less than {num_layers}, got {max(indices)}")
    return [indices is None or layer in indices for layer in range(num_layers)]


def _adjusted(raw: JsonConfig, size: int) -> int:
    """Return the FFN's size; the file may have one of a network without a gate."""
    if not raw.flag("block_auto_adjust_ff_dim", True):
        return size
    size = int(raw.factor("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3))
    multiple = raw.count("block_multiple_of", 256)
    return multiple * -(-size // multiple)
