"""Granite 3, dense.

Source: the models' config.json and transformers' `modeling_granite.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.models.families.dense import Dimensions, decoder, refuse_ffn_bias
from unicorn_async.models.rotary_config import read_rotary

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.spec import ModelSpec


def granite(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `GraniteForCausalLM`: embeddings, scores, branches and logits have factors."""
    refuse_ffn_bias(raw)
    sizes = replace(Dimensions.read(raw), residual_scale=raw.factor("residual_multiplier", 1.0))
    bias = raw.flag("attention_bias", False)
    attention = sizes.attention(
        read_rotary(raw, sizes.head_dim),
        softmax_scale=raw.factor("attention_multiplier", 1.0),
        qkv_bias=bias,
        output_bias=bias,
    )
    ffn = sizes.gated_ffn(raw.activation("hidden_act", "silu"))
    return decoder(
        raw,
        "GraniteForCausalLM",
        sizes,
        [(attention, ffn)] * sizes.num_layers,
        embedding_scale=raw.factor("embedding_multiplier", 1.0),
        logit_scale=1.0 / raw.factor("logits_scaling", 1.0),
    )
