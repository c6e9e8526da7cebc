"""Golden models with a vision model beside the decoder of another case."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .case import PEAKED, TOKENS, Case, JsonObject, Layout

if TYPE_CHECKING:
    from collections.abc import Mapping

_TEXT: JsonObject = {
    **TOKENS,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "use_sliding_window": False,
    "sliding_window": None,
}
_QWEN2: JsonObject = {**_TEXT, "hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
_QWEN3: JsonObject = {**_TEXT, "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64}
_IMAGES: JsonObject = {
    "image_token_id": 505,
    "video_token_id": 506,
    "vision_start_token_id": 507,
    "vision_end_token_id": 508,
}
_VISION: JsonObject = {"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2}

VISION_LANGUAGE = (
    # As the hub has them: one object, and the names of the language model alone.
    Case(
        "qwen2_vl",
        {
            **_QWEN2,
            **_IMAGES,
            "architectures": ["Qwen2VLForConditionalGeneration"],
            "model_type": "qwen2_vl",
            "rope_theta": 1_000_000.0,
            "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
            "tie_word_embeddings": True,
            "vision_config": {"depth": 1, "embed_dim": 32, "hidden_size": 128, "num_heads": 2, "mlp_ratio": 2},
        },
        "qwen2",
        Layout.MULTIMODAL_FLAT,
        gains=PEAKED,
    ),
    Case(
        "qwen2_5_vl",
        {
            **_QWEN2,
            **_IMAGES,
            "architectures": ["Qwen2_5_VLForConditionalGeneration"],
            "model_type": "qwen2_5_vl",
            "rope_theta": 1_000_000.0,
            "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
            "tie_word_embeddings": True,
            "vision_config": {**_VISION, "out_hidden_size": 128, "window_size": 28, "fullatt_block_indexes": [0]},
        },
        "qwen2",
        Layout.MULTIMODAL_FLAT,
        gains=PEAKED,
    ),
    # As transformers writes them today.
    Case(
        "qwen2_5_vl_new",
        {
            **_IMAGES,
            "architectures": ["Qwen2_5_VLForConditionalGeneration"],
            "model_type": "qwen2_5_vl",
            "text_config": {
                **_QWEN2,
                "model_type": "qwen2_5_vl_text",
                "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": [8, 12, 12]},
            },
            "tie_word_embeddings": True,
            "vision_config": {**_VISION, "out_hidden_size": 128, "window_size": 28, "fullatt_block_indexes": [0]},
        },
        "qwen2",
        Layout.MULTIMODAL_NEW,
        gains=PEAKED,
    ),
    Case(
        "qwen3_vl",
        {
            **_IMAGES,
            "architectures": ["Qwen3VLForConditionalGeneration"],
            "model_type": "qwen3_vl",
            "text_config": {
                **_QWEN3,
                "model_type": "qwen3_vl_text",
                "attention_bias": False,
                "rope_theta": 1_000_000.0,
                "rope_scaling": {"mrope_interleaved": True, "mrope_section": [12, 10, 10], "rope_type": "default"},
            },
            "tie_word_embeddings": False,
            "vision_config": {
                **_VISION,
                "out_hidden_size": 96,
                "num_position_embeddings": 4,
                "deepstack_visual_indexes": [0],
            },
        },
        "qwen3",
        Layout.MULTIMODAL_NEW,
        gains=PEAKED,
    ),
)

_Shapes = dict[str, tuple[int, ...]]
_BLOCK = "visual.blocks.0."


def _linear(name: str, rows: int, columns: int) -> _Shapes:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _norm(name: str, size: int) -> _Shapes:
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


_ATTENTION: _Shapes = {**_linear(f"{_BLOCK}attn.qkv", 96, 32), **_linear(f"{_BLOCK}attn.proj", 32, 32)}
_NORMS: _Shapes = {**_norm(f"{_BLOCK}norm1", 32), **_norm(f"{_BLOCK}norm2", 32)}
_MERGER: _Shapes = {**_linear("visual.merger.mlp.0", 128, 128), **_linear("visual.merger.mlp.2", 128, 128)}
_QWEN3_VISION: _Shapes = {
    "visual.patch_embed.proj.weight": (32, 3, 2, 16, 16),
    "visual.patch_embed.proj.bias": (32,),
    "visual.pos_embed.weight": (4, 32),
    **_NORMS,
    **_ATTENTION,
    **_linear(f"{_BLOCK}mlp.linear_fc1", 48, 32),
    **_linear(f"{_BLOCK}mlp.linear_fc2", 32, 48),
    **_norm("visual.merger.norm", 32),
    **_linear("visual.merger.linear_fc1", 128, 128),
    **_linear("visual.merger.linear_fc2", 96, 128),
}
VISION_SHAPES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "qwen2_vl": {
        "visual.patch_embed.proj.weight": (32, 3, 2, 14, 14),
        **_NORMS,
        **_ATTENTION,
        **_linear(f"{_BLOCK}mlp.fc1", 64, 32),
        **_linear(f"{_BLOCK}mlp.fc2", 32, 64),
        **_norm("visual.merger.ln_q", 32),
        **_MERGER,
    },
    "qwen2_5_vl": {
        "visual.patch_embed.proj.weight": (32, 3, 2, 14, 14),
        **{name: shape for name, shape in _NORMS.items() if name.endswith("weight")},
        **_ATTENTION,
        **_linear(f"{_BLOCK}mlp.gate_proj", 48, 32),
        **_linear(f"{_BLOCK}mlp.up_proj", 48, 32),
        **_linear(f"{_BLOCK}mlp.down_proj", 32, 48),
        "visual.merger.ln_q.weight": (32,),
        **_MERGER,
    },
    "qwen3_vl": {
        **_QWEN3_VISION,
        **_norm("visual.deepstack_merger_list.0.norm", 128),
        **_linear("visual.deepstack_merger_list.0.linear_fc1", 128, 128),
        **_linear("visual.deepstack_merger_list.0.linear_fc2", 96, 128),
    },
    "qwen3_5": _QWEN3_VISION,
    "qwen3_5_moe": _QWEN3_VISION,
}
