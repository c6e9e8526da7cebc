"""What a checkpoint of a shape has: its config.json, its tensors, and where the values of some of these lie."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from model_shapes import ATTENDING, ROTARY_BASE, ROTARY_PART, ROTARY_SECTIONS

if TYPE_CHECKING:
    from model_shapes import LinearHeads, Ranks, Shape

Named: TypeAlias = "tuple[str, tuple[int, ...]]"  # a tensor's name and shape
# Of layers that keep a state, as trained models have them: what does not decay as it should grows without end.
_RANGES = (
    (r"linear_attn\.A_log", (0.0, 2.77)),  # rates of 1 to 16
    (r"linear_attn\.dt_bias", (-6.9, -2.25)),  # steps of 0.001 to 0.1
    (r"linear_attn\.conv1d\.weight", (-0.5, 0.5)),
    (r"linear_attn\.norm\.weight", (0.8, 1.2)),
    (r"(?:attn|ffn)\.x_[a-z]", (0.0, 1.0)),
    (r"attn\.w_lora\.lora\.2\.bias", (-6.0, -1.0)),
    (r"attn\.a_lora\.lora\.2\.bias", (-1.0, 1.0)),
    (r"attn\.v_lora\.lora\.2\.bias", (0.0, 1.5)),
    (r"attn\.k_k", (0.6, 1.0)),
    (r"attn\.k_a", (0.9, 1.1)),
    (r"attn\.r_k", (-0.1, 0.1)),
    (r"(?:attn|attn\.g|ffn|pre)_norm\.weight", (0.8, 1.2)),
)
_IN_A_LAYER = re.compile(r"model\.layers\.\d+\.(.+)")
_SHIFTED = ("r", "w", "k", "v", "a", "g")


def value_range(name: str) -> tuple[float, float] | None:
    """Return between what numbers a tensor's values are drawn, None where they are normal as those of matrices."""
    part = _IN_A_LAYER.fullmatch(name)
    if part is None:
        return None
    return next((bounds for pattern, bounds in _RANGES if re.fullmatch(pattern, part[1])), None)


