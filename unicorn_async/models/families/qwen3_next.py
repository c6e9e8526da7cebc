"""Qwen3-Next: Qwen 3.5's layers of before, of experts or dense, whose linear attention has its weights in groups.

Source: the models' config.json and transformers' `modeling_qwen3_next.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.models.blocks.experts import Experts
from unicorn_async.models.families.qwen3_5 import recurrent_decoder, recurrent_sizes
from unicorn_async.models.families.qwen_moe import mixtures, shared_expert
from unicorn_async.ops.routing import Routing

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.spec import ModelSpec


def qwen3_next(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `Qwen3NextForCausalLM`."""
    sizes = recurrent_sizes(raw, raw.count("intermediate_size", 5632))
    experts = Experts(
        hidden_size=sizes.hidden_size,
        intermediate_size=raw.count("moe_intermediate_size", 512),
        activation=raw.activation("hidden_act", "silu"),
        routing=Routing(
            raw.count("num_experts", 512),
            raw.count("num_experts_per_tok", 10),
            normalises=raw.flag("norm_topk_prob", True),
        ),
        norm=sizes.norm("post_attention_layernorm", "ffn_norm"),
        shared=shared_expert(raw, 512),
    )
    dense = sizes.gated_ffn(experts.activation)
    ffns = [experts if has_experts else dense for has_experts in mixtures(raw, sizes.num_layers)]
    return recurrent_decoder(raw, "Qwen3NextForCausalLM", sizes, ffns, vocab_size=151_936, is_grouped=True)
