"""What GGUF files say of Qwen's models, with the keys of their config.json that other architectures have not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from unicorn_async.checkpoint.gguf.keys import GgufConfig

    _Factors: TypeAlias = Mapping[str, Sequence[float]]
    _Keys: TypeAlias = dict[str, object]


def _qwen2(config: GgufConfig, _: _Factors) -> _Keys:
    return {"architectures": ["Qwen2ForCausalLM"]} | _no_window(config)


def _qwen3(config: GgufConfig, _: _Factors) -> _Keys:
    return {"architectures": ["Qwen3ForCausalLM"]} | _no_window(config)


def _qwen2moe(config: GgufConfig, _: _Factors) -> _Keys:
    keys: _Keys = {
        "architectures": ["Qwen2MoeForCausalLM"],
        "norm_topk_prob": False,
        "qkv_bias": config.has("blk.0.attn_q.bias"),
        "attention_bias": False,  # what this one says in other families
        "shared_expert_intermediate_size": _shared_width(config),
    }
    return keys | expert_keys(config) | _no_window(config)


def _qwen3moe(config: GgufConfig, _: _Factors) -> _Keys:
    return {"architectures": ["Qwen3MoeForCausalLM"], "norm_topk_prob": True} | expert_keys(config) | _no_window(config)


def _qwen35(config: GgufConfig, _: _Factors) -> _Keys:
    return {"architectures": ["Qwen3_5ForCausalLM"]} | _delta_net(config)


def _qwen35moe(config: GgufConfig, _: _Factors) -> _Keys:
    keys: _Keys = {
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "shared_expert_intermediate_size": _shared_width(config),
    }
    keys |= expert_keys(config) | _delta_net(config)
    if keys.pop("mlp_only_layers"):
        raise config.unsupported("expert_count", "a layer without experts is not supported here")
    return keys


def _qwen3next(config: GgufConfig, _: _Factors) -> _Keys:
    keys: _Keys = {
        "architectures": ["Qwen3NextForCausalLM"],
        "norm_topk_prob": True,
        "shared_expert_intermediate_size": _shared_width(config),
    }
    return keys | expert_keys(config) | _delta_net(config)


def expert_keys(config: GgufConfig) -> _Keys:
    """Return how many experts there are and how wide; layers without are known by their tensors."""
    layers = range(config.num_layers)
    return {
        "num_experts": config.count("expert_count"),
        "num_experts_per_tok": config.count("expert_used_count"),
        "moe_intermediate_size": config.count("expert_feed_forward_length", config.feed_forward),
        "mlp_only_layers": [layer for layer in layers if not config.has(f"blk.{layer}.ffn_gate_inp.weight")],
    }


def _delta_net(config: GgufConfig) -> _Keys:
    """Layers of linear attention are known by their tensors."""
    heads, width = config.count("ssm.time_step_rank"), config.count("ssm.inner_size")
    if width % heads:
        raise config.error("ssm.inner_size", f"a multiple of the {heads} heads", width)
    is_linear = (config.has(f"blk.{layer}.ssm_conv1d.weight") for layer in range(config.num_layers))
    return {
        "layer_types": ["linear_attention" if is_ssm else "full_attention" for is_ssm in is_linear],
        "partial_rotary_factor": config.rotary_part,
        "linear_conv_kernel_dim": config.count("ssm.conv_kernel"),
        "linear_num_key_heads": config.count("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_key_head_dim": config.count("ssm.state_size"),
        "linear_value_head_dim": width // heads,
    }


def _shared_width(config: GgufConfig) -> int:
    """Files of the first converters have no key for it."""
    return config.count("expert_shared_feed_forward_length", config.feed_forward)


def _no_window(config: GgufConfig) -> _Keys:
    """Qwen's windows are off unless a switch is on, which GGUF files do not have."""
    context = config.count("context_length")
    window = config.count("attention.sliding_window", context)
    if window < context:
        raise config.unsupported("attention.sliding_window", f"{window} is shorter than the context of {context}")
    return {}


QWEN: Mapping[str, Callable[[GgufConfig, _Factors], _Keys]] = {
    "qwen2": _qwen2,
    "qwen2moe": _qwen2moe,
    "qwen2vl": _qwen2,
    "qwen3": _qwen3,
    "qwen35": _qwen35,
    "qwen35moe": _qwen35moe,
    "qwen3moe": _qwen3moe,
    "qwen3next": _qwen3next,
    "qwen3vl": _qwen3,
}
