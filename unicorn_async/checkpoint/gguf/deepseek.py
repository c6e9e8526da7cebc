"""What GGUF files say of models with latent attention: DeepSeek's, GLM 4.7 Flash and Mistral Small 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unicorn_async.checkpoint.gguf.keys import GgufConfig

_SOFTMAX, _SIGMOID = 1, 2  # functions of routers


def deepseek2_keys(config: GgufConfig, rope_factors: Mapping[str, Sequence[float]]) -> dict[str, object]:
    """Return the keys of DeepSeek V2, or of V3, whose routers have sigmoids, or of GLM 4.7 Flash: theirs do not say so.

    Mistral's mixtures are so, too, where they were converted from Mistral's own layout: their queries grow.

    Source: llama.cpp's `deepseek2.cpp`, for files without the key.
    """
    if config.number("attention.temperature_scale"):
        return mistral4_keys(config, rope_factors)
    keys = {**_attention_keys(config), **_expert_keys(config)}
    if _has_sigmoids(config):
        num_predictors = config.index("nextn_predict_layers")
        name = "DeepseekV3" if config.number("expert_gating_func") else "Glm4MoeLite"
        return {"architectures": [f"{name}ForCausalLM"], "num_nextn_predict_layers": num_predictors, **keys}
    method = "greedy" if keys["n_group"] == 1 else "group_limited_greedy"
    return {"architectures": ["DeepseekV2ForCausalLM"], "topk_method": method, **keys}


def mistral4_keys(config: GgufConfig, _: Mapping[str, Sequence[float]]) -> dict[str, object]:
    """Return the keys of Mistral Small 4, whose queries grow from the context on that YaRN begins with."""
    if _has_sigmoids(config):
        raise config.unsupported("expert_gating_func", f"{_SIGMOID}: sigmoids are not supported here")
    original = config.number("rope.scaling.original_context_length")
    if (length := config.number("attention.temperature_length") or original) != original:
        raise config.unsupported("attention.temperature_length", f"{length} is not YaRN's context of {original}")
    return {"architectures": ["Mistral4ForCausalLM"], **_attention_keys(config), **_expert_keys(config)}


def _attention_keys(config: GgufConfig) -> dict[str, object]:
    """Sizes of heads: of what they are made of, where files say those of latents, too."""
    own = "_mla" if config.get("attention.key_length_mla") is not None else ""
    key, rotary = config.count(f"attention.key_length{own}"), config.count("rope.dimension_count")
    if rotary >= key:
        raise config.error("rope.dimension_count", f"less than the {key} elements of a head", rotary)
    has_rank = config.has("blk.0.attn_q_a.weight")
    return {
        "q_lora_rank": config.count("attention.q_lora_rank") if has_rank else None,
        "kv_lora_rank": config.count("attention.kv_lora_rank"),
        "qk_nope_head_dim": key - rotary,
        "qk_rope_head_dim": rotary,
        "v_head_dim": config.count(f"attention.value_length{own}"),
    }


def _expert_keys(config: GgufConfig) -> dict[str, object]:
    return {
        "n_group": config.count("expert_group_count", 1),
        "topk_group": config.count("expert_group_used_count", 1),
        "n_routed_experts": config.count("expert_count"),
        "num_experts_per_tok": config.count("expert_used_count"),
        "moe_intermediate_size": config.count("expert_feed_forward_length"),
        "n_shared_experts": config.index("expert_shared_count"),
        "first_k_dense_replace": config.index("leading_dense_block_count"),
        "norm_topk_prob": config.get("expert_weights_norm") is True,
        "routed_scaling_factor": config.number("expert_weights_scale") or 1.0,
    }


def _has_sigmoids(config: GgufConfig) -> bool:
    """Whether routers have sigmoids: files that do not say it have what corrects them, or they have a softmax."""
    is_corrected = any(name.endswith(".exp_probs_b.bias") for name in config.tensors)
    kind = config.number("expert_gating_func") or (_SIGMOID if is_corrected else _SOFTMAX)
    if kind not in (_SOFTMAX, _SIGMOID) or (kind == _SOFTMAX and is_corrected):
        beside = " with corrections" if is_corrected else ""
        raise config.unsupported("expert_gating_func", f"{kind}{beside} is not supported")
    return kind == _SIGMOID
