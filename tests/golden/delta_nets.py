"""Golden models with linear attention by the gated delta rule, and their tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .case import PEAKED, TOKENS, Case, JsonObject, Layout
from .mixtures import expert_tensors, has_experts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

_TEXT: JsonObject = {
    **TOKENS,
    "model_type": "qwen3_5_text",
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 48,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25},
    "tie_word_embeddings": False,
}
_MOE: JsonObject = {
    **{key: value for key, value in _TEXT.items() if key != "intermediate_size"},
    "model_type": "qwen3_5_moe_text",
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 96,
}
_NEXT: JsonObject = {
    **_MOE,
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "intermediate_size": 160,
    "mlp_only_layers": [1],
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
}
_GAINS = {**PEAKED, "out_proj": 1.5, "in_proj_qkv": 1.5, "in_proj_qkvz": 1.5}
_MOE_GAINS = {**_GAINS, "gate": 1.0, "shared_expert_gate": 2.0, "down_proj": 2.5}


def _multimodal(text: JsonObject, model_type: str, architecture: str) -> JsonObject:
    rotary = {**cast("JsonObject", text["rope_parameters"]), "mrope_interleaved": True, "mrope_section": [3, 3, 2]}
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "text_config": {**text, "rope_parameters": rotary},
        "tie_word_embeddings": False,
        "image_token_id": 505,
        "video_token_id": 506,
        "vision_start_token_id": 507,
        "vision_end_token_id": 508,
        "vision_config": {
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": 96,
            "num_position_embeddings": 4,
        },
    }


DELTA_NETS = (
    Case("qwen3_5", {**_TEXT, "architectures": ["Qwen3_5ForCausalLM"]}, "qwen3_5", gains=_GAINS),
    Case(
        "qwen3_5_multimodal",
        _multimodal(_TEXT, "qwen3_5", "Qwen3_5ForConditionalGeneration"),
        "qwen3_5",
        Layout.MULTIMODAL_NEW,
        gains=_GAINS,
    ),
    Case("qwen3_next", _NEXT, "qwen3_next", gains={**_GAINS, "gate": 1.0, "shared_expert_gate": 2.0}),
    Case("qwen3_5_moe", {**_MOE, "architectures": ["Qwen3_5MoeForCausalLM"]}, "qwen3_5_moe", gains=_MOE_GAINS),
    Case(
        "qwen3_5_moe_multimodal",
        _multimodal(_MOE, "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration"),
        "qwen3_5_moe",
        Layout.MULTIMODAL_NEW,
        gains=_MOE_GAINS,
    ),
)


def delta_net_tensors(case: Case, draw: Callable[..., Floats]) -> Iterator[tuple[str, Floats]]:
    """Yield every tensor of the decoder; `draw` gets a name, a shape, a deviation and a mean."""
    config = cast("Mapping[str, int]", case.text_config)
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    heads, kv_heads, head_dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    value_heads, value_dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
    values = value_heads * value_dim
    columns = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"] + values

    def matrix(name: str, rows: int, width: int) -> tuple[str, Floats]:
        gain = case.gains.get(name.rsplit(".", 1)[-1], 1.0)
        return f"{name}.weight", draw(f"{case.reference}/{name}", (rows, width), gain / width**0.5)

    def stack(name: str, rows: int, width: int) -> tuple[str, Floats]:
        gain = case.gains.get(name.rsplit(".", 1)[-1], 1.0)
        return name, draw(f"{case.reference}/{name}", (config["num_experts"], rows, width), gain / width**0.5)

    def vector(name: str, size: int, deviation: float, mean: float = 0.0) -> tuple[str, Floats]:
        return name, draw(f"{case.reference}/{name}", (size,), deviation, mean)

    yield "model.embed_tokens.weight", draw(f"{case.reference}/embed", (vocab, hidden), 1.0)
    for layer, kind in enumerate(cast("list[str]", case.text_config["layer_types"])):
        prefix = f"model.layers.{layer}."
        yield vector(f"{prefix}input_layernorm.weight", hidden, 0.2)
        if kind == "full_attention":
            for part, count in (("q_proj", 2 * heads), ("k_proj", kv_heads), ("v_proj", kv_heads)):
                yield matrix(f"{prefix}self_attn.{part}", count * head_dim, hidden)
            yield matrix(f"{prefix}self_attn.o_proj", hidden, heads * head_dim)
            for part in ("q_norm", "k_norm"):
                yield vector(f"{prefix}self_attn.{part}.weight", head_dim, 0.2)
        else:
            inner = f"{prefix}linear_attn."
            apart = (
                ("in_proj_qkv", columns),
                ("in_proj_z", values),
                ("in_proj_b", value_heads),
                ("in_proj_a", value_heads),
            )
            grouped = (("in_proj_qkvz", columns + values), ("in_proj_ba", 2 * value_heads))
            for part, rows in grouped if case.text_config["model_type"] == "qwen3_next" else apart:
                yield matrix(inner + part, rows, hidden)
            taps = (columns, 1, config["linear_conv_kernel_dim"])
            yield f"{inner}conv1d.weight", draw(f"{case.reference}/{inner}conv1d", taps, 0.7)
            yield vector(f"{inner}A_log", value_heads, 1.0, -1.5)
            yield vector(f"{inner}dt_bias", value_heads, 1.0, -1.0)
            yield vector(f"{inner}norm.weight", value_dim, 0.2, 1.0)
            yield matrix(f"{inner}out_proj", hidden, values)
        yield vector(f"{prefix}post_attention_layernorm.weight", hidden, 0.2)
        if has_experts(config, layer):
            is_stacked = case.text_config["model_type"] != "qwen3_next"
            yield from expert_tensors(config, prefix, matrix, stack if is_stacked else None)
            continue
        ffn = config["intermediate_size"]
        for part, rows, width in (("gate_proj", ffn, hidden), ("up_proj", ffn, hidden), ("down_proj", hidden, ffn)):
            yield matrix(f"{prefix}mlp.{part}", rows, width)
    yield vector("model.norm.weight", hidden, 0.2)
    yield matrix("lm_head", vocab, hidden)
