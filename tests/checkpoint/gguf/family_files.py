"""Golden checkpoints of the families as GGUF files, written with the gguf package by its own names."""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, cast

import numpy as np
from gguf import (
    MODEL_ARCH,
    MODEL_ARCH_NAMES,
    ExpertGatingFuncType,
    GGMLQuantizationType,
    GGUFWriter,
    RopeScalingType,
    TensorNameMap,
    get_tensor_name_map,
)
from gguf.quants import quantize

from tests.golden.cases import CASES
from tests.golden.checkpoints import weights
from tests.golden.gpt_oss import by_rows
from tests.golden.mixtures import apart
from tests.golden.short_convs import attending_layers, ffn_size

from .delta_net_files import delta_net_tensors
from .gemma4_files import add_gemma4, gemma4_factors, gemma4_widths, scale_name
from .golden_files import interleaved, llama3_factors
from .granite_files import STAY_WIDE, add_granite_hybrid, granite_hybrid_tensors
from .latent_files import add_latents, latents_apart
from .rwkv7_files import write_rwkv7

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from tests.golden.checkpoints import Floats

_KINDS = {
    "cohere2": MODEL_ARCH.COHERE2,
    "deepseek_v2_lite": MODEL_ARCH.DEEPSEEK2,
    "deepseek_v3": MODEL_ARCH.DEEPSEEK2,
    "ernie4_5": MODEL_ARCH.ERNIE4_5,
    "ernie4_5_moe": MODEL_ARCH.ERNIE4_5_MOE,
    "exaone4": MODEL_ARCH.EXAONE4,
    "gemma2": MODEL_ARCH.GEMMA2,
    "gemma4": MODEL_ARCH.GEMMA4,
    "gemma4_moe": MODEL_ARCH.GEMMA4,
    "gemma4_small": MODEL_ARCH.GEMMA4,
    "glm": MODEL_ARCH.CHATGLM,
    "glm4": MODEL_ARCH.GLM4,
    "glm4_moe": MODEL_ARCH.GLM4_MOE,
    "glm4_moe_lite": MODEL_ARCH.DEEPSEEK2,
    "gpt_oss": MODEL_ARCH.GPT_OSS,
    "granite": MODEL_ARCH.GRANITE,
    "granite_hybrid": MODEL_ARCH.GRANITE_HYBRID,
    "granite_hybrid_moe": MODEL_ARCH.GRANITE_HYBRID,
    "lfm2": MODEL_ARCH.LFM2,
    "lfm2_moe": MODEL_ARCH.LFM2MOE,
    "llama_yarn": MODEL_ARCH.LLAMA,
    "ministral3": MODEL_ARCH.MISTRAL3,
    "mistral4": MODEL_ARCH.MISTRAL4,
    "mixtral": MODEL_ARCH.LLAMA,
    "olmo2": MODEL_ARCH.OLMO2,
    "olmo3": MODEL_ARCH.OLMO2,
    "olmoe": MODEL_ARCH.OLMOE,
    "phi3": MODEL_ARCH.PHI3,
    "phi4_mini": MODEL_ARCH.PHI3,
    "qwen2_5_vl": MODEL_ARCH.QWEN2VL,
    "qwen2_moe": MODEL_ARCH.QWEN2MOE,
    "qwen3_5": MODEL_ARCH.QWEN35,
    "qwen3_5_moe": MODEL_ARCH.QWEN35MOE,
    "qwen3_moe": MODEL_ARCH.QWEN3MOE,
    "qwen3_next": MODEL_ARCH.QWEN3NEXT,
    "qwen3_vl": MODEL_ARCH.QWEN3VL,
    "qwen3_yarn": MODEL_ARCH.QWEN3,
    "rwkv7": MODEL_ARCH.RWKV7,
    "seed_oss": MODEL_ARCH.SEED_OSS,
    "smollm3": MODEL_ARCH.SMOLLM3,
}
_DELTA_NETS = (MODEL_ARCH.QWEN35, MODEL_ARCH.QWEN35MOE, MODEL_ARCH.QWEN3NEXT)
_ROUTERS = (
    "mlp.gate.weight",
    "mlp.router.weight",
    "block_sparse_moe.gate.weight",
    "feed_forward.gate.weight",
    "router.proj.weight",
    "shared_expert_gate.weight",
)
_NUMBERED = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
_WITH_DENSE = (MODEL_ARCH.QWEN2MOE, MODEL_ARCH.QWEN3MOE, MODEL_ARCH.QWEN3NEXT)
# By a layer that predicts a further token.
_FOLLOWED = ("glm4_moe", "glm4_moe_lite", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
FAMILY_FILES = tuple(_KINDS)
_INTERLEAVED = (
    *(MODEL_ARCH.GRANITE, MODEL_ARCH.GRANITE_HYBRID),
    *(MODEL_ARCH.LLAMA, MODEL_ARCH.MISTRAL3, MODEL_ARCH.SMOLLM3),
)


def write_family(
    path: Path,
    name: str,
    quantised: tuple[str, ...] = (),
    *,
    kind: str = "Q8_0",
    joins_gates: bool = False,
    fuses_attention: bool = False,
    has_experts_apart: bool = False,
    joins_latents: bool = False,
    predictor: Mapping[str, Floats] | None = None,
) -> Path:
    """Write a case as a file whose matrices are F16; return its path.

    Those with a part of `quantised` in their names are of another `kind`. With `joins_gates` experts' gates and what
    they are for stay one tensor, if they are one in the directory; Gemma 4's always do. So do those of linear attention
    in Qwen3-Next. With `fuses_attention` queries, keys and values are one, and with `joins_latents` those of latents,
    as older converters left them. With `has_experts_apart` each expert has its own, as files of Mixtral had at
    first. A `predictor` has the tensors of the layer behind the last.
    """
    case, arch = CASES[name], _KINDS[name]
    config = cast("Mapping[str, object]", case.text_config)
    if arch is MODEL_ARCH.RWKV7:
        return write_rwkv7(path, config, weights(case))
    writer = GGUFWriter(path, MODEL_ARCH_NAMES[arch])
    _add_sizes(writer, config)
    if arch is MODEL_ARCH.GEMMA4:
        add_gemma4(writer, config)
    else:
        _add_rotary(writer, config)
    _add_attention(writer, config)
    names = get_tensor_name_map(arch, _int(config["num_hidden_layers"]) + 1)
    predictor_names = get_tensor_name_map(MODEL_ARCH.GLM4_MOE, _int(config["num_hidden_layers"]) + 1)
    dense_names = get_tensor_name_map(MODEL_ARCH.QWEN3, _int(config["num_hidden_layers"]))
    tensors = chain(weights(case), (predictor or {}).items())
    if arch is MODEL_ARCH.GPT_OSS:
        tensors = by_rows(tensors)
    elif not joins_gates and arch is not MODEL_ARCH.GEMMA4:
        tensors = apart(tensors)
    if arch in _DELTA_NETS:
        tensors = delta_net_tensors(config, tensors, joins_gates=joins_gates)
    if arch is MODEL_ARCH.GRANITE_HYBRID:
        tensors = granite_hybrid_tensors(config, tensors)
    if "kv_lora_rank" in config and not joins_latents:
        tensors = latents_apart(config, tensors)
    arrays: dict[str, Floats] = {}
    vectors = set()
    for given, drawn in _stacked(tensors):
        if "visual." in given:
            continue  # a file of its own has these
        key, values = given.replace("language_model.", ""), drawn
        if arch is MODEL_ARCH.GEMMA2 and "norm" in key:
            values = values + np.float32(1)
        if arch in _INTERLEAVED and re.search(r"[qk]_proj\.", key):
            values = interleaved(values, _head_dim(config))
        if key.endswith("conv.conv.weight"):
            values = values[:, 0]
        if "moe_statics" in key:
            values = values[0]
        key = key.replace("e_score_correction_bias", "e_score_correction.bias")
        key = key.replace("expert_bias", "expert_bias.bias")
        key = key.replace("layer_scalar", "layer_scalar.weight")
        if arch is MODEL_ARCH.LFM2MOE:
            key = re.sub(r"(?<=experts\.)w[123]", lambda match: _NUMBERED[match[0]], key)
        file_name = scale_name(key) or names.get_name(key, try_suffixes=(".weight", ".bias"))
        if file_name is None and arch in _WITH_DENSE:  # a layer without experts
            file_name = dense_names.get_name(key, try_suffixes=(".weight",))
        if file_name is None:  # of a layer that predicts, which the package knows of this family alone
            file_name = predictor_names.get_name(key, try_suffixes=(".weight",))
        assert file_name is not None, key
        is_router = key.endswith(_ROUTERS)
        is_vector = is_router or key.endswith((".bias", *STAY_WIDE)) or "conv.conv" in key or "conv1d" in key
        arrays[file_name] = values
        if values.ndim < 2 or is_vector:
            vectors.add(file_name)
    if has_experts_apart:
        arrays = dict(_one_by_one(arrays))
    for file_name, values in (fused(arrays) if fuses_attention else arrays).items():
        if any(part in file_name for part in quantised):
            number = GGMLQuantizationType[kind]
            writer.add_tensor(file_name, quantize(values, number), raw_dtype=number)
            continue
        is_vector = values.ndim < 2 or file_name in vectors
        writer.add_tensor(file_name, values.astype(np.float32 if is_vector else np.float16))
    _add_factors(writer, config, names)
    if arch is MODEL_ARCH.GEMMA4:
        writer.add_tensor("rope_freqs.weight", gemma4_factors(config))
    if config["model_type"] in _FOLLOWED and predictor is None:
        last, hidden = _int(config["num_hidden_layers"]), _int(config["hidden_size"])
        for name, shape in (("nextn.eh_proj", (hidden, 2 * hidden)), ("ffn_up_exps", (2, hidden, 8))):
            writer.add_tensor(f"blk.{last}.{name}.weight", np.zeros(shape, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _one_by_one(arrays: Mapping[str, Floats]) -> Iterator[tuple[str, Floats]]:
    for name, values in arrays.items():
        if not name.endswith("_exps.weight"):
            yield name, values
            continue
        for expert, matrix in enumerate(values):
            yield name.replace("_exps", f".{expert}"), matrix


def fused(arrays: Mapping[str, Floats]) -> dict[str, Floats]:
    """Put rows of queries, keys and values into one tensor each, where a layer has all three."""
    result = dict(arrays)
    for name in arrays:
        parts = [name.replace("attn_q.", f"attn_{part}.") for part in "qkv"]
        if "attn_q." in name and all(part in arrays for part in parts):
            result[name.replace("attn_q.", "attn_qkv.")] = np.concatenate([result.pop(part) for part in parts])
    return result


def _stacked(tensors: Iterable[tuple[str, Floats]]) -> Iterator[tuple[str, Floats]]:
    """Yield tensors by names that end in ".weight" or ".bias", those of all experts of a layer as one."""
    experts: dict[str, list[Floats]] = {}
    for name, values in tensors:
        if (".experts." in name and values.ndim == 3) or name.endswith("self_attn.sinks"):
            yield f"{name}.weight", values
        elif ".experts." in name and not name.endswith(".bias"):
            experts.setdefault(re.sub(r"experts\.\d+", "experts", name), []).append(values)
        else:
            yield name, values
    for name, matrices in experts.items():
        yield f"{name.removesuffix('.weight')}.weight", np.stack(matrices)


def _add_sizes(writer: GGUFWriter, config: Mapping[str, object]) -> None:
    writer.add_context_length(_int(config["max_position_embeddings"]))
    writer.add_embedding_length(_int(config["hidden_size"]))
    is_followed = config["model_type"] in _FOLLOWED
    writer.add_block_count(_int(config["num_hidden_layers"]) + is_followed)
    if is_followed:
        writer.add_nextn_predict_layers(1)
    writer.add_head_count(_int(config["num_attention_heads"]))
    if "conv_L_cache" in config:
        _add_short_convs(writer, config)
    elif "linear_num_key_heads" in config:
        _add_delta_net(writer, config)
    else:
        writer.add_feed_forward_length(gemma4_widths(config) or _int(config["intermediate_size"]))
        if config["model_type"] == "granitemoehybrid":
            add_granite_hybrid(writer, config)
        elif config["model_type"] != "gemma4_text":
            writer.add_head_count_kv(1 if "kv_lora_rank" in config else _int(config["num_key_value_heads"]))
    keys = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    num_experts = next((config[key] for key in keys if key in config), None)
    if num_experts is not None:
        writer.add_expert_count(_int(num_experts))
        writer.add_expert_used_count(
            _int(config.get("num_experts_per_tok", config.get("moe_k", config.get("top_k_experts"))))
        )
    if config["model_type"] == "gpt_oss":
        writer.add_expert_feed_forward_length(_int(config["intermediate_size"]))
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(_int(config["moe_intermediate_size"]))
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(_int(config["shared_expert_intermediate_size"]))
    if config["model_type"] == "glm4_moe":
        _add_groups(writer, config)
    if "kv_lora_rank" in config:
        add_latents(writer, config)
    elif "head_dim" in config and config["model_type"] != "gemma4_text":
        writer.add_key_length(_int(config["head_dim"]))
        writer.add_value_length(_int(config["head_dim"]))
    eps = config.get("rms_norm_eps", config.get("norm_eps"))
    if eps is not None:
        writer.add_layer_norm_rms_eps(_float(eps))
    else:
        writer.add_layer_norm_eps(_float(config["layer_norm_eps"]))


def _add_delta_net(writer: GGUFWriter, config: Mapping[str, object]) -> None:
    heads = _int(config["linear_num_value_heads"])
    if "intermediate_size" in config:
        writer.add_feed_forward_length(_int(config["intermediate_size"]))
    writer.add_head_count_kv(_int(config["num_key_value_heads"]))
    writer.add_ssm_conv_kernel(_int(config["linear_conv_kernel_dim"]))
    writer.add_ssm_state_size(_int(config["linear_key_head_dim"]))
    writer.add_ssm_group_count(_int(config["linear_num_key_heads"]))
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(heads * _int(config["linear_value_head_dim"]))
    writer.add_full_attention_interval(2)


def _add_groups(writer: GGUFWriter, config: Mapping[str, object]) -> None:
    writer.add_expert_shared_count(_int(config["n_shared_experts"]))
    writer.add_leading_dense_block_count(_int(config["first_k_dense_replace"]))
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(_float(config["routed_scaling_factor"]))
    writer.add_expert_weights_norm(bool(config["norm_topk_prob"]))
    writer.add_expert_group_count(_int(config["n_group"]))
    writer.add_expert_group_used_count(_int(config["topk_group"]))


def _add_short_convs(writer: GGUFWriter, config: Mapping[str, object]) -> None:
    writer.add_feed_forward_length(ffn_size(config) if "block_ff_dim" in config else _int(config["intermediate_size"]))
    attending = attending_layers(config)
    kv_heads, num_layers = _int(config["num_key_value_heads"]), _int(config["num_hidden_layers"])
    writer.add_head_count_kv([kv_heads if layer in attending else 0 for layer in range(num_layers)])
    writer.add_shortconv_l_cache(_int(config["conv_L_cache"]))
    if "num_dense_layers" in config:
        writer.add_leading_dense_block_count(_int(config["num_dense_layers"]))
        writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(_float(config["routed_scaling_factor"]))


def _add_rotary(writer: GGUFWriter, config: Mapping[str, object]) -> None:
    scaling = config.get("rope_parameters", config.get("rope_scaling"))
    parameters = scaling if isinstance(scaling, dict) else {}
    writer.add_rope_freq_base(_float(parameters.get("rope_theta", config.get("rope_theta"))))
    part = _float(parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)))
    writer.add_rope_dimension_count(int(part * _int(config.get("qk_rope_head_dim", _head_dim(config)))))
    kind = parameters.get("rope_type", parameters.get("type"))
    if kind == "longrope":
        writer.add_rope_scaling_type(RopeScalingType.LONGROPE)
        writer.add_rope_scaling_orig_ctx_len(_int(config["original_max_position_embeddings"]))
    elif sections := parameters.get("mrope_section"):
        writer.add_rope_dimension_sections([*cast("list[int]", sections), 0])
    elif kind == "yarn":
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(_float(parameters["factor"]))
        writer.add_rope_scaling_orig_ctx_len(parameters["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(_float(parameters.get("beta_fast", 32.0)))
        writer.add_rope_scaling_yarn_beta_slow(_float(parameters.get("beta_slow", 1.0)))
        if "kv_lora_rank" in config:
            writer.add_rope_scaling_yarn_log_mul(0.1 * _float(parameters["mscale_all_dim"]))
            if "llama_4_scaling_beta" in parameters:
                writer.add_attn_temperature_scale(_float(parameters["llama_4_scaling_beta"]))
        elif "mscale_all_dim" in parameters:
            writer.add_rope_scaling_yarn_log_mul(_float(parameters["mscale_all_dim"]))
            writer.add_attn_temperature_scale(_float(parameters["llama_4_scaling_beta"]))
    elif "logit_scale" in config:
        writer.add_rope_scaling_type(RopeScalingType.NONE)


def _add_attention(writer: GGUFWriter, config: Mapping[str, object]) -> None:
    if "sliding_window" in config and "use_sliding_window" not in config:
        writer.add_sliding_window(_int(config["sliding_window"] or 0))
    is_listed = config["model_type"] not in ("cohere2", "granitemoehybrid") and "linear_num_key_heads" not in config
    if isinstance(kinds := config.get("layer_types"), list) and is_listed:
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in kinds])
    for key, add in (
        ("attn_logit_softcapping", writer.add_attn_logit_softcapping),
        ("final_logit_softcapping", writer.add_final_logit_softcapping),
        ("attention_multiplier", writer.add_attention_scale),
        ("embedding_multiplier", writer.add_embedding_scale),
        ("residual_multiplier", writer.add_residual_scale),
        ("logits_scaling", writer.add_logit_scale),
        ("logit_scale", writer.add_logit_scale),
    ):
        if key in config:
            add(_float(config[key]))
    if "query_pre_attn_scalar" in config:
        writer.add_attention_scale(_float(config["query_pre_attn_scalar"]) ** -0.5)


def _add_factors(writer: GGUFWriter, config: Mapping[str, object], names: TensorNameMap) -> None:
    scaling = config.get("rope_scaling")
    if isinstance(scaling, dict) and scaling.get("rope_type") == "longrope":
        for kind in ("long", "short"):
            writer.add_tensor(f"rope_factors_{kind}.weight", np.array(scaling[f"{kind}_factor"], np.float32))
    factors = llama3_factors(config, _head_dim(config))
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)


def _head_dim(config: Mapping[str, object]) -> int:
    return _int(config.get("head_dim", _int(config["hidden_size"]) // _int(config["num_attention_heads"])))


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def _float(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)
