"""Qwen 3, mixtures of experts.

Source: the models' config.json and transformers' `modeling_qwen3_moe.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.models.blocks.experts import Experts
from unicorn_async.models.families.dense import Dimensions, decoder, window_of
from unicorn_async.models.rotary_config import read_rotary
from unicorn_async.ops.routing import Routing

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.spec import ModelSpec


def qwen3_moe(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `Qwen3MoeForCausalLM`."""
    if raw.flag("use_sliding_window", False) and window_of(raw):
        raise UnsupportedModelError(f"{raw.where}: use_sliding_window: windows of Qwen3Moe are not supported")
    sizes = Dimensions.read(raw)
    bias = raw.flag("attention_bias", False)
    rotary = read_rotary(raw, sizes.head_dim)
    attention = sizes.attention(rotary, qk_norm=True, qkv_bias=bias, output_bias=bias)
    routing = Routing(
        raw.count("num_experts", 128),
        raw.count("num_experts_per_tok", 8),
        normalises=raw.flag("norm_topk_prob", False),
    )
    experts = Experts(
        hidden_size=sizes.hidden_size,
        intermediate_size=raw.count("moe_intermediate_size", 768),
        activation=raw.activation("hidden_act", "silu"),
        routing=routing,
        norm=sizes.norm("post_attention_layernorm", "ffn_norm"),
    )
    dense = sizes.gated_ffn(experts.activation)
    layers = ((attention, experts if has_experts else dense) for has_experts in _mixtures(raw, sizes.num_layers))
    return decoder(raw, "Qwen3MoeForCausalLM", sizes, layers)


def _mixtures(raw: JsonConfig, num_layers: int) -> list[bool]:
    """Return which layers have experts: each `decoder_sparse_step`-th but for `mlp_only_layers`."""
    step, dense = raw.count("decoder_sparse_step", 1), raw.indices("mlp_only_layers") or ()
    return [(layer + 1) % step == 0 and layer not in dense for layer in range(num_layers)]
