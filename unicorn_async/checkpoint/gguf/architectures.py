"""What each architecture of GGUF files is among the models, and the keys of its config.json that others have not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.checkpoint.gguf.deepseek import deepseek2_keys, mistral4_keys
from unicorn_async.checkpoint.gguf.gemma4 import gemma4_keys
from unicorn_async.checkpoint.gguf.names import LONG_FACTORS, SHORT_FACTORS
from unicorn_async.checkpoint.gguf.ollama import is_ollama_gemma3, ollama_gemma3_keys
from unicorn_async.checkpoint.gguf.plain_strings import PlainStrings
from unicorn_async.checkpoint.gguf.qwen import QWEN, expert_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from unicorn_async.checkpoint.gguf.keys import GgufConfig

    _Factors: TypeAlias = Mapping[str, Sequence[float]]  # of rotary frequencies, by the names of their tensors
    _Keys: TypeAlias = dict[str, object]

_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62
_SIGMOID = 2  # among the functions of routers
_SCALES = (1e-6, 1e6)


def _llama(config: GgufConfig, _: _Factors) -> _Keys:
    window = config.number("attention.sliding_window")
    if config.number("expert_count"):
        return _mixtral(config, window)
    if not window:
        return {"architectures": ["LlamaForCausalLM"]}
    if config.has("blk.0.attn_q.bias"):
        raise config.unsupported("attention.sliding_window", f"{window} beside biases of the attention")
    return {"architectures": ["MistralForCausalLM"], "sliding_window": window}


def _mixtral(config: GgufConfig, window: float | None) -> _Keys:
    return {
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": config.count("expert_count"),
        "num_experts_per_tok": config.count("expert_used_count"),
        "sliding_window": window or None,
    }


def _olmoe(config: GgufConfig, _: _Factors) -> _Keys:
    width = config.count("expert_feed_forward_length", config.feed_forward)
    return (
        {"architectures": ["OlmoeForCausalLM"], "norm_topk_prob": False}
        | expert_keys(config)
        | {"intermediate_size": width}
    )


def _gemma2(config: GgufConfig, _: _Factors) -> _Keys:
    return {"architectures": ["Gemma2ForCausalLM"]} | _gemma(config, _GEMMA2_27B_LAYERS)


def _gemma3(config: GgufConfig, _: _Factors) -> _Keys:
    base = config.number("rope.freq_base_swa")
    keys = _gemma(config, _GEMMA3_27B_LAYERS)
    keys = {"architectures": ["Gemma3ForCausalLM"], "rope_local_base_freq": base} | keys
    return keys | ollama_gemma3_keys(config) if is_ollama_gemma3(config) else keys


def _gemma(config: GgufConfig, largest_layers: int) -> _Keys:
    return {
        "sliding_window": config.count("attention.sliding_window"),
        "query_pre_attn_scalar": _query_scalar(config, largest_layers),
        "attn_logit_softcapping": config.number("attn_logit_softcapping") or None,
        "final_logit_softcapping": config.number("final_logit_softcapping") or None,
    } | _pattern(config)


def _query_scalar(config: GgufConfig, largest_layers: int) -> float:
    """The files leave it out: it is the head's size, but for the 27B, where it is the hidden size over the heads."""
    scale = config.number("attention.scale")
    if scale:
        if not _SCALES[0] <= scale <= _SCALES[1]:
            raise config.error("attention.scale", f"{_SCALES[0]} to {_SCALES[1]}", scale)
        return scale**-2
    if config.count("block_count") == largest_layers:
        return config.count("embedding_length") / config.count("attention.head_count")
    return config.head_dim


def _pattern(config: GgufConfig) -> _Keys:
    """Which layers have a window."""
    pattern = config.get("attention.sliding_window_pattern")
    if isinstance(pattern, int | None):
        return {"sliding_window_pattern": pattern}
    if isinstance(pattern, float | str | tuple | PlainStrings):
        raise config.error("attention.sliding_window_pattern", "an integer or one boolean a layer", pattern)
    return {"layer_types": ["sliding_attention" if is_local else "full_attention" for is_local in pattern]}


def _olmo2(config: GgufConfig, _: _Factors) -> _Keys:
    window = config.number("attention.sliding_window")
    if not window:
        return {"architectures": ["Olmo2ForCausalLM"]}
    return {"architectures": ["Olmo3ForCausalLM"], "sliding_window": window} | _pattern(config)


def _phi3(config: GgufConfig, factors: _Factors) -> _Keys:
    keys: _Keys = {
        "architectures": ["Phi3ForCausalLM"],
        "sliding_window": config.number("attention.sliding_window") or None,
        "partial_rotary_factor": config.rotary_part,
    }
    if LONG_FACTORS not in factors or SHORT_FACTORS not in factors:
        return keys
    scaling: _Keys = {
        "rope_type": "longrope",
        "short_factor": list(factors[SHORT_FACTORS]),
        "long_factor": list(factors[LONG_FACTORS]),
        "attention_factor": config.number("rope.scaling.attn_factor"),
        "original_max_position_embeddings": config.count("rope.scaling.original_context_length"),
    }
    return keys | {"rope_scaling": scaling}


