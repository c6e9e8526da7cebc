"""What released models say in config.json, as far as kernels go by it; no files of random weights are made of them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
from model_shapes import SHAPES, LinearHeads

if TYPE_CHECKING:
    from collections.abc import Mapping


def _gpt_oss(layers: int, experts: int) -> dict[str, object]:
    return {
        "architectures": ["GptOssForCausalLM"],
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": layers,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": experts,
        "num_experts_per_tok": 4,
        "vocab_size": 201_088,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": False,
    }


def _gemma4(**sizes: object) -> dict[str, object]:
    text = {"head_dim": 256, "global_head_dim": 512, "vocab_size": 262_144, "final_logit_softcapping": 30.0}
    return {"architectures": ["Gemma4ForConditionalGeneration"], "text_config": {**text, **sizes}}


def _qwen25(
    hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, *, is_tied: bool = False
) -> dict[str, object]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": 151_936 if is_tied else 152_064,
        "max_position_embeddings": 32_768,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": is_tied,
    }


def _granite4(hidden: int, heads: int, kv_heads: int, **sizes: int) -> dict[str, object]:
    return {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": 40,
        "layer_types": ["attention" if layer % 10 == 5 else "mamba" for layer in range(40)],
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "mamba_n_heads": hidden // 32,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "vocab_size": 100_352,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
        **sizes,
    }


def _latent(architecture: str, **sizes: object) -> dict[str, object]:
    return {
        "architectures": [architecture],
        "hidden_size": 2048,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "n_routed_experts": 64,
        "first_k_dense_replace": 1,
        "tie_word_embeddings": False,
        **sizes,
    }


# Qwen 3.8 has the architecture of 3.5, and 27 billion weights in the same layers.
LINEAR = {
    "qwen3.5-9b": replace(
        SHAPES["qwen3.5-27b"], hidden=4096, layers=32, heads=16, ffn=12_288, linear=LinearHeads(16, 32)
    ),
    "qwen3-next-80b-a3b": replace(
        SHAPES["qwen3.5-35b-a3b"], layers=48, vocab=151_936, experts=512, experts_used=10, linear=LinearHeads(16, 32)
    ),
}
CONFIGS: Mapping[str, Mapping[str, object]] = {
    "qwen2.5-3b": _qwen25(2048, 11_008, 36, 16, 2, is_tied=True),
    "qwen2.5-7b": _qwen25(3584, 18_944, 28, 28, 4),
    "qwen2.5-14b": _qwen25(5120, 13_824, 48, 40, 8),
    "glm-4.7-flash": _latent(
        "Glm4MoeLiteForCausalLM",
        intermediate_size=10_240,
        num_hidden_layers=47,
        num_attention_heads=20,
        q_lora_rank=768,
        qk_nope_head_dim=192,
        v_head_dim=256,
        num_experts_per_tok=4,
        moe_intermediate_size=1536,
        routed_scaling_factor=1.8,
        vocab_size=154_880,
        max_position_embeddings=202_752,
    ),
    "deepseek-v2-lite": _latent(
        "DeepseekV2ForCausalLM",
        intermediate_size=10_944,
        num_hidden_layers=27,
        num_attention_heads=16,
        qk_nope_head_dim=128,
        v_head_dim=128,
        num_experts_per_tok=6,
        moe_intermediate_size=1408,
        vocab_size=102_400,
        max_position_embeddings=163_840,
    ),
    "gpt-oss-20b": _gpt_oss(layers=24, experts=32),
    "gpt-oss-120b": _gpt_oss(layers=36, experts=128),
    "granite4-h-tiny": _granite4(
        1536, 12, 4, intermediate_size=512, shared_intermediate_size=1024, num_local_experts=64, num_experts_per_tok=6
    ),
    "granite4-h-small": _granite4(
        4096, 32, 8, intermediate_size=768, shared_intermediate_size=1536, num_local_experts=72, num_experts_per_tok=10
    ),
    "gemma4-31b": _gemma4(
        hidden_size=5376,
        intermediate_size=21_504,
        num_hidden_layers=60,
        num_attention_heads=32,
        num_key_value_heads=16,
        num_global_key_value_heads=4,
        attention_k_eq_v=True,
        sliding_window=1024,
        hidden_size_per_layer_input=0,
    ),
    "gemma4-26b-a4b": _gemma4(
        hidden_size=2816,
        intermediate_size=2112,
        num_hidden_layers=30,
        num_attention_heads=16,
        num_key_value_heads=8,
        num_global_key_value_heads=2,
        attention_k_eq_v=True,
        sliding_window=1024,
        hidden_size_per_layer_input=0,
        enable_moe_block=True,
        num_experts=128,
        top_k_experts=8,
        moe_intermediate_size=704,
    ),
    "gemma4-e4b": _gemma4(
        hidden_size=2560,
        intermediate_size=10_240,
        num_hidden_layers=42,
        num_attention_heads=8,
        num_key_value_heads=2,
        num_kv_shared_layers=18,
        hidden_size_per_layer_input=256,
        sliding_window=512,
    ),
}
