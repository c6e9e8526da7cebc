"""Qwen's mixtures of experts: 1.5 and 2, which have an expert for all tokens as well, and 3.

Source: the models' config.json and transformers' `modeling_qwen2_moe.py` and `modeling_qwen3_moe.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.models.blocks.experts import Experts
from unicorn_async.models.blocks.shared_expert import SharedExpert
from unicorn_async.models.families.dense import Dimensions, decoder, layer_kinds, window_of
from unicorn_async.models.rotary_config import read_rotary
from unicorn_async.ops.routing import Routing

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.spec import ModelSpec


def qwen2_moe(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `Qwen2MoeForCausalLM` (Qwen 1.5 and 2)."""
    _refuse_windows(raw, "Qwen2Moe")
    sizes = Dimensions.read(raw)
    attention = sizes.attention(read_rotary(raw, sizes.head_dim), qkv_bias=raw.flag("qkv_bias", True))
    routing = Routing(
        raw.count("num_experts", 60),
        raw.count("num_experts_per_tok", 4),
        normalises=raw.flag("norm_topk_prob", False),
    )
    experts = Experts(
        hidden_size=sizes.hidden_size,
        intermediate_size=raw.count("moe_intermediate_size", 1408),
        activation=raw.activation("hidden_act", "silu"),
        routing=routing,
        norm=sizes.norm("post_attention_layernorm", "ffn_norm"),
        shared=shared_expert(raw, 5632),
    )
    dense = sizes.gated_ffn(experts.activation)
    layers = ((attention, experts if has_experts else dense) for has_experts in mixtures(raw, sizes.num_layers))
    return decoder(raw, "Qwen2MoeForCausalLM", sizes, layers)


def qwen3_moe(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `Qwen3MoeForCausalLM`."""
    _refuse_windows(raw, "Qwen3Moe")
    sizes = Dimensions.read(raw)
    bias = raw.flag("attention_bias", False)
    rotary = read_rotary(raw, sizes.head_dim)
    attention = sizes.attention(rotary, qk_norm=True, qkv_bias=bias, output_bias=bias)
    routing = Routing(
        raw.count(_num_experts(raw), 128),
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
    layers = ((attention, experts if has_experts else dense) for has_experts in mixtures(raw, sizes.num_layers))
    return decoder(raw, "Qwen3MoeForCausalLM", sizes, layers)


def shared_expert(raw: JsonConfig, width: int) -> SharedExpert:
    """Return the expert of all tokens behind its gate; it is so wide where the file does not say it."""
    width = raw.count("shared_expert_intermediate_size", width)
    return SharedExpert(width, "mlp.shared_expert", gate="mlp.shared_expert_gate.weight")


def mixtures(raw: JsonConfig, num_layers: int) -> list[bool]:
    """Return which layers have experts: each `decoder_sparse_step`-th but for `mlp_only_layers`."""
    step, dense = raw.count("decoder_sparse_step", 1), raw.indices("mlp_only_layers") or ()
    return [(layer + 1) % step == 0 and layer not in dense for layer in range(num_layers)]


def _refuse_windows(raw: JsonConfig, name: str) -> None:
    is_local = "sliding_attention" in (layer_kinds(raw, raw.num_layers()) or ())
    if is_local or (raw.flag("use_sliding_window", False) and window_of(raw)):
        key = "layer_types" if is_local else "use_sliding_window"
        raise UnsupportedModelError(f"{raw.where}: {key}: windows of {name} are not supported")


def _num_experts(raw: JsonConfig) -> str:
    """The key that says how many experts there are: transformers has written another one since its version 5."""
    return "num_local_experts" if raw.has("num_local_experts") and not raw.has("num_experts") else "num_experts"
