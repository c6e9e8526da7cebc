"""ERNIE 4.5, dense (`ERNIE-4.5-0.3B-PT`) and of experts (`ERNIE-4.5-21B-A3B-PT`).

Source: the models' config.json and transformers' `modeling_ernie4_5.py` and `modeling_ernie4_5_moe.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.models.blocks.experts import Experts
from unicorn_async.models.blocks.shared_expert import SharedExpert
from unicorn_async.models.families.dense import Dimensions, decoder
from unicorn_async.models.rotary_config import read_rotary
from unicorn_async.ops.routing import Routing

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.blocks.attention import Attention
    from unicorn_async.models.spec import ModelSpec

_LEAST_SUM = 1e-6  # of a token's weights, which are divided by it: less is no limit


def ernie4_5(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of an `Ernie4_5ForCausalLM`: Llama's layout with neighbours as rotary pairs."""
    sizes, attention = _attention(raw, head_dim=128)
    ffn = sizes.gated_ffn(raw.activation("hidden_act", "silu"))
    return decoder(raw, "Ernie4_5ForCausalLM", sizes, [(attention, ffn)] * sizes.num_layers, tied=True)


def ernie4_5_moe(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of an `Ernie4_5_MoeForCausalLM`: experts in each `moe_layer_interval`-th layer of a span."""
    if (least := raw.number("moe_norm_min", 1e-12)) > _LEAST_SUM:
        raise UnsupportedModelError(f"{raw.where}: moe_norm_min: expected at most {_LEAST_SUM}, got {least}")
    sizes, attention = _attention(raw)
    width, num_shared = raw.count("moe_intermediate_size", 1536), raw.index("moe_num_shared_experts", 2)
    experts = Experts(
        hidden_size=sizes.hidden_size,
        intermediate_size=width,
        activation=raw.activation("hidden_act", "silu"),
        routing=Routing(raw.count("moe_num_experts", 64), raw.count("moe_k", 6), normalises=True),
        norm=sizes.norm("post_attention_layernorm", "ffn_norm"),
        shared=SharedExpert(num_shared * width, "mlp.shared_experts") if num_shared else None,
        is_corrected=True,
    )
    dense = sizes.gated_ffn(experts.activation)
    layers = [(attention, experts if has_experts else dense) for has_experts in _mixtures(raw, sizes.num_layers)]
    names = (("mlp.gate.e_score_correction_bias", "mlp.moe_statics.e_score_correction_bias"),)
    return decoder(raw, "Ernie4_5_MoeForCausalLM", sizes, layers, tied=True, names=names)


def _attention(raw: JsonConfig, *, head_dim: int | None = None) -> tuple[Dimensions, Attention]:
    if raw.flag("use_bias", False):
        raise UnsupportedModelError(f"{raw.where}: use_bias: biases, the FFN's among them, are not supported")
    # Null stands for the hidden size over the heads.
    sizes = Dimensions.read(raw, head_dim=None if "head_dim" in raw.raw else head_dim, norm_eps=1e-5)
    return sizes, sizes.attention(read_rotary(raw, sizes.head_dim, default_base=500_000.0), is_interleaved=True)


def _mixtures(raw: JsonConfig, num_layers: int) -> list[bool]:
    """Return which layers have experts; -1 stands for the last one."""
    first, interval = raw.index("moe_layer_start_index", 1), raw.count("moe_layer_interval", 1)
    last = num_layers - 1 if raw.raw.get("moe_layer_end_index", -1) == -1 else raw.index("moe_layer_end_index", 0)
    return [(layer + 1) % interval == 0 and first <= layer <= last for layer in range(num_layers)]
