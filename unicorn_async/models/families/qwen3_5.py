"""Qwen 3.5: layers of linear attention by the gated delta rule, and gated attention among them; dense, or of experts.

Its rotary embeddings have three axes, of which text alone has one position. Source: the models' config.json and
transformers' `configuration_qwen3_5.py`, `modeling_qwen3_5.py` and `modeling_qwen3_5_moe.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.json_config import JsonConfig
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.models.blocks.experts import Experts
from unicorn_async.models.blocks.gated_delta_net import GatedDeltaNet
from unicorn_async.models.families.dense import Dimensions, decoder, layer_kinds, predictor
from unicorn_async.models.families.qwen_moe import shared_expert
from unicorn_async.models.rotary_config import read_rotary
from unicorn_async.ops.delta_rule import DeltaShape
from unicorn_async.ops.routing import Routing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.models.blocks.block import Block
    from unicorn_async.models.spec import ModelSpec

_MOST_TAPS = 16
_KINDS = ("linear_attention", "full_attention")
_PREDICTOR = {
    "embedding_norm": "pre_fc_norm_embedding",
    "hidden_norm": "pre_fc_norm_hidden",
    "head_norm": "norm",
    "projection": "fc",
    "layer": "layers.0.",
}


def qwen3_5(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `Qwen3_5ForCausalLM`."""
    return recurrent_decoder(raw, "Qwen3_5ForCausalLM", *_dense(raw))


def qwen3_5_multimodal(raw: JsonConfig) -> ModelSpec:
    """Read the text part of the config.json of a `Qwen3_5ForConditionalGeneration`."""
    text = _text_part(raw)
    return recurrent_decoder(text, "Qwen3_5ForConditionalGeneration", *_dense(text))


def qwen3_5_moe(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `Qwen3_5MoeForCausalLM`."""
    return recurrent_decoder(raw, "Qwen3_5MoeForCausalLM", *_experts(raw))


def qwen3_5_moe_multimodal(raw: JsonConfig) -> ModelSpec:
    """Read the text part of the config.json of a `Qwen3_5MoeForConditionalGeneration`."""
    text = _text_part(raw)
    return recurrent_decoder(text, "Qwen3_5MoeForConditionalGeneration", *_experts(text))


def _text_part(raw: JsonConfig) -> JsonConfig:
    text = raw.section("text_config")
    is_tied = any(part.flag("tie_word_embeddings", False) for part in (raw, text))
    return JsonConfig({**text.raw, "tie_word_embeddings": is_tied}, text.where, text.traits)


def recurrent_sizes(raw: JsonConfig, intermediate_size: int | None = None) -> Dimensions:
    """Read the sizes; an `intermediate_size` that is given is not read."""
    sizes = Dimensions.read(raw, head_dim=256, intermediate_size=intermediate_size)
    return replace(sizes, norm_plus_one=not raw.traits.norms_hold_one)


def _dense(raw: JsonConfig) -> tuple[Dimensions, list[Block]]:
    sizes = recurrent_sizes(raw)
    return sizes, [sizes.gated_ffn(raw.activation("hidden_act", "silu"))] * sizes.num_layers


def _experts(raw: JsonConfig) -> tuple[Dimensions, list[Block]]:
    if not raw.flag("norm_topk_prob", True):
        raise UnsupportedModelError(f"{raw.where}: norm_topk_prob: false: weights that do not add up to one here")
    width = raw.count("moe_intermediate_size", 512)
    sizes = recurrent_sizes(raw, width)
    experts = Experts(
        hidden_size=sizes.hidden_size,
        intermediate_size=width,
        activation=raw.activation("hidden_act", "silu"),
        routing=Routing(raw.count("num_experts", 256), raw.count("num_experts_per_tok", 8), normalises=True),
        norm=sizes.norm("post_attention_layernorm", "ffn_norm"),
        shared=shared_expert(raw, 512),
        is_stacked=not raw.traits.are_experts_apart,
    )
    return sizes, [experts] * sizes.num_layers


def recurrent_decoder(
    raw: JsonConfig,
    architecture: str,
    sizes: Dimensions,
    ffns: Sequence[Block],
    *,
    vocab_size: int = 248_320,
    is_grouped: bool = False,
) -> ModelSpec:
    """Read the attention of both kinds, and put it in front of each layer's FFN; `is_grouped` is for the linear one."""
    if not raw.flag("attn_output_gate", True):
        raise UnsupportedModelError(
            f"{raw.where}: attn_output_gate: false: attention without its gate is not supported"
        )
    bias = raw.flag("attention_bias", False)
    rotary = read_rotary(raw, sizes.head_dim, default_part=0.25)
    attention = replace(
        sizes.attention(rotary, qk_norm=True, qkv_bias=bias, output_bias=bias),
        is_gated=True,
    )
    norm = sizes.norm("input_layernorm", "input_norm")
    linear = GatedDeltaNet(
        sizes.hidden_size, _shape(raw), norm, sizes.norm_eps, is_grouped, is_grouped and raw.traits.are_gates_apart
    )
    blocks = (attention if attends else linear for attends in _attending(raw, sizes.num_layers))
    layers = list(zip(blocks, ffns, strict=True))
    spec = decoder(raw, architecture, sizes, layers, vocab_size=vocab_size, max_position=32_768)
    forms = (
        predictor(spec, sizes, (attention, ffn), prefix="mtp.", names=_PREDICTOR, reads_normed=True)
        for ffn in _forms(ffns[-1])
    )
    return replace(spec, predictors=tuple(forms))


def _forms(ffn: Block) -> tuple[Block, ...]:
    """Return a predictor's FFN as it may be on disk: its experts are stacked like those of layers, or unlike them."""
    return (ffn, replace(ffn, is_stacked=not ffn.is_stacked)) if isinstance(ffn, Experts) else (ffn,)


def _shape(raw: JsonConfig) -> DeltaShape:
    if raw.text("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(f"{raw.where}: hidden_act: only silu is supported behind the convolution")
    num_taps = raw.count("linear_conv_kernel_dim", 4)
    if not 2 <= num_taps <= _MOST_TAPS:
        raise UnsupportedModelError(f"{raw.where}: linear_conv_kernel_dim: expected 2 to {_MOST_TAPS}, got {num_taps}")
    return DeltaShape(
        num_key_heads=raw.count("linear_num_key_heads", 16),
        num_value_heads=raw.count("linear_num_value_heads", 32),
        key_dim=raw.count("linear_key_head_dim", 128),
        value_dim=raw.count("linear_value_head_dim", 128),
        num_taps=num_taps,
        is_tiled=raw.traits.are_value_heads_tiled,
        has_rates=raw.traits.has_decay_rates,
    )


def _attending(raw: JsonConfig, num_layers: int) -> list[bool]:
    """Return which layers attend to all: by `layer_types`, or each `full_attention_interval`-th."""
    kinds = layer_kinds(raw, num_layers, _KINDS)
    if kinds is not None:
        return [kind == "full_attention" for kind in kinds]
    interval = raw.count("full_attention_interval", 4)
    return [(layer + 1) % interval == 0 for layer in range(num_layers)]
