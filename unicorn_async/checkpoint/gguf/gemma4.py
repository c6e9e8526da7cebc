"""What a GGUF file says of a Gemma 4, with the keys of its config.json."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.gguf.names import ROPE_FACTORS
from unicorn_async.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unicorn_async.checkpoint.gguf.keys import GgufConfig

_STILL = 1e30  # the divisor of the frequencies of pairs that don't rotate, rounded to 32 bits in a file


def gemma4_keys(config: GgufConfig, factors: Mapping[str, Sequence[float]]) -> dict[str, object]:
    """Return the keys that other families have not, or others than these.

    Raises:
        CheckpointError: a key or the tensor of rotary factors is missing, or contradicts others.
        UnsupportedModelError: an option is not supported.
    """
    local, head_dim = _local_layers(config), config.count("attention.key_length_swa")
    for key in ("attention.value_length_swa", "rope.dimension_count_swa"):
        if config.count(key, head_dim) != head_dim:
            raise config.unsupported(key, f"{config.get(key)} is not supported, only the head's {head_dim}")
    for key, plain in (("rope.scaling.type", "none"), ("rope.scaling.factor", 1.0), ("attention.scale", 1.0)):
        if (value := config.get(key)) not in (None, plain):
            raise config.unsupported(key, f"{str(value)[:100]} is not supported, only {plain}")
    kv_heads = config.counts("attention.head_count_kv")
    whole = [layer for layer, is_local in enumerate(local) if not is_local]
    return {
        "architectures": ["Gemma4ForCausalLM"],
        "head_dim": head_dim,
        "num_key_value_heads": next((kv_heads[layer] for layer, is_local in enumerate(local) if is_local), kv_heads[0]),
        "per_layer_config": {
            str(layer): {"head_dim": config.head_dim, "num_key_value_heads": kv_heads[layer]} for layer in whole
        },
        "attention_k_eq_v": not config.has(f"blk.{whole[0]}.attn_v.weight"),
        "layer_types": ["sliding_attention" if is_local else "full_attention" for is_local in local],
        "sliding_window": config.count("attention.sliding_window"),
        "final_logit_softcapping": config.number("final_logit_softcapping") or None,
        "hidden_size_per_layer_input": config.number("embedding_length_per_layer_input") or 0,
        "vocab_size_per_layer_input": config.tensors["token_embd.weight"].shape[0],
        "num_kv_shared_layers": config.number("attention.shared_kv_layers") or 0,
        **_widths(config),
        "rope_scaling": None,
        **_experts(config),
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": config.number("rope.freq_base_swa")},
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": _rotating_part(config, factors),
                "rope_theta": config.number("rope.freq_base"),
            },
        },
    }


def _experts(config: GgufConfig) -> dict[str, object]:
    """The mixture that each layer has, if one has."""
    routers = [config.has(f"blk.{layer}.ffn_gate_inp.weight") for layer in range(config.num_layers)]
    if not any(routers):
        return {"enable_moe_block": False}
    if not all(routers):
        layer = routers.index(False)
        raise config.unsupported("expert_count", f"layer {layer} has no experts, others have; all have to be alike")
    return {
        "enable_moe_block": True,
        "num_experts": config.count("expert_count"),
        "top_k_experts": config.count("expert_used_count"),
        "moe_intermediate_size": config.count("expert_feed_forward_length"),
    }


def _widths(config: GgufConfig) -> dict[str, object]:
    """How wide the FFN is, which may be twice as wide in layers that keep no keys."""
    widths, shared = config.counts("feed_forward_length"), config.number("attention.shared_kv_layers") or 0
    own = [widths[0]] * config.num_layers
    wide = [width * (2 if layer >= config.num_layers - shared else 1) for layer, width in enumerate(own)]
    if list(widths) not in (own, wide):
        raise config.unsupported("feed_forward_length", "layers are as wide as the first, or twice as the last ones")
    return {"intermediate_size": widths[0], "use_double_wide_mlp": list(widths) != own}


def _local_layers(config: GgufConfig) -> list[bool]:
    """Which layers have a window; the last one has none."""
    pattern, count = config.get("attention.sliding_window_pattern"), config.num_layers
    if not isinstance(pattern, array) or len(pattern) != count or pattern[-1]:
        raise config.error("attention.sliding_window_pattern", f"{count} booleans, the last one false", pattern)
    return [bool(is_local) for is_local in pattern]


def _rotating_part(config: GgufConfig, factors: Mapping[str, Sequence[float]]) -> float:
    """The share of a global head's pairs that rotate: the first ones, whose frequencies are divided by 1."""
    if (divisors := factors.get(ROPE_FACTORS)) is None:
        raise CheckpointError(f"{config.source}: tensor {ROPE_FACTORS!r} is missing")
    moving = [divisor for divisor in divisors if divisor < _STILL / 2]
    if any(divisor != 1.0 for divisor in moving) or any(divisor > _STILL / 2 for divisor in divisors[: len(moving)]):
        raise CheckpointError(f"{config.source}: tensor {ROPE_FACTORS!r}: expected ones, and {_STILL:g} behind them")
    return len(moving) / len(divisors)
