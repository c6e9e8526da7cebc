"""Golden models with latent attention, and their tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .case import PLAIN, Case, JsonObject, Layout
from .families import PIXTRAL
from .mixtures import expert_tensors, has_experts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

_LATENT: JsonObject = {
    **PLAIN,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 48,
    "n_routed_experts": 9,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
}
_YARN: JsonObject = {
    "type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.6,
}
_GROUPS: JsonObject = {"n_group": 3, "topk_group": 2}
_MISTRAL4: JsonObject = {
    **{key: value for key, value in _LATENT.items() if key != "rope_theta"},
    **_GROUPS,
    "model_type": "mistral4",
    "hidden_size": 96,
    "qk_rope_head_dim": 32,
    "n_routed_experts": 6,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.2,
    },
}
_GAINS = {"kv_b_proj": 1.1, "o_proj": 1.2, "gate": 1.0, "down_proj": 1.3}
_MILD = {"q_b_proj": 0.8, "down_proj": 1.2}

LATENTS = (
    Case(
        "glm4_moe_lite",
        {
            **_LATENT,
            **_GROUPS,
            "architectures": ["Glm4MoeLiteForCausalLM"],
            "model_type": "glm4_moe_lite",
            "rope_theta": 1_000_000.0,
            "partial_rotary_factor": 1.0,
            "num_nextn_predict_layers": 0,
        },
        "glm4_moe_lite",
        gains=_GAINS,
    ),
    Case(
        "deepseek_v2",
        {
            **_LATENT,
            **_GROUPS,
            "architectures": ["DeepseekV2ForCausalLM"],
            "model_type": "deepseek_v2",
            "topk_method": "group_limited_greedy",
            "topk_group": 1,
            "norm_topk_prob": False,
            "routed_scaling_factor": 2.5,
            "rope_scaling": _YARN,
        },
        "deepseek_v2",
        gains=_GAINS,
    ),
    # As V2-Lite: queries without a latent, and no groups.
    Case(
        "deepseek_v2_lite",
        {
            **_LATENT,
            "architectures": ["DeepseekV2ForCausalLM"],
            "model_type": "deepseek_v2",
            "q_lora_rank": None,
            "kv_lora_rank": 96,
            "qk_rope_head_dim": 32,
            "topk_method": "greedy",
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.0,
            "rope_scaling": {**_YARN, "mscale": 0.7, "mscale_all_dim": 0.7},
        },
        "deepseek_v2_lite",
        gains=_GAINS,
    ),
    Case(
        "deepseek_v3",
        {
            **_LATENT,
            **_GROUPS,
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "rope_scaling": {**_YARN, "mscale": 0.8, "mscale_all_dim": 0.8},
            "num_nextn_predict_layers": 0,
        },
        "deepseek_v3",
        gains=_GAINS,
    ),
    # Experts that are one tensor, a softmax with groups, and queries that grow with their position.
    Case(
        "mistral4",
        {"architectures": ["Mistral4ForCausalLM"], **_MISTRAL4},
        "mistral4",
        gains=_MILD,
    ),
    Case(
        "mistral4_multimodal",
        {
            "architectures": ["Mistral3ForConditionalGeneration"],
            "model_type": "mistral3",
            "text_config": _MISTRAL4,
            "vision_config": PIXTRAL,
            "tie_word_embeddings": False,
            "image_token_index": 505,
            "multimodal_projector_bias": False,
            "spatial_merge_size": 2,
        },
        "mistral4",
        Layout.MULTIMODAL_OLD,
        gains=_MILD,
    ),
)


def latent_tensors(case: Case, draw: Callable[..., Floats]) -> Iterator[tuple[str, Floats]]:
    """Yield every tensor of the decoder; `draw` gets a name, a shape, a deviation and a mean."""
    config = cast("Mapping[str, int]", case.text_config)
    hidden, vocab, heads = config["hidden_size"], config["vocab_size"], config["num_attention_heads"]
    plain, rotary, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    latent, rank = config["kv_lora_rank"], config["q_lora_rank"]

    def matrix(name: str, rows: int, width: int) -> tuple[str, Floats]:
        gain = case.gains.get(name.rsplit(".", 1)[-1], 1.0)
        return f"{name}.weight", draw(f"{case.reference}/{name}", (rows, width), gain / width**0.5)

    def stack(name: str, rows: int, width: int) -> tuple[str, Floats]:
        gain = case.gains.get(name.rsplit(".", 1)[-1], 1.0)
        return name, draw(f"{case.reference}/{name}", (config["n_routed_experts"], rows, width), gain / width**0.5)

    def norm(name: str, size: int) -> tuple[str, Floats]:
        return f"{name}.weight", draw(f"{case.reference}/{name}", (size,), 0.2, 1.0)

    yield "model.embed_tokens.weight", draw(f"{case.reference}/embed", (vocab, hidden), 1.0)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        attention = f"{prefix}self_attn."
        yield norm(f"{prefix}input_layernorm", hidden)
        if rank:
            yield matrix(f"{attention}q_a_proj", rank, hidden)
            yield norm(f"{attention}q_a_layernorm", rank)
        yield matrix(f"{attention}{'q_b_proj' if rank else 'q_proj'}", heads * (plain + rotary), rank or hidden)
        yield matrix(f"{attention}kv_a_proj_with_mqa", latent + rotary, hidden)
        yield norm(f"{attention}kv_a_layernorm", latent)
        yield matrix(f"{attention}kv_b_proj", heads * (plain + value), latent)
        yield matrix(f"{attention}o_proj", hidden, heads * value)
        yield norm(f"{prefix}post_attention_layernorm", hidden)
        if has_experts(case.text_config, layer):
            is_stacked = case.text_config["model_type"] == "mistral4"
            yield from expert_tensors(case.text_config, prefix, matrix, stack if is_stacked else None)
            if case.text_config["model_type"] in ("glm4_moe_lite", "deepseek_v3"):
                name = f"{prefix}mlp.gate.e_score_correction_bias"
                yield name, draw(f"{case.reference}/{name}", (config["n_routed_experts"],), 0.15)
            continue
        ffn = config["intermediate_size"]
        for part, rows, width in (("gate_proj", ffn, hidden), ("up_proj", ffn, hidden), ("down_proj", hidden, ffn)):
            yield matrix(f"{prefix}mlp.{part}", rows, width)
    yield norm("model.norm", hidden)
    yield matrix("lm_head", vocab, hidden)
