"""Tensor names of GGUF files, and the layout that the models know."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.names import PREDICTOR

if TYPE_CHECKING:
    from collections.abc import Mapping

_GLOBAL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LFM2_NORM = {"token_embd_norm": "model.embedding_norm"}  # the last one, whatever it is called
_GEMMA4_GLOBAL = {
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "per_layer_token_embd": "model.embed_tokens_per_layer",
}
_RWKV7_GLOBAL = {
    "token_embd": "model.embeddings",
    "token_embd_norm": "model.layers.0.pre_norm",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_GLOBALS = {
    "gemma4": _GLOBAL | _GEMMA4_GLOBAL,
    "lfm2": _GLOBAL | _LFM2_NORM,
    "lfm2moe": _GLOBAL | _LFM2_NORM,
    "rwkv7": _RWKV7_GLOBAL,
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_EXPERTS = {
    "ffn_gate_exps": ("gate_proj",),
    "ffn_up_exps": ("up_proj",),
    "ffn_gate_up_exps": ("gate_proj", "up_proj"),
    "ffn_down_exps": ("down_proj",),
}
_ONE_EXPERT = re.compile(r"blk\.(\d{1,5})\.ffn_(gate|up|down)\.(\d{1,4})\.weight")  # Mixtral's before April 2024
_MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
_NUMBERED = {"lfm2moe": "feed_forward", "llama": "block_sparse_moe"}  # modules whose experts' parts have these names
_SHARED_EXPERT = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_SHARED_EXPERTS = {
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
_DELTA_NET = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
# Tensors whose names do not end as those of others do.
_WHOLE = {
    "deepseek2": {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"},
    "ernie4_5-moe": {"exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"},
    "gemma4": {
        "ffn_down_exps.scale": "router.per_expert_scale",
        "ffn_gate_inp.scale": "router.scale",
        "layer_output_scale.weight": "layer_scalar",
    },
    "glm4moe": {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"},
    "lfm2moe": {"exp_probs_b.bias": "feed_forward.expert_bias"},
    "qwen35": {"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias"},
}
_WHOLE["gpt-oss"] = {
    "attn_sinks.weight": "self_attn.sinks",
    "ffn_gate_inp.bias": "mlp.router.bias",
    "ffn_gate_exps.bias": "mlp.experts.gate_proj_bias",
    "ffn_up_exps.bias": "mlp.experts.up_proj_bias",
    "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
}
_WHOLE["rwkv7"] = {
    "attn_norm.bias": "attn_norm.bias",
    "attn_norm_2.weight": "ffn_norm.weight",
    "attn_norm_2.bias": "ffn_norm.bias",
    "time_mix_ln.weight": "attn.g_norm.weight",
    "time_mix_ln.bias": "attn.g_norm.bias",
    "time_mix_lerp_fused.weight": "attn.x_x",
    "channel_mix_lerp_k.weight": "ffn.x_k",
    **{f"time_mix_{name}.weight": f"attn.{name}" for name in ("k_k", "k_a", "r_k")},
    **{f"time_mix_{name}0.weight": f"attn.{name}_lora.lora.2.bias" for name in "wav"},
    **{f"time_mix_{name}1.weight": f"attn.{name}_lora.lora.0.weight" for name in "wavg"},
    **{f"time_mix_{name}2.weight": f"attn.{name}_lora.lora.2.weight" for name in "wavg"},
}
_WHOLE["granitehybrid"] = {"ssm_a": "mamba.A_log", "ssm_d": "mamba.D", "ssm_dt.bias": "mamba.dt_bias"}
_WHOLE["qwen35moe"] = _WHOLE["qwen3next"] = _WHOLE["qwen35"]
WITH_EXPERTS = (
    *("deepseek2", "ernie4_5-moe", "gemma4", "glm4moe", "gpt-oss", "granitehybrid", "lfm2moe", "llama", "mistral4"),
    "olmoe",
    *("qwen2moe", "qwen35moe", "qwen3moe", "qwen3next"),
)
TILED = ("qwen35", "qwen35moe")  # the converter has put heads of values in another order
_PLAIN = {"ffn_norm": "post_attention_layernorm"}
_GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_POST_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LATENT = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
}
_GLM4_NORMS = {
    "post_attention_norm": "post_self_attn_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
}
_LFM2 = {
    "attn_norm": "operator_norm",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.conv": "conv.conv",
    "shortconv.out_proj": "conv.out_proj",
}
_MAMBA2 = {
    "ssm_in": "mamba.in_proj",
    "ssm_conv1d": "mamba.conv1d",
    "ssm_norm": "mamba.norm",
    "ssm_out": "mamba.out_proj",
}
_FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_LATENT_MIXTURE = {**_PLAIN, **_LATENT, **_SHARED_EXPERTS, "ffn_gate_inp": "mlp.gate"}
# What is not the same in all architectures.
_BY_ARCHITECTURE: Mapping[str, Mapping[str, str]] = {
    "chatglm": {**_PLAIN, **_FUSED},
    "cohere2": {},
    "deepseek2": _LATENT_MIXTURE,
    "ernie4_5-moe": {**_PLAIN, **_SHARED_EXPERTS, "ffn_gate_inp": "mlp.gate"},
    "exaone4": _POST_NORMS,
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "gemma4": {
        **_GEMMA,
        "ffn_gate_inp": "router.proj",
        "inp_gate": "per_layer_input_gate",
        "post_norm": "post_per_layer_input_norm",
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
        "post_ffw_norm_1": "post_feedforward_layernorm_1",
        "post_ffw_norm_2": "post_feedforward_layernorm_2",
        "proj": "per_layer_projection",
    },
    "glm4moe": {
        **_SHARED_EXPERTS,
        "post_attention_norm": "post_attention_layernorm",
        "ffn_gate_inp": "mlp.gate",
    },
    "glm4": {**_GLM4_NORMS, **_FUSED},
    "gpt-oss": {"post_attention_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.router"},
    "granitehybrid": {
        **_PLAIN,
        **_MAMBA2,
        "ffn_down": "shared_mlp.output_linear",
        "ffn_gate_inp": "block_sparse_moe.router.layer",
        "ffn_gate_shexp": "shared_mlp.gate_proj",
        "ffn_up_shexp": "shared_mlp.up_proj",
        "ffn_down_shexp": "shared_mlp.output_linear",
    },
    "lfm2": _LFM2,
    "lfm2moe": {**_LFM2, "ffn_gate_inp": "feed_forward.gate"},
    "llama": {**_PLAIN, "ffn_gate_inp": "block_sparse_moe.gate"},
    "mistral4": _LATENT_MIXTURE,
    "olmo2": _POST_NORMS,
    "olmoe": {**_PLAIN, "ffn_gate_inp": "mlp.gate"},
    "phi3": {**_PLAIN, **_FUSED},
    "qwen2moe": {**_PLAIN, **_SHARED_EXPERT},
    "qwen3moe": {**_PLAIN, "ffn_gate_inp": "mlp.gate"},
    "qwen35": _DELTA_NET,
    "qwen35moe": {**_DELTA_NET, **_SHARED_EXPERT},
    "qwen3next": {
        **_DELTA_NET,
        **_SHARED_EXPERT,
        "ssm_ba": "linear_attn.in_proj_ba",
        "ssm_in": "linear_attn.in_proj_qkvz",  # of the first converter, in place of attn_qkv and attn_gate
    },
    "rwkv7": {
        "attn_norm": "attn_norm",
        "time_mix_receptance": "attn.r_proj",
        "time_mix_key": "attn.k_proj",
        "time_mix_value": "attn.v_proj",
        "time_mix_output": "attn.o_proj",
        "channel_mix_key": "ffn.key",
        "channel_mix_value": "ffn.value",
    },
    "seed_oss": {"post_attention_norm": "post_attention_layernorm"},
}
WITHOUT_ATTENTION = ("rwkv7",)  # whose norms have biases, too
WITH_GATED_QUERIES = ("qwen35", "qwen35moe", "qwen3next")  # a gate of the attention's output lies beside each
# Of the first layer behind the last, which predicts a token more: its own tensors, and what leads those of its blocks.
_NEXTN = {
    "nextn.enorm": "enorm",
    "nextn.hnorm": "hnorm",
    "nextn.eh_proj": "eh_proj",
    "nextn.shared_head_norm": "shared_head.norm",
}
_MTP = {
    "nextn.enorm": "pre_fc_norm_embedding",
    "nextn.hnorm": "pre_fc_norm_hidden",
    "nextn.eh_proj": "fc",
    "nextn.shared_head_norm": "norm",
}
_WITH_MTP = ("qwen35", "qwen35moe", "qwen3next")
# The converter has put rotary pairs side by side.
_INTERLEAVED = ("granite", "granitehybrid", "llama", "mistral3", "smollm3")
ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
_CONSTANTS = (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS)
_IN_ANY_LAYER = re.compile(r"blk\.(\d{1,5})\.(.+)", re.DOTALL)
_LAYER_NAME = re.compile(r"blk\.(\d{1,5})\.([a-z0-9_.]+)\.(weight|bias)")
_ROTARY_PARTS = ("attn_q", "attn_k")
_WITH_BIAS = (
    *(*_ROTARY_PARTS, "attn_v", "attn_output", "attn_qkv", "ssm_in", "ssm_conv1d", "ssm_out"),
    *(name for name in _LFM2 if "shortconv" in name),
)


def canonical_name(name: str, architecture: str) -> str | None:
    """Return a tensor's name in the models' layout, None where it has none."""
    stem, _, kind = name.rpartition(".")
    names = _GLOBALS.get(architecture, _GLOBAL)
    if stem in names and (kind == "weight" or (kind == "bias" and architecture in WITHOUT_ATTENTION)):
        return f"{names[stem]}.{kind}"
    whole = _IN_ANY_LAYER.match(name)
    if whole is not None and (part := _WHOLE.get(architecture, {}).get(whole[2])) is not None:
        return f"model.layers.{int(whole[1])}.{part}"
    if architecture == "llama" and (one := _ONE_EXPERT.fullmatch(name)) is not None:
        module = f"{_NUMBERED[architecture]}.experts.{int(one[3])}"
        return f"model.layers.{int(one[1])}.{module}.{_MIXTRAL[f'{one[2]}_proj']}.weight"
    match = _LAYER_NAME.fullmatch(name)
    if match is None:
        return None
    parts = {**_IN_LAYER, **_BY_ARCHITECTURE.get(architecture, _PLAIN)}
    part, kind = parts.get(match[2]), match[3]
    if part is None or (kind == "bias" and match[2] not in _WITH_BIAS):
        return None
    return f"model.layers.{int(match[1])}.{part}.{kind}"


def may_fuse_attention(name: str, architecture: str) -> bool:
    """Whether a tensor has the rows of queries, keys and values, in a family that has tensors for each.

    In families with layers of linear attention, which have one of that name, it has where the layer is none of them.
    """
    match = _LAYER_NAME.fullmatch(name)
    if architecture in WITHOUT_ATTENTION or match is None or match[2] != "attn_qkv":
        return False
    return _BY_ARCHITECTURE.get(architecture, _PLAIN).get("attn_qkv") in (None, _DELTA_NET["attn_qkv"])


def predictor_name(name: str, architecture: str) -> str | None:
    """Return a tensor's name in the models' layout, of the layer that predicts a token more; None where it has none.

    The name is as in the file, or one of `expert_names`.
    """
    match, is_mtp = _LAYER_NAME.fullmatch(name), architecture in _WITH_MTP
    if match is not None and match[2].startswith("nextn."):
        own = (_MTP if is_mtp else _NEXTN).get(match[2])
        lead = PREDICTOR if is_mtp else f"model.layers.{int(match[1])}."
        return None if own is None else f"{lead}{own}.{match[3]}"
    named = name if name.startswith("model.layers.") else canonical_name(name, architecture)
    if named is None or not is_mtp:
        return named
    return f"{PREDICTOR}layers.0.{named.removeprefix('model.layers.').partition('.')[2]}"


def layer_of(name: str) -> int:
    """Return the number of a tensor's layer, -1 where it is in none."""
    match = _IN_ANY_LAYER.match(name)
    return -1 if match is None else int(match[1])


