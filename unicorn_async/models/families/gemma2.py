"""Gemma 2.

Source: the models' config.json and transformers' `modeling_gemma2.py`.
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


def gemma2(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `Gemma2ForCausalLM`: norms on both sides, soft caps, every other layer a window."""
    if raw.flag("use_bidirectional_attention", False):
        raise UnsupportedModelError(f"{raw.where}: use_bidirectional_attention: only causal attention is supported")
    sizes = replace(Dimensions.read(raw, head_dim=256), norm_plus_one=not raw.traits.norms_hold_one)
    window, bias = raw.window("sliding_window", 4096), raw.flag("attention_bias", False)
    attention = sizes.attention(
        read_rotary(raw, sizes.head_dim),
        softmax_scale=raw.factor("query_pre_attn_scalar", 256) ** -0.5,
        post_norm="post_attention_layernorm",
        qkv_bias=bias,
        output_bias=bias,
        soft_cap=raw.optional("attn_logit_softcapping", 50.0),
    )
    ffn = sizes.gated_ffn(
        raw.activation("hidden_activation", "gelu_pytorch_tanh"),
        norm="pre_feedforward_layernorm",
        post_norm="post_feedforward_layernorm",
    )
    local = local_layers(raw, sizes.num_layers, 2)
    return decoder(
        raw,
        "Gemma2ForCausalLM",
        sizes,
        ((replace(attention, window=window if is_local else 0), ffn) for is_local in local),
        tied=True,
        embedding_scale=sizes.hidden_size**0.5,
        logit_soft_cap=raw.optional("final_logit_softcapping", 30.0),
    )