def _gpt_oss(config: GgufConfig, _: _Factors) -> _Keys:
    return {
        "architectures": ["GptOssForCausalLM"],
        "intermediate_size": config.count("expert_feed_forward_length"),
        "num_local_experts": config.count("expert_count"),
        "num_experts_per_tok": config.count("expert_used_count"),
        "sliding_window": config.count("attention.sliding_window"),
    } | _pattern(config)


def _smollm3(config: GgufConfig, _: _Factors) -> _Keys:
    return {"architectures": ["SmolLM3ForCausalLM"]}


def _granite(config: GgufConfig, _: _Factors) -> _Keys:
    return {"architectures": ["GraniteForCausalLM"]} | _granite_factors(config)


def _granite_hybrid(config: GgufConfig, _: _Factors) -> _Keys:
    """Layers of Mamba-2 have no keys and values; in those that attend nothing rotates, unless the file says so."""
    kv_heads = config.counts("attention.head_count_kv")
    heads, inner, hidden = (config.count(key) for key in ("ssm.time_step_rank", "ssm.inner_size", "embedding_length"))
    if inner % heads or inner % hidden:
        raise config.error("ssm.inner_size", f"a multiple of {heads} heads and of embedding_length {hidden}", inner)
    keys: _Keys = {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "layer_types": ["attention" if count else "mamba" for count in kv_heads],
        "position_embedding_type": "rope" if config.get("rope.scaling.finetuned") else "nope",
        "shared_intermediate_size": config.count("expert_shared_feed_forward_length", config.feed_forward),
        "num_local_experts": config.index("expert_count"),
        "num_experts_per_tok": config.index("expert_used_count"),
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_expand": inner // hidden,
        "mamba_d_state": config.count("ssm.state_size"),
        "mamba_n_groups": config.count("ssm.group_count"),
        "mamba_d_conv": config.count("ssm.conv_kernel"),
        "mamba_conv_bias": any(name.endswith(".ssm_conv1d.bias") for name in config.tensors),
        "mamba_proj_bias": any(name.endswith(".ssm_in.bias") for name in config.tensors),
        "attention_bias": any(name.endswith(".attn_q.bias") for name in config.tensors),
    }
    return keys | _granite_factors(config)


def _granite_factors(config: GgufConfig) -> _Keys:
    return {
        "attention_multiplier": config.number("attention.scale"),
        "embedding_multiplier": config.number("embedding_scale"),
        "residual_multiplier": config.number("residual_scale"),
        "logits_scaling": config.number("logit_scale"),
    }


def _glm4(config: GgufConfig, _: _Factors) -> _Keys:
    return {"architectures": ["Glm4ForCausalLM"]} | _glm(config)


def _chatglm(config: GgufConfig, _: _Factors) -> _Keys:
    return {"architectures": ["GlmForCausalLM"]} | _glm(config)


def _glm(config: GgufConfig) -> _Keys:
    for key in ("nextn_predict_layers", "rope.dimension_sections"):
        if (value := config.get(key)) is not None and value != 0:
            raise config.unsupported(key, "layers for several tokens, and positions of images, are not supported")
    bias = config.has("blk.0.attn_qkv.bias") or config.has("blk.0.attn_q.bias")
    return {"partial_rotary_factor": config.rotary_part, "attention_bias": bias}


def _check_sigmoid(config: GgufConfig) -> None:
    if (kind := config.number("expert_gating_func")) not in (None, 0, _SIGMOID):
        raise config.unsupported("expert_gating_func", f"{kind}: only sigmoids, {_SIGMOID}, are supported here")


def _glm4moe(config: GgufConfig, _: _Factors) -> _Keys:
    _check_sigmoid(config)
    if config.get("rope.dimension_sections") is not None:
        raise config.unsupported("rope.dimension_sections", "positions of images are not supported")
    num_experts = config.count("expert_count")
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "num_nextn_predict_layers": config.index("nextn_predict_layers"),
        "partial_rotary_factor": config.rotary_part,
        "use_qk_norm": config.has("blk.0.attn_q_norm.weight"),
        "n_routed_experts": num_experts,
        "num_experts_per_tok": config.count("expert_used_count"),
        "moe_intermediate_size": config.count("expert_feed_forward_length"),
        "n_shared_experts": config.index("expert_shared_count"),
        "first_k_dense_replace": config.index("leading_dense_block_count"),
        "norm_topk_prob": config.get("expert_weights_norm") is not False,
        "routed_scaling_factor": config.number("expert_weights_scale") or 1.0,
        "n_group": config.count("expert_group_count", 1),
        "topk_group": config.count("expert_group_used_count", 1),
    }


def _mistral3(config: GgufConfig, _: _Factors) -> _Keys:
    window = config.number("attention.sliding_window")
    return {"architectures": ["Ministral3ForCausalLM"], "sliding_window": window or None}