def config(shape: Shape) -> dict[str, object]:
    """Return config.json."""
    if shape.ranks is not None:
        return _rwkv_config(shape, shape.ranks)
    text: dict[str, object] = {
        "model_type": shape.model_type,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn,
        "vocab_size": shape.vocab,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": shape.tied,
        "bos_token_id": 2,
        "eos_token_id": 1,
    }
    if shape.window:
        scaling = {"factor": 8.0, "rope_type": "linear"}
        text |= {"sliding_window": shape.window, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
        text |= {"query_pre_attn_scalar": shape.hidden // shape.heads if shape.layers == 62 else 256}
        text |= {"rope_scaling": scaling, "hidden_activation": "gelu_pytorch_tanh", "sliding_window_pattern": 6}
    elif shape.linear is not None:
        text |= {"hidden_act": "silu"} | _linear_config(shape.linear)
    else:
        text |= {"hidden_act": "silu", "rope_theta": 5e5}
    if shape.experts:
        text |= {"num_experts": shape.experts, "num_experts_per_tok": shape.experts_used}
        text |= {"moe_intermediate_size": shape.expert_ffn, "norm_topk_prob": True}
    if shape.shared_ffn:
        text |= {"shared_expert_intermediate_size": shape.shared_ffn}
    if shape.architecture == "Gemma3ForConditionalGeneration":
        vision = {"model_type": "siglip_vision_model", "hidden_size": 1152, "num_hidden_layers": 2}
        return {
            "architectures": [shape.architecture],
            "model_type": "gemma3",
            "text_config": {**text, "model_type": "gemma3_text"},
            "vision_config": vision,
        }
    return {"architectures": [shape.architecture], **text}


def _linear_config(linear: LinearHeads) -> dict[str, object]:
    rotary = {"rope_type": "default", "rope_theta": ROTARY_BASE, "partial_rotary_factor": ROTARY_PART}
    return {
        "attn_output_gate": True,
        "full_attention_interval": ATTENDING,
        "linear_conv_kernel_dim": linear.taps,
        "linear_key_head_dim": linear.dim,
        "linear_value_head_dim": linear.dim,
        "linear_num_key_heads": linear.keys,
        "linear_num_value_heads": linear.values,
        "rope_parameters": {**rotary, "mrope_interleaved": True, "mrope_section": list(ROTARY_SECTIONS)},
    }


def _rwkv_config(shape: Shape, ranks: Ranks) -> dict[str, object]:
    return {
        "architectures": [shape.architecture],
        "model_type": shape.model_type,
        "attn": None,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn,
        "hidden_act": "sqrelu",
        "vocab_size": shape.vocab,
        "decay_low_rank_dim": ranks.decay,
        "a_low_rank_dim": ranks.rate,
        "v_low_rank_dim": ranks.blend,
        "gate_low_rank_dim": ranks.gate,
        "max_position_embeddings": 4096,
        "norm_bias": True,
        "norm_first": True,
        "norm_eps": 1e-5,
        "tie_word_embeddings": shape.tied,
        "bos_token_id": 2,
        "eos_token_id": 1,
    }


def tensors(shape: Shape) -> list[Named]:
    """Return names and shapes, in the order of a released checkpoint."""
    if shape.ranks is not None:
        return _rwkv_tensors(shape, shape.ranks)
    prefix = "language_model." if shape.architecture == "Gemma3ForConditionalGeneration" else ""
    found: list[Named] = [
        (f"{prefix}model.embed_tokens.weight", (shape.vocab, shape.hidden)),
    ]
    gemma = bool(shape.window)
    norms = ["input_layernorm", "post_attention_layernorm"]
    norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if gemma else []
    for layer in range(shape.layers):
        base = f"{prefix}model.layers.{layer}."
        found += [(f"{base}{norm}.weight", (shape.hidden,)) for norm in norms]
        if shape.linear is None or shape.attends(layer):
            found += _attention(shape, f"{base}self_attn.")
        else:
            found += _linear_attention(shape, shape.linear, f"{base}linear_attn.")
        found += _feed_forward(shape, f"{base}mlp.")
    found.append((f"{prefix}model.norm.weight", (shape.hidden,)))
    if not shape.tied:
        found.append(("lm_head.weight", (shape.vocab, shape.hidden)))
    if prefix:
        found.append(("multi_modal_projector.mm_input_projection_weight", (1152, shape.hidden)))
        for layer in range(2):
            base = f"vision_tower.vision_model.encoder.layers.{layer}."
            found += [(f"{base}self_attn.{part}_proj.weight", (1152, 1152)) for part in "qkv"]
    return found


def _attention(shape: Shape, base: str) -> list[Named]:
    norms = [(f"{base}{part}_norm.weight", (shape.head_dim,)) for part in "qk"] if shape.norms_heads else []
    keys = shape.kv_heads * shape.head_dim
    rows = {"q": shape.query_rows, "k": keys, "v": keys}
    projections = [(f"{base}{part}_proj.weight", (count, shape.hidden)) for part, count in rows.items()]
    return [*norms, *projections, (f"{base}o_proj.weight", (shape.hidden, shape.heads * shape.head_dim))]


def _linear_attention(shape: Shape, linear: LinearHeads, base: str) -> list[Named]:
    rows = {"qkv": linear.columns, "z": linear.value_columns, "b": linear.values, "a": linear.values}
    return [
        *((f"{base}in_proj_{part}.weight", (count, shape.hidden)) for part, count in rows.items()),
        (f"{base}conv1d.weight", (linear.columns, 1, linear.taps)),
        (f"{base}A_log", (linear.values,)),
        (f"{base}dt_bias", (linear.values,)),
        (f"{base}norm.weight", (linear.dim,)),
        (f"{base}out_proj.weight", (shape.hidden, linear.value_columns)),
    ]


def _feed_forward(shape: Shape, base: str) -> list[Named]:
    """A layer's feed-forward network, or its router and its experts, stacked beside linear attention alone."""
    if not shape.experts:
        return _gated(base, shape.ffn, shape.hidden)
    found: list[Named] = [(f"{base}gate.weight", (shape.experts, shape.hidden))]
    if shape.linear is None:
        for expert in range(shape.experts):
            found += _gated(f"{base}experts.{expert}.", shape.expert_ffn, shape.hidden)
    else:
        found.append((f"{base}experts.gate_up_proj", (shape.experts, 2 * shape.expert_ffn, shape.hidden)))
        found.append((f"{base}experts.down_proj", (shape.experts, shape.hidden, shape.expert_ffn)))
    if shape.shared_ffn:
        found += _gated(f"{base}shared_expert.", shape.shared_ffn, shape.hidden)
        found.append((f"{base}shared_expert_gate.weight", (1, shape.hidden)))
    return found


def _gated(base: str, ffn: int, hidden: int) -> list[Named]:
    wide = [(f"{base}{name}_proj.weight", (ffn, hidden)) for name in ("gate", "up")]
    return [*wide, (f"{base}down_proj.weight", (hidden, ffn))]


def _rwkv_tensors(shape: Shape, ranks: Ranks) -> list[Named]:
    hidden = shape.hidden
    widths = {"w": ranks.decay, "a": ranks.rate, "v": ranks.blend, "g": ranks.gate}

    def norm(name: str) -> list[Named]:
        return [(f"{name}.{kind}", (hidden,)) for kind in ("weight", "bias")]

    found: list[Named] = [("model.embeddings.weight", (shape.vocab, hidden)), *norm("model.layers.0.pre_norm")]
    for layer in range(shape.layers):
        base = f"model.layers.{layer}."
        found += [*norm(f"{base}attn_norm"), *norm(f"{base}ffn_norm"), *norm(f"{base}attn.g_norm")]
        found += [(f"{base}attn.x_{name}", (1, 1, hidden)) for name in _SHIFTED]
        found += [(f"{base}attn.{name}_proj.weight", (hidden, hidden)) for name in "rkvo"]
        for name, rank in widths.items():
            inner = f"{base}attn.{name}_lora.lora."
            if layer or name != "v":  # the first layer's values are those that others blend with their own
                found += [(f"{inner}0.weight", (rank, hidden)), (f"{inner}2.weight", (hidden, rank))]
                found += [(f"{inner}2.bias", (hidden,))] if name != "g" else []
        found += [(f"{base}attn.{name}", (hidden,)) for name in ("k_k", "k_a")]
        found.append((f"{base}attn.r_k", (shape.heads, shape.head_dim)))
        found.append((f"{base}ffn.x_k", (hidden,)))
        found += [(f"{base}ffn.key.weight", (shape.ffn, hidden)), (f"{base}ffn.value.weight", (hidden, shape.ffn))]
    return [*found, *norm("model.norm"), ("lm_head.weight", (shape.vocab, hidden))]
