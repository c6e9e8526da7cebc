"""What GGUF files have of layers that keep a latent of each token, and of routers with corrections: GLM 4.7 Flash's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gguf_recurrent import Named
    from model_shapes import Latents, Shape

CORRECTIONS = (-0.05, 0.05)  # of routers
_SIGMOID = 2  # among the functions of routers
_SCALE = 1.8  # of what experts say, whose weights add up to one before


def latent_tensors(shape: Shape, latents: Latents) -> list[Named]:
    """Return names in a layer, without their ending, and shapes; each head's matrices of keys have rows for columns."""
    heads, hidden, kept = shape.heads, shape.hidden, latents.kept
    return [
        ("attn_q_a_norm", (latents.query,), None),
        ("attn_kv_a_norm", (kept,), None),
        ("attn_q_a", (latents.query, hidden), None),
        ("attn_q_b", (heads * latents.key, latents.query), None),
        ("attn_kv_a_mqa", (kept + latents.rotary, hidden), None),
        ("attn_k_b", (heads, kept, latents.plain), None),
        ("attn_v_b", (heads, latents.value, kept), None),
        ("attn_output", (hidden, heads * latents.value), None),
    ]


def latent_keys(shape: Shape, latents: Latents) -> dict[str, Any]:
    """Return keys without the architecture in front; all heads have what is kept of a token for keys and values."""
    return {
        "attention.head_count": shape.heads,
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": latents.query,
        "attention.kv_lora_rank": latents.kept,
        "attention.key_length": latents.kept + latents.rotary,
        "attention.value_length": latents.kept,
        "attention.key_length_mla": latents.key,
        "attention.value_length_mla": latents.value,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 1e6,
        "rope.dimension_count": latents.rotary,
        "leading_dense_block_count": shape.dense_layers,
        "expert_shared_count": shape.shared_ffn // shape.expert_ffn,
        "expert_group_count": 1,
        "expert_group_used_count": 1,
        "expert_gating_func": _SIGMOID,
        "expert_weights_norm": True,
        "expert_weights_scale": _SCALE,
    }
