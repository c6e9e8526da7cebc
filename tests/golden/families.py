"""Golden models of the families that a small file describes each: every trait of a family is in one of its cases."""

from __future__ import annotations

from .case import PEAKED, TOKENS, Case, JsonObject, Layout

_PLAIN: JsonObject = {
    **TOKENS,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "rope_theta": 10_000.0,
}
_LOCAL_FIRST = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
_YARN: JsonObject = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
# 24 pairs of a head of 64 rotate.
_SHORT = [1.0 + 0.02 * pair for pair in range(24)]
_LONG = [1.0 + 0.25 * pair for pair in range(24)]
_LONGROPE: JsonObject = {"rope_type": "longrope", "short_factor": _SHORT, "long_factor": _LONG}
_GLM: JsonObject = {
    **_PLAIN,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1.5625e-7,
    "attention_bias": True,
}
_MINISTRAL: JsonObject = {
    **_PLAIN,
    "model_type": "ministral3",
    "hidden_size": 96,
    "head_dim": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "sliding_window": None,
    "rope_parameters": {
        **_YARN,
        "rope_theta": 1_000_000.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.2,
    },
}
_PIXTRAL: JsonObject = {
    "model_type": "pixtral",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "head_dim": 16,
    "image_size": 28,
    "patch_size": 14,
}
# What is normed on its way out is as large as the stream, whatever the gains of matrices are.
_MILD = {"post_attention_layernorm": 0.7, "post_feedforward_layernorm": 0.7}

FAMILIES = (
    Case(
        "gemma2",
        {
            **_PLAIN,
            "architectures": ["Gemma2ForCausalLM"],
            "model_type": "gemma2",
            "hidden_size": 96,
            "num_hidden_layers": 4,
            "head_dim": 32,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 24,
            "sliding_window": 32,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 2.0,
            "tie_word_embeddings": True,
        },
        "gemma2",
        gains={"q_proj": 1.2, "k_proj": 1.2},
        norm_gains={**_MILD, "norm": 2.0},
    ),
    Case(
        "olmo2",
        {**_PLAIN, "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "rope_theta": 500_000.0},
        "olmo2",
        norm_gains={**_MILD, "q_norm": 1.2, "k_norm": 1.2},
    ),
    Case(
        "olmo3",
        {
            **_PLAIN,
            "architectures": ["Olmo3ForCausalLM"],
            "model_type": "olmo3",
            "num_hidden_layers": 4,
            "sliding_window": 32,
            "layer_types": _LOCAL_FIRST,
            "rope_theta": 500_000.0,
            "rope_scaling": _YARN,
        },
        "olmo3",
        norm_gains={**_MILD, "q_norm": 1.2, "k_norm": 1.2},
    ),
    Case(
        "phi3",
        {
            **_PLAIN,
            "architectures": ["Phi3ForCausalLM"],
            "model_type": "phi3",
            "sliding_window": 48,
            "num_key_value_heads": 4,
        },
        "phi3",
        gains={"qkv_proj": 1.4, "o_proj": 2.0, "down_proj": 1.5},
    ),
    Case(
        "phi4_mini",
        {
            **_PLAIN,
            "architectures": ["Phi3ForCausalLM"],
            "model_type": "phi3",
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 64,
            "rope_scaling": _LONGROPE,
            "sliding_window": None,
            "tie_word_embeddings": True,
        },
        "phi4_mini",
        gains={"qkv_proj": 1.0, "o_proj": 2.0, "down_proj": 1.5},
        # An engine has the long factors for every prompt where its context may be long.
        reference_keys={"rope_scaling": {**_LONGROPE, "short_factor": _LONG}},
    ),
    Case(
        "smollm3",
        {
            **_PLAIN,
            "architectures": ["SmolLM3ForCausalLM"],
            "model_type": "smollm3",
            "num_hidden_layers": 5,
            "mlp_bias": False,
            "tie_word_embeddings": True,
        },
        "smollm3",
        gains=PEAKED,
    ),
    Case(
        "granite",
        {
            **_PLAIN,
            "architectures": ["GraniteForCausalLM"],
            "model_type": "granite",
            "mlp_bias": False,
            "embedding_multiplier": 6.0,
            "attention_multiplier": 0.125,
            "residual_multiplier": 0.5,
            "logits_scaling": 8.0,
            "tie_word_embeddings": True,
        },
        "granite",
        gains=PEAKED,
    ),
    Case("glm", {**_GLM, "architectures": ["GlmForCausalLM"], "model_type": "glm"}, "glm", gains=PEAKED),
    Case(
        "glm4",
        {**_GLM, "architectures": ["Glm4ForCausalLM"], "model_type": "glm4"},
        "glm4",
        gains={"q_proj": 1.2, "k_proj": 1.2},
        norm_gains={"post_self_attn_layernorm": 0.7, "post_mlp_layernorm": 0.7},
    ),
    Case("ministral3", {**_MINISTRAL, "architectures": ["Ministral3ForCausalLM"]}, "ministral3", gains=PEAKED),
    Case(
        "ministral3_multimodal",
        {
            "model_type": "mistral3",
            "architectures": ["Mistral3ForConditionalGeneration"],
            "text_config": _MINISTRAL,
            "vision_config": _PIXTRAL,
            "image_token_index": 10,
            "multimodal_projector_bias": False,
            "spatial_merge_size": 2,
            "tie_word_embeddings": False,
        },
        "ministral3",
        Layout.MULTIMODAL_OLD,
        gains=PEAKED,
    ),
    Case(
        "cohere2",
        {
            **{key: value for key, value in _PLAIN.items() if key != "rms_norm_eps"},
            "architectures": ["Cohere2ForCausalLM"],
            "model_type": "cohere2",
            "num_hidden_layers": 4,
            "layer_norm_eps": 1e-5,
            "sliding_window": 32,
            "layer_types": _LOCAL_FIRST,
            "logit_scale": 0.25,
            "rotary_pct": 1.0,
            "tie_word_embeddings": True,
        },
        "cohere2",
        gains=PEAKED,
    ),
    Case(
        "exaone4",
        {
            **_PLAIN,
            "architectures": ["Exaone4ForCausalLM"],
            "model_type": "exaone4",
            "num_hidden_layers": 4,
            "sliding_window": 32,
            "sliding_window_pattern": 4,
            "layer_types": _LOCAL_FIRST,
            "rope_theta": 1_000_000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 16.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        "exaone4",
        norm_gains={**_MILD, "q_norm": 1.2, "k_norm": 1.2},
    ),
    Case(
        "seed_oss",
        {
            **_PLAIN,
            "architectures": ["SeedOssForCausalLM"],
            "model_type": "seed_oss",
            "hidden_size": 96,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 64,
            "attention_bias": True,
            "attention_out_bias": False,
            "mlp_bias": False,
        },
        "seed_oss",
        gains=PEAKED,
    ),
)
