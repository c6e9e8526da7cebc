"""What GGUF files have of layers that keep a state, and of shared experts: tensors, and keys of the metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from model_shapes import ATTENDING, ROTARY_BASE, ROTARY_PART, ROTARY_SECTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from model_shapes import LinearHeads, MambaHeads, Ranks, Shape

Bounds: TypeAlias = "tuple[float, float] | None"
Named: TypeAlias = "tuple[str, tuple[int, ...], Bounds]"
SCALES, OFFSETS = (0.8, 1.2), (-0.02, 0.02)  # of norms
_STEPS, _RATES = (-6.9, -2.25), (-16.0, -1.0)  # of states that decay, the steps before a softplus


def linear_tensors(shape: Shape, linear: LinearHeads) -> list[Named]:
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
        ("ssm_dt.bias", (linear.values,), _STEPS),
        ("ssm_a", (linear.values,), _RATES),
        ("ssm_norm.weight", (linear.dim,), SCALES),
        ("ssm_out", (hidden, linear.value_columns), None),
    ]


def mamba_tensors(shape: Shape, mamba: MambaHeads) -> list[Named]:
    """As `linear_tensors`, of a layer of Mamba-2."""
    heads, columns = (mamba.count, 1), mamba.columns
    return [
        ("ssm_in", (mamba.inner + columns + mamba.count, shape.hidden), None),
        ("ssm_conv1d.weight", (columns, mamba.taps), (-0.5, 0.5)),
        ("ssm_conv1d.bias", (columns,), OFFSETS),
        ("ssm_dt.bias", (mamba.count,), _STEPS),
        ("ssm_a", heads, _RATES),
        ("ssm_d", heads, SCALES),
        ("ssm_norm.weight", (mamba.groups, mamba.inner // mamba.groups), SCALES),
        ("ssm_out", (shape.hidden, mamba.inner), None),
    ]


def shared_tensors(shape: Shape) -> list[Named]:
    """Return names in a layer, rows and columns of the expert that all tokens have; there are no bounds."""
    rows, columns = (shape.shared_ffn, shape.hidden), (shape.hidden, shape.shared_ffn)
    return [("ffn_gate_shexp", rows, None), ("ffn_up_shexp", rows, None), ("ffn_down_shexp", columns, None)]


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


def granite_keys(shape: Shape, mamba: MambaHeads) -> dict[str, Any]:
    """Return keys without the architecture in front, as Granite 4's files have them: nothing rotates in any layer."""
    return {
        "attention.head_count_kv": [shape.kv_heads if shape.attends(layer) else 0 for layer in range(shape.layers)],
        "attention.scale": 1 / shape.head_dim,
        "embedding_scale": 12.0,
        "residual_scale": 0.22,
        "logit_scale": shape.hidden / 256,
        "expert_shared_feed_forward_length": shape.shared_ffn,
        "rope.dimension_count": shape.head_dim,
        "rope.scaling.finetuned": False,
        "ssm.conv_kernel": mamba.taps,
        "ssm.state_size": mamba.state,
        "ssm.group_count": mamba.groups,
        "ssm.time_step_rank": mamba.count,
        "ssm.inner_size": mamba.inner,
    }


def rwkv_tensors(shape: Shape, ranks: Ranks) -> Iterator[Named]:
    """Yield all names of an RWKV-7, otherwise as `linear_tensors`: f32 but for the large matrices, as converted files.

    The first layer has a network for the blend of values, which nobody computes, with the widths of the rate's.
    """
    hidden = shape.hidden
    yield "token_embd", (shape.vocab, hidden), None
    yield "output", (shape.vocab, hidden), None
    yield from _norms(hidden, "token_embd_norm", "output_norm")
    for layer in range(shape.layers):
        base = f"blk.{layer}."
        yield from _norms(hidden, *(f"{base}{name}" for name in ("attn_norm", "attn_norm_2", "time_mix_ln")))
        yield f"{base}time_mix_lerp_fused.weight", (6, 1, 1, hidden), (0.0, 1.0)
        yield f"{base}channel_mix_lerp_k.weight", (hidden,), (0.0, 1.0)
        for name, bounds in (("k_k", (0.6, 1.0)), ("k_a", (0.9, 1.1)), ("r_k", (-0.1, 0.1))):
            yield f"{base}time_mix_{name}.weight", (hidden,), bounds
        for name, rank, first in (
            ("w", ranks.decay, (-6.0, -1.0)),
            ("a", ranks.rate, (-1.0, 1.0)),
            ("v", ranks.blend if layer else ranks.rate, (0.0, 1.5)),
            ("g", ranks.gate, None),
        ):
            if first is not None:
                yield f"{base}time_mix_{name}0.weight", (hidden,), first
            yield f"{base}time_mix_{name}1.weight", (rank, hidden), _of_products(hidden)
            yield f"{base}time_mix_{name}2.weight", (hidden, rank), _of_products(rank)
        for name in ("receptance", "key", "value", "output"):
            yield f"{base}time_mix_{name}", (hidden, hidden), None
        yield f"{base}channel_mix_key", (shape.ffn, hidden), None
        yield f"{base}channel_mix_value", (hidden, shape.ffn), None


def rwkv_keys(shape: Shape, ranks: Ranks) -> dict[str, Any]:
    """Return keys without the architecture in front."""
    return {
        "attention.head_count": 0,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.decay_lora_rank": ranks.decay,
        "attention.iclr_lora_rank": ranks.rate,
        "attention.value_residual_mix_lora_rank": ranks.blend,
        "attention.gate_lora_rank": ranks.gate,
        "wkv.head_size": shape.head_dim,
    }


def _norms(size: int, *names: str) -> Iterator[Named]:
    for name in names:
        yield f"{name}.weight", (size,), SCALES
        yield f"{name}.bias", (size,), OFFSETS


def _of_products(columns: int) -> tuple[float, float]:
    """Bounds of a matrix that leaves what it multiplies as large as it was."""
    most = (3 / columns) ** 0.5
    return -most, most
