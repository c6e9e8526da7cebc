"""Gemma 3, text.

Source: the models' config.json and transformers' `modeling_gemma3.py`. Keys that a released config.json leaves out have
the defaults of transformers' `Gemma3TextConfig`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.config import ModelConfig, RotaryConfig
from unicorn_async.models.families.decoder_config import checked_heads, layer_kinds

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig


def gemma3_text(raw: JsonConfig) -> ModelConfig:
    """Read the config.json of a `Gemma3ForCausalLM`."""
    return _decoder(raw, "Gemma3ForCausalLM")


def gemma3_multimodal(raw: JsonConfig) -> ModelConfig:
    """Read the text part of the config.json of a `Gemma3ForConditionalGeneration`."""
    return _decoder(raw.section("text_config"), "Gemma3ForConditionalGeneration")


def _decoder(raw: JsonConfig, architecture: str) -> ModelConfig:
    num_layers = raw.num_layers(26)
    num_heads, num_kv_heads = checked_heads(raw, default_heads=8, default_kv_heads=4)
    window = raw.count("sliding_window", 4096)
    local = _local_layers(raw, num_layers)
    global_rotary, local_rotary = _rotaries(raw)
    hidden_size = raw.count("hidden_size", 2304)
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=raw.count("head_dim", 256),
        intermediate_size=raw.count("intermediate_size", 9216),
        vocab_size=raw.count("vocab_size", 262_208),
        max_position=raw.count("max_position_embeddings", 131_072),
        norm_eps=raw.number("rms_norm_eps", 1e-6),
        activation=raw.activation("hidden_activation", "gelu_pytorch_tanh"),
        tie_embeddings=raw.flag("tie_word_embeddings", True),
        layer_windows=tuple(window if is_local else 0 for is_local in local),
        layer_rotary=tuple(local_rotary if is_local else global_rotary for is_local in local),
        softmax_scale=raw.number("query_pre_attn_scalar", 256) ** -0.5,
        embedding_scale=hidden_size**0.5,
        norm_plus_one=raw.flag("norm_plus_one", True),
        post_norms=True,
        qk_norm=True,
        qkv_bias=raw.flag("attention_bias", False),
        output_bias=raw.flag("attention_bias", False),
        attention_soft_cap=raw.number("attn_logit_softcapping") if raw.has("attn_logit_softcapping") else 0.0,
        logit_soft_cap=raw.number("final_logit_softcapping") if raw.has("final_logit_softcapping") else 0.0,
        bos_token_id=next(iter(raw.token_ids("bos_token_id")), None),
        eos_token_ids=raw.token_ids("eos_token_id"),
    )


def _local_layers(raw: JsonConfig, num_layers: int) -> list[bool]:
    kinds = layer_kinds(raw, num_layers)
    if kinds is not None:
        return [kind == "sliding_attention" for kind in kinds]
    pattern = raw.count("sliding_window_pattern", 6)
    return [(layer + 1) % pattern != 0 for layer in range(num_layers)]


def _rotaries(raw: JsonConfig) -> tuple[RotaryConfig, RotaryConfig]:
    if raw.has("rope_parameters"):
        parameters = raw.section("rope_parameters")
        if parameters.has("full_attention"):
            full, sliding = parameters.section("full_attention"), parameters.section("sliding_attention")
            return (
                full.rotary_scaling(full.number("rope_theta", 1e6)),
                sliding.rotary_scaling(sliding.number("rope_theta", 1e4)),
            )
    return raw.rotary(default_base=1e6), RotaryConfig(raw.number("rope_local_base_freq", 1e4))
