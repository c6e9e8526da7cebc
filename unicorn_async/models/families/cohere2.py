"""Cohere 2 (Command R7B, Command A).

Source: the models' config.json and transformers' `modeling_cohere2.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.models.families.dense import Dimensions, decoder, local_layers
from unicorn_async.models.rotary_config import read_rotary

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.spec import ModelSpec


def cohere2(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `Cohere2ForCausalLM`: LayerNorm, a parallel FFN, global layers stand still."""
    sizes = replace(Dimensions.read(raw), norm_eps=raw.number("layer_norm_eps", 1e-5), norm_centred=True)
    window, bias = raw.window("sliding_window", 4096), raw.flag("attention_bias", False)
    if not raw.flag("use_parallel_block", True):
        raise UnsupportedModelError(f"{raw.where}: use_parallel_block: blocks one after the other are not supported")
    rotary = read_rotary(raw, sizes.head_dim)
    attentions = (
        sizes.attention(
            replace(rotary, is_still=not is_local),
            window=window if is_local else 0,
            qkv_bias=bias,
            output_bias=bias,
            is_interleaved=True,
        )
        for is_local in local_layers(raw, sizes.num_layers, 4)
    )
    ffn = sizes.gated_ffn(raw.activation("hidden_act", "silu"))
    return decoder(
        raw,
        "Cohere2ForCausalLM",
        sizes,
        ((attention, replace(ffn, norm=attention.norm, is_parallel=True)) for attention in attentions),
        tied=True,
        logit_scale=raw.factor("logit_scale", 0.0625),
    )
