"""OLMoE.

Source: the models' config.json and transformers' `modeling_olmoe.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.models.blocks.experts import Experts
from unicorn_async.models.families.dense import Dimensions, decoder
from unicorn_async.models.rotary_config import read_rotary
from unicorn_async.ops.routing import Routing

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.spec import ModelSpec


def olmoe(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of an `OlmoeForCausalLM`: experts in all layers, and norms of whole q and k."""
    if raw.has("clip_qkv"):
        raise UnsupportedModelError(f"{raw.where}: clip_qkv: limits of queries, keys and values are not supported")
    sizes = Dimensions.read(raw, norm_eps=1e-5)
    bias = raw.flag("attention_bias", False)
    rotary = read_rotary(raw, sizes.head_dim)
    attention = sizes.attention(rotary, whole_qk_norm=True, qkv_bias=bias, output_bias=bias)
    experts = Experts(
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        activation=raw.activation("hidden_act", "silu"),
        routing=Routing(
            raw.count("num_experts", 64),
            raw.count("num_experts_per_tok", 8),
            normalises=raw.flag("norm_topk_prob", False),
        ),
        norm=sizes.norm("post_attention_layernorm", "ffn_norm"),
    )
    return decoder(raw, "OlmoeForCausalLM", sizes, ((attention, experts),) * sizes.num_layers)
