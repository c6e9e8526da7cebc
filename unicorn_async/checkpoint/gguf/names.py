"""Tensor names of GGUF files, and the layout that the models know."""

from __future__ import annotations

import re

_GLOBAL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_PLAIN_NORMS = {"ffn_norm": "post_attention_layernorm"}
_GEMMA_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_CONSTANTS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_LAYER_NAME = re.compile(r"blk\.(\d{1,5})\.([a-z_]+)\.(weight|bias)")
_ROTARY_PARTS = ("attn_q", "attn_k")
_WITH_BIAS = (*_ROTARY_PARTS, "attn_v", "attn_output")


def canonical_name(name: str, architecture: str) -> str | None:
    """Return a tensor's name in the models' layout, None where it has none."""
    stem, _, kind = name.rpartition(".")
    if stem in _GLOBAL and kind == "weight":
        return f"{_GLOBAL[stem]}.{kind}"
    match = _LAYER_NAME.fullmatch(name)
    if match is None:
        return None
    parts = _IN_LAYER | (_GEMMA_NORMS if architecture == "gemma3" else _PLAIN_NORMS)
    part, kind = parts.get(match[2]), match[3]
    if part is None or (kind == "bias" and match[2] not in _WITH_BIAS):
        return None
    return f"model.layers.{int(match[1])}.{part}.{kind}"


def is_constant(name: str) -> bool:
    """Whether a tensor holds constants of rotary embeddings, which are read with the metadata or computed anew."""
    return name in _CONSTANTS or name.endswith(".attn_rot_embd")


def has_interleaved_heads(name: str, architecture: str) -> bool:
    """Whether the rows of each head lie in rotary pairs: queries and keys of Llama's family."""
    match = _LAYER_NAME.fullmatch(name)
    return architecture == "llama" and match is not None and match[2] in _ROTARY_PARTS
