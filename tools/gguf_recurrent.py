"""What GGUF files have of layers of linear attention and of shared experts: tensors, and keys of the metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from model_shapes import ATTENDING, ROTARY_BASE, ROTARY_PART, ROTARY_SECTIONS

if TYPE_CHECKING:
    from model_shapes import LinearHeads, Shape

Bounds: TypeAlias = "tuple[float, float] | None"


def linear_tensors(shape: Shape, linear: LinearHeads) -> list[tuple[str, tuple[int, ...], Bounds]]:
    """Return names in a layer, shapes, and bounds of what is f32: rates and steps as trained models have them.

    Names of matrices, which have no bounds, are without their ending.
    """
    hidden = shape.hidden
    return [
        ("attn_qkv", (linear.columns, hidden), None),
        ("attn_gate", (linear.value_columns, hidden), None),
        ("ssm_alpha", (linear.values, hidden), None),
        ("ssm_beta", (linear.values, hidden), None),
        ("ssm_conv1d.weight", (linear.columns, linear.taps), (-0.5, 0.5)),
        ("ssm_dt.bias", (linear.values,), (-6.9, -2.25)),
        ("ssm_a", (linear.values,), (-16.0, -1.0)),
        ("ssm_norm.weight", (linear.dim,), (0.8, 1.2)),
        ("ssm_out", (hidden, linear.value_columns), None),
    ]


def shared_tensors(shape: Shape) -> list[tuple[str, int, int]]:
    """Return names in a layer, rows and columns of the expert that all tokens have."""
    ffn, hidden = shape.shared_ffn, shape.hidden
    return [("ffn_gate_shexp", ffn, hidden), ("ffn_up_shexp", ffn, hidden), ("ffn_down_shexp", hidden, ffn)]


def linear_keys(shape: Shape, linear: LinearHeads) -> dict[str, Any]:
    """Return keys without the architecture in front."""
    keys: dict[str, Any] = {
        "rope.freq_base": ROTARY_BASE,
        "rope.dimension_count": int(ROTARY_PART * shape.head_dim),
        "rope.dimension_sections": [*ROTARY_SECTIONS, 0],
        "full_attention_interval": ATTENDING,
        "ssm.conv_kernel": linear.taps,
        "ssm.state_size": linear.dim,
        "ssm.group_count": linear.keys,
        "ssm.time_step_rank": linear.values,
        "ssm.inner_size": linear.value_columns,
    }
    return keys | ({"expert_shared_feed_forward_length": shape.shared_ffn} if shape.shared_ffn else {})
