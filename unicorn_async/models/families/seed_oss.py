"""Seed-OSS.

Source: the models' config.json and transformers' `modeling_seed_oss.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.models.families.dense import Dimensions, decoder, refuse_ffn_bias
from unicorn_async.models.rotary_config import read_rotary

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.spec import ModelSpec


def seed_oss(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `SeedOssForCausalLM`: Llama's layout with biases of queries, keys and values."""
    refuse_ffn_bias(raw)
    sizes = Dimensions.read(raw, head_dim=128)
    attention = sizes.attention(
        read_rotary(raw, sizes.head_dim),
        qkv_bias=raw.flag("attention_bias", True),
        output_bias=raw.flag("attention_out_bias", False),
    )
    ffn = sizes.gated_ffn(raw.activation("hidden_act", "silu"))
    return decoder(raw, "SeedOssForCausalLM", sizes, [(attention, ffn)] * sizes.num_layers)