def expert_names(name: str, architecture: str, num_experts: int) -> tuple[str, ...]:
    """Return the names in the models' layout of the matrices that a tensor stacks, none where it stacks no experts.

    Where an expert has two of them, they follow each other.
    """
    match = _LAYER_NAME.fullmatch(name)
    if architecture not in WITH_EXPERTS or match is None or match[2] not in _EXPERTS or match[3] != "weight":
        return ()
    parts, module = _EXPERTS[match[2]], "mlp"
    if architecture in _NUMBERED:
        parts, module = tuple(_MIXTRAL[part] for part in parts), _NUMBERED[architecture]
    stem = f"model.layers.{int(match[1])}.{module}.experts"
    return tuple(f"{stem}.{expert}.{part}.weight" for expert in range(num_experts) for part in parts)


def factor_tensors(architecture: str) -> tuple[str, ...]:
    """Return the names of tensors that have factors of rotary frequencies which count."""
    return _CONSTANTS if architecture == "phi3" else (ROPE_FACTORS,)


def is_constant(name: str) -> bool:
    """Whether a tensor holds constants of rotary embeddings, which are read with the metadata or computed anew."""
    return name in _CONSTANTS or name.endswith(".attn_rot_embd")


def has_interleaved_heads(name: str, architecture: str) -> bool:
    """Whether rows of queries and keys lie in rotary pairs, other than in the directory that a file was made from."""
    match = _LAYER_NAME.fullmatch(name)
    return architecture in _INTERLEAVED and match is not None and match[2] in _ROTARY_PARTS
