"""Mixtral.

Source: the models' config.json and transformers' `modeling_mixtral.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.models.blocks.experts import Experts
from unicorn_async.models.families.dense import Dimensions, decoder, window_of
from unicorn_async.models.rotary_config import read_rotary
from unicorn_async.ops.routing import Routing

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.spec import ModelSpec

_PARTS = (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2"))


def mixtral(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `MixtralForCausalLM`: experts in all layers, whose weights add up to one."""
    sizes = Dimensions.read(raw, norm_eps=1e-5)
    rotary = read_rotary(raw, sizes.head_dim, default_base=1_000_000.0)
    attention = sizes.attention(rotary, window=window_of(raw))
    routing = Routing(raw.count("num_local_experts", 8), raw.count("num_experts_per_tok", 2), normalises=True)
    experts = Experts(
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        activation=raw.activation("hidden_act", "silu"),
        routing=routing,
        norm=sizes.norm("post_attention_layernorm", "ffn_norm"),
    )
    layers = ((attention, experts),) * sizes.num_layers
    return decoder(raw, "MixtralForCausalLM", sizes, layers, names=_names(routing.num_experts))


def _names(num_experts: int) -> tuple[tuple[str, str], ...]:
    parts = (
        (f"mlp.experts.{expert}.{part}", f"block_sparse_moe.experts.{expert}.{name}")
        for expert in range(num_experts)
        for part, name in _PARTS
    )
    return (("mlp.gate", "block_sparse_moe.gate"), *parts)
