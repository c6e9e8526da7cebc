"""GLM 4: the first ones (`glm-4-9b-chat-hf`), and those of April 2025 (`GLM-4-9B-0414`, `GLM-4-32B-0414`).

Source: the models' config.json and transformers' `modeling_glm.py` and `modeling_glm4.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.models.families.dense import Dimensions, decoder
from unicorn_async.models.rotary_config import read_rotary

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.spec import ModelSpec


def glm(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `GlmForCausalLM`: half of each head rotates, in neighbouring pairs."""
    return _decoder(raw, "GlmForCausalLM")


def glm4(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `Glm4ForCausalLM`: norms on both sides of attention and FFN as well."""
    return _decoder(
        raw, "Glm4ForCausalLM", attention_post_norm="post_self_attn_layernorm", ffn_post_norm="post_mlp_layernorm"
    )


def _decoder(
    raw: JsonConfig, architecture: str, *, attention_post_norm: str | None = None, ffn_post_norm: str | None = None
) -> ModelSpec:
    sizes = Dimensions.read(raw, head_dim=128, norm_eps=1.5625e-7)
    attention = sizes.attention(
        read_rotary(raw, sizes.head_dim, default_part=0.5),
        post_norm=attention_post_norm,
        qkv_bias=raw.flag("attention_bias", True),
        is_fused=raw.traits.is_qkv_fused,
        is_interleaved=True,
    )
    ffn = sizes.gated_ffn(raw.activation("hidden_act", "silu"), post_norm=ffn_post_norm, is_fused=True)
    return decoder(raw, architecture, sizes, [(attention, ffn)] * sizes.num_layers)
