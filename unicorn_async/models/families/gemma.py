"""Gemma 3, text.

Source: the models' config.json and transformers' `modeling_gemma3.py`. Keys that a released config.json leaves out have
the defaults of transformers' `Gemma3TextConfig`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.models.families.dense import Dimensions, checked_heads, decoder, local_layers
from unicorn_async.models.rotary_config import read_section_rotary, read_whole_rotary
from unicorn_async.rotary import RotaryConfig

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.blocks.attention import Attention
    from unicorn_async.models.blocks.block import Block
    from unicorn_async.models.blocks.gated_ffn import GatedFFN
    from unicorn_async.models.spec import ModelSpec


def gemma3_text(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `Gemma3ForCausalLM`."""
    return _decoder(raw, "Gemma3ForCausalLM")


def gemma3_multimodal(raw: JsonConfig) -> ModelSpec:
    """Read the text part of the config.json of a `Gemma3ForConditionalGeneration`."""
    return _decoder(raw.section("text_config"), "Gemma3ForConditionalGeneration")


def gemma_sizes(raw: JsonConfig, *, num_layers: int, norm_plus_one: bool) -> Dimensions:
    """Read the sizes of a Gemma 3 or 4, of `num_layers` where the file doesn't say."""
    num_heads, num_kv_heads = checked_heads(raw, default_heads=8, default_kv_heads=4)
    return Dimensions(
        num_layers=raw.num_layers(num_layers),
        hidden_size=raw.count("hidden_size", 2304),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=raw.count("head_dim", 256),
        intermediate_size=raw.count("intermediate_size", 9216),
        norm_eps=raw.number("rms_norm_eps", 1e-6),
        norm_plus_one=norm_plus_one,
    )


def gemma_ffn(raw: JsonConfig, sizes: Dimensions) -> GatedFFN:
    """Return the dense network of a layer, between norms."""
    return sizes.gated_ffn(
        raw.activation("hidden_activation", "gelu_pytorch_tanh"),
        norm="pre_feedforward_layernorm",
        post_norm="post_feedforward_layernorm",
    )


def gemma_decoder(
    raw: JsonConfig,
    architecture: str,
    sizes: Dimensions,
    layers: Iterable[tuple[Block, ...]],
    *,
    vocab_size: int,
    names: tuple[tuple[str, str], ...] = (),
) -> ModelSpec:
    """Put layers between embeddings that are scaled, and logits that may be capped."""
    return decoder(
        raw,
        architecture,
        sizes,
        layers,
        vocab_size=vocab_size,
        max_position=131_072,
        tied=True,
        embedding_scale=sizes.hidden_size**0.5,
        logit_soft_cap=raw.factor("final_logit_softcapping") if raw.has("final_logit_softcapping") else 0.0,
        names=names,
    )


def _decoder(raw: JsonConfig, architecture: str) -> ModelSpec:
    sizes = gemma_sizes(raw, num_layers=26, norm_plus_one=not raw.traits.norms_hold_one)
    window, bias = raw.window("sliding_window", 4096), raw.flag("attention_bias", False)
    global_rotary, local_rotary = _rotaries(raw, sizes.head_dim)
    scale = raw.factor("query_pre_attn_scalar", 256) ** -0.5
    cap = raw.factor("attn_logit_softcapping") if raw.has("attn_logit_softcapping") else 0.0

    def attention(*, is_local: bool) -> Attention:
        return sizes.attention(
            local_rotary if is_local else global_rotary,
            window=window if is_local else 0,
            softmax_scale=scale,
            post_norm="post_attention_layernorm",
            qk_norm=True,
            qkv_bias=bias,
            output_bias=bias,
            soft_cap=cap,
        )

    ffn = gemma_ffn(raw, sizes)
    layers = ((attention(is_local=is_local), ffn) for is_local in local_layers(raw, sizes.num_layers, 6))
    return gemma_decoder(raw, architecture, sizes, layers, vocab_size=262_208)


def _rotaries(raw: JsonConfig, head_dim: int) -> tuple[RotaryConfig, RotaryConfig]:
    if raw.has("rope_parameters"):
        parameters = raw.section("rope_parameters")
        if parameters.has("full_attention"):
            full, sliding = parameters.section("full_attention"), parameters.section("sliding_attention")
            return (
                read_section_rotary(full, head_dim, 1e6, raw),
                read_section_rotary(sliding, head_dim, 1e4, raw),
            )
    return read_whole_rotary(raw, head_dim, 1e6), RotaryConfig(raw.number("rope_local_base_freq", 1e4))
