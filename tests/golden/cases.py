"""Small random models, one per thing that an architecture may get wrong: config.json, and how weights are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .case import PEAKED, TOKENS, Case, JsonObject, Layout
from .delta_nets import DELTA_NETS
from .families import FAMILIES
from .gemma4 import GEMMA4
from .gpt_oss import GPT_OSS
from .granite_hybrids import GRANITE_HYBRIDS
from .latents import LATENTS
from .mixtures import MIXTURES
from .rwkv7 import RWKV7
from .short_convs import LFM2_MOE, LFM3
from .vision_language import VISION_LANGUAGE

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CASES", "FIRST_CASES", "Case", "JsonObject", "Layout"]

_GEMMA3: JsonObject = {
    **TOKENS,
    "model_type": "gemma3_text",
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 48,
    "sliding_window": 32,
    "tie_word_embeddings": True,
    "attention_bias": False,
}
_GEMMA3_OLD: JsonObject = {
    **_GEMMA3,
    "sliding_window_pattern": 3,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
_GEMMA3_NEW: JsonObject = {
    **_GEMMA3,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}
_VISION: JsonObject = {
    "model_type": "siglip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "vision_use_head": False,
}
_MULTIMODAL: JsonObject = {
    "model_type": "gemma3",
    "architectures": ["Gemma3ForConditionalGeneration"],
    "vision_config": _VISION,
    "mm_tokens_per_image": 4,
    "boi_token_index": 509,
    "eoi_token_index": 510,
    "image_token_index": 511,
    "eos_token_id": [1, 106],
}
_LLAMA: JsonObject = {
    **TOKENS,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "mlp_bias": False,
}
_LLAMA3_SCALING: JsonObject = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_QWEN: JsonObject = {
    **TOKENS,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "use_sliding_window": False,
    "sliding_window": None,
}
_MILD = {"post_attention_layernorm": 0.7, "post_feedforward_layernorm": 0.5}

_CASES = (
    Case("gemma3", {**_GEMMA3_NEW, "architectures": ["Gemma3ForCausalLM"]}, "gemma3", norm_gains=_MILD),
    Case(
        "gemma3_multimodal_old",
        {**_MULTIMODAL, "text_config": _GEMMA3_OLD},
        "gemma3",
        Layout.MULTIMODAL_OLD,
        norm_gains=_MILD,
    ),
    Case(
        "gemma3_multimodal_new",
        {**_MULTIMODAL, "text_config": _GEMMA3_NEW},
        "gemma3",
        Layout.MULTIMODAL_NEW,
        norm_gains=_MILD,
    ),
    # Hidden states, the gated product and the projections' outputs all pass 65,504; keys and values stay below it.
    Case(
        "gemma3_large",
        {**_GEMMA3_OLD, "architectures": ["Gemma3ForCausalLM"]},
        "gemma3_large",
        gains={"v_proj": 50.0, "o_proj": 30.0, "gate_proj": 30.0, "up_proj": 30.0, "down_proj": 3.0},
        norm_gains={
            "input_layernorm": 6.0,
            "post_attention_layernorm": 30_000.0,
            "pre_feedforward_layernorm": 8.0,
            "post_feedforward_layernorm": 30_000.0,
        },
    ),
    Case(
        "llama",
        {**_LLAMA, "tie_word_embeddings": False, "rope_theta": 10_000.0, "rope_scaling": _LLAMA3_SCALING},
        "llama",
        gains=PEAKED,
    ),
    Case(
        "llama_tied",
        {
            **_LLAMA,
            "tie_word_embeddings": True,
            "head_dim": 32,
            "rope_parameters": {**_LLAMA3_SCALING, "rope_theta": 500_000.0, "factor": 32.0},
        },
        "llama_tied",
        gains=PEAKED,
    ),
    Case(
        "llama_bias",
        {**_LLAMA, "tie_word_embeddings": False, "attention_bias": True, "rope_theta": 10_000.0},
        "llama_bias",
        gains=PEAKED,
    ),
    Case(
        "mistral",
        {
            **_LLAMA,
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "hidden_size": 96,
            "num_key_value_heads": 1,
            "head_dim": 64,
            "sliding_window": 48,
            "tie_word_embeddings": False,
            "rope_theta": 10_000.0,
        },
        "mistral",
        gains=PEAKED,
    ),
    Case(
        "qwen2",
        {
            **_QWEN,
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_size": 128,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "tie_word_embeddings": True,
            "rope_theta": 1_000_000.0,
        },
        "qwen2",
        gains=PEAKED,
    ),
    Case(
        "qwen3",
        {
            **_QWEN,
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "attention_bias": False,
            "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        },
        "qwen3",
        gains=PEAKED,
    ),
)
FIRST_CASES: Mapping[str, Case] = {case.name: case for case in _CASES}
_OTHERS = (
    *FAMILIES,
    *GEMMA4,
    *MIXTURES,
    GPT_OSS,
    LFM2_MOE,
    LFM3,
    RWKV7,
    *GRANITE_HYBRIDS,
    *VISION_LANGUAGE,
    *DELTA_NETS,
    *LATENTS,
)
CASES: Mapping[str, Case] = {**FIRST_CASES, **{case.name: case for case in _OTHERS}}