def _cohere2(config: GgufConfig, _: _Factors) -> _Keys:
    return {
        "architectures": ["Cohere2ForCausalLM"],
        "sliding_window": config.count("attention.sliding_window"),
        "layer_norm_eps": config.number("attention.layer_norm_epsilon"),
        "logit_scale": config.number("logit_scale"),
    } | _pattern(config)


def _ernie4_5(config: GgufConfig, _: _Factors) -> _Keys:
    return {"architectures": ["Ernie4_5ForCausalLM"]}


def _ernie4_5_moe(config: GgufConfig, _: _Factors) -> _Keys:
    """Which layers have experts, and how many all tokens have, is known by tensors."""
    layers = [layer for layer in range(config.num_layers) if config.has(f"blk.{layer}.ffn_gate_inp.weight")]
    if not layers or len(layers) != layers[-1] - layers[0] + 1:
        raise config.unsupported("interleave_moe_layer_step", f"experts in layers {layers}, not in a row of them")
    width = config.count("expert_feed_forward_length")
    shared = config.tensors.get(f"blk.{layers[0]}.ffn_up_shexp.weight")
    return {
        "architectures": ["Ernie4_5_MoeForCausalLM"],
        "moe_num_experts": config.count("expert_count"),
        "moe_k": config.count("expert_used_count"),
        "moe_intermediate_size": width,
        "moe_num_shared_experts": 0 if shared is None else shared.shape[0] // width,
        "moe_layer_start_index": layers[0],
        "moe_layer_end_index": layers[-1],
    }


def _exaone4(config: GgufConfig, _: _Factors) -> _Keys:
    window = config.number("attention.sliding_window")
    return {"architectures": ["Exaone4ForCausalLM"], "sliding_window": window or None} | _pattern(config)


def _seed_oss(config: GgufConfig, _: _Factors) -> _Keys:
    bias = config.has("blk.0.attn_output.bias")
    return {"architectures": ["SeedOssForCausalLM"], "attention_out_bias": bias}


def _lfm2(config: GgufConfig, _: _Factors) -> _Keys:
    return {
        "architectures": ["Lfm2ForCausalLM"],
        "block_auto_adjust_ff_dim": False,  # the file has the size itself
    } | _short_convs(config)


def _lfm2moe(config: GgufConfig, _: _Factors) -> _Keys:
    _check_sigmoid(config)
    keys: _Keys = {
        "architectures": ["Lfm2MoeForCausalLM"],
        "num_dense_layers": config.index("leading_dense_block_count"),
        "num_experts": config.count("expert_count"),
        "num_experts_per_tok": config.count("expert_used_count"),
        "moe_intermediate_size": config.count("expert_feed_forward_length"),
        "use_expert_bias": any(name.endswith(".exp_probs_b.bias") for name in config.tensors),
        "norm_topk_prob": config.get("expert_weights_norm") is not False,
        "routed_scaling_factor": config.number("expert_weights_scale") or 1.0,
    }
    return keys | _short_convs(config)


def _short_convs(config: GgufConfig) -> _Keys:
    heads = config.counts("attention.head_count_kv")
    return {
        "layer_types": ["full_attention" if count else "conv" for count in heads],
        "norm_eps": config.number("attention.layer_norm_rms_epsilon"),
        "conv_L_cache": config.count("shortconv.l_cache"),
        "conv_bias": any(name.endswith(".shortconv.conv.bias") for name in config.tensors),
    }


def _rwkv7(config: GgufConfig, _: _Factors) -> _Keys:
    return {
        "architectures": ["RWKV7ForCausalLM"],
        "norm_eps": config.number("attention.layer_norm_epsilon"),
        "head_dim": config.count("wkv.head_size"),
        "decay_low_rank_dim": config.count("attention.decay_lora_rank"),
        "a_low_rank_dim": config.count("attention.iclr_lora_rank"),
        "v_low_rank_dim": config.count("attention.value_residual_mix_lora_rank"),
        "gate_low_rank_dim": config.count("attention.gate_lora_rank"),
    }


ARCHITECTURES: Mapping[str, Callable[[GgufConfig, _Factors], _Keys]] = {
    "chatglm": _chatglm,
    "cohere2": _cohere2,
    "deepseek2": deepseek2_keys,
    "ernie4_5": _ernie4_5,
    "ernie4_5-moe": _ernie4_5_moe,
    "exaone4": _exaone4,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma4": gemma4_keys,
    "glm4": _glm4,
    "glm4moe": _glm4moe,
    "gpt-oss": _gpt_oss,
    "granite": _granite,
    "granitehybrid": _granite_hybrid,
    "lfm2": _lfm2,
    "lfm2moe": _lfm2moe,
    "llama": _llama,
    "mistral3": _mistral3,
    "mistral4": mistral4_keys,
    "olmo2": _olmo2,
    "olmoe": _olmoe,
    "phi3": _phi3,
    **QWEN,
    "rwkv7": _rwkv7,
    "seed_oss": _seed_oss,
    "smollm3": _smollm3,
}
