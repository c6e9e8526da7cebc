"""Golden models of Gemma 4, and their tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .case import TOKENS, Case, JsonObject, Layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    Named = tuple[str, NDArray[np.float32]]

_ROPE: JsonObject = {
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}
_TEXT: JsonObject = {
    **TOKENS,
    "model_type": "gemma4_text",
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "head_dim": 32,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "sliding_window": 32,
    "rope_parameters": _ROPE,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "vocab_size_per_layer_input": 512,
    "use_bidirectional_attention": "vision",
    "final_logit_softcapping": 2.0,
}
# Global layers have fewer and larger heads, whose values are their keys.
_DENSE: JsonObject = {
    **_TEXT,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 1,
    "global_head_dim": 64,
    "attention_k_eq_v": True,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 0,
}
# A dense network and experts side by side; more experts than a tile has pairs.
_MIXTURE: JsonObject = {
    **_DENSE,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "enable_moe_block": True,
    "num_experts": 12,
    "top_k_experts": 2,
    "moe_intermediate_size": 64,
}
# Tables for each layer, and layers that share the keys of earlier ones and are twice as wide.
_SMALL: JsonObject = {
    **_TEXT,
    "num_hidden_layers": 6,
    "num_key_value_heads": 1,
    "global_head_dim": 64,
    "layer_types": [f"{kind}_attention" for kind in ("sliding", "full", "sliding", "sliding", "sliding", "full")],
    "hidden_size_per_layer_input": 32,
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
}
_VISION: JsonObject = {
    "model_type": "gemma4_vision",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "patch_size": 4,
    "position_embedding_size": 8,
}
_MULTIMODAL: JsonObject = {
    "model_type": "gemma4",
    "architectures": ["Gemma4ForConditionalGeneration"],
    "vision_config": _VISION,
    "eos_token_id": [1, 106],
}
# Scores that are not scaled, and norms on the way out that leave the stream its size.
_NORMS = {
    "q_norm": 0.4,
    "k_norm": 0.4,
    "post_attention_layernorm": 0.7,
    "post_feedforward_layernorm": 0.7,
    "norm": 1.5,
}
# What networks leave is small beside the stream, so that a token's experts depend little on how products are rounded.
_STEADY = {
    "q_norm": 0.35,
    "k_norm": 0.35,
    "post_attention_layernorm": 0.4,
    "post_feedforward_layernorm": 0.4,
    "norm": 1.0,
}

GEMMA4 = (
    Case("gemma4", {**_DENSE, "architectures": ["Gemma4ForCausalLM"]}, "gemma4", norm_gains=_NORMS),
    Case(
        "gemma4_multimodal",
        {**_MULTIMODAL, "text_config": _DENSE},
        "gemma4",
        Layout.MULTIMODAL_NEW,
        norm_gains=_NORMS,
    ),
    Case(
        "gemma4_moe",
        {**_MIXTURE, "architectures": ["Gemma4ForCausalLM"]},
        "gemma4_moe",
        gains={"proj": 2.0},
        norm_gains={**_NORMS, **_STEADY},
    ),
    Case(
        "gemma4_small",
        {**_SMALL, "architectures": ["Gemma4ForCausalLM"]},
        "gemma4_small",
        norm_gains={**_NORMS, "post_per_layer_input_norm": 0.7},
    ),
)

_LAYER = "vision_tower.encoder.layers.0"
GEMMA4_VISION: Mapping[str, tuple[int, ...]] = {
    "vision_tower.patch_embedder.input_proj.weight": (32, 48),
    "vision_tower.patch_embedder.position_embedding_table": (2, 8, 32),
    **{f"{_LAYER}.self_attn.{part}_proj.linear.weight": (32, 32) for part in "qkvo"},
    **{f"{_LAYER}.self_attn.{part}_norm.weight": (16,) for part in "qk"},
    **{f"{_LAYER}.{part}_layernorm.weight": (32,) for part in ("input", "post_attention")},
    **{f"{_LAYER}.{part}_feedforward_layernorm.weight": (32,) for part in ("pre", "post")},
    f"{_LAYER}.mlp.gate_proj.linear.weight": (48, 32),
    f"{_LAYER}.mlp.up_proj.linear.weight": (48, 32),
    f"{_LAYER}.mlp.down_proj.linear.weight": (32, 48),
    "embed_vision.embedding_projection.weight": (96, 32),
}


def gemma4_tensors(case: Case, draw: Callable[..., NDArray[np.float32]]) -> Iterator[Named]:
    """Yield every tensor; `draw` gets a name, a shape, a deviation and a mean."""
    config = cast("Mapping[str, int]", case.text_config)
    hidden, vocab, ffn = config["hidden_size"], config["vocab_size"], config["intermediate_size"]
    heads, kinds = config["num_attention_heads"], cast("list[str]", case.text_config["layer_types"])

    def matrix(name: str, rows: int, columns: int) -> Named:
        gain = case.gains.get(name.rsplit(".", 1)[-1], 1.0)
        return f"{name}.weight", draw(f"{case.reference}/{name}", (rows, columns), gain / columns**0.5)

    def norm(name: str, size: int) -> Named:
        factor = case.norm_gains.get(name.rsplit(".", 1)[-1], 1.0)
        return f"{name}.weight", draw(f"{case.reference}/{name}", (size,), 0.2 * factor, factor)

    size, shared = config.get("hidden_size_per_layer_input", 0), config.get("num_kv_shared_layers", 0)
    if size:
        name, columns = "model.embed_tokens_per_layer.weight", len(kinds) * size
        yield name, draw(f"{case.reference}/{name}", (vocab, columns), size**-0.5)
        yield matrix("model.per_layer_model_projection", columns, hidden)
        yield norm("model.per_layer_projection_norm", size)
    yield "model.embed_tokens.weight", draw(f"{case.reference}/embed", (vocab, hidden), hidden**-0.5)
    for layer, kind in enumerate(kinds):
        prefix, is_local = f"model.layers.{layer}.", kind == "sliding_attention"
        head_dim = config["head_dim"] if is_local else config["global_head_dim"]
        takes_keys = bool(config.get("attention_k_eq_v")) and not is_local
        kv_heads = config["num_global_key_value_heads" if takes_keys else "num_key_value_heads"]
        yield norm(f"{prefix}input_layernorm", hidden)
        yield matrix(f"{prefix}self_attn.q_proj", heads * head_dim, hidden)
        shares = layer >= len(kinds) - shared
        if not shares:
            yield matrix(f"{prefix}self_attn.k_proj", kv_heads * head_dim, hidden)
        if not shares and not takes_keys:
            yield matrix(f"{prefix}self_attn.v_proj", kv_heads * head_dim, hidden)
        yield matrix(f"{prefix}self_attn.o_proj", hidden, heads * head_dim)
        for part in ("q_norm",) if shares else ("q_norm", "k_norm"):
            yield norm(f"{prefix}self_attn.{part}", head_dim)
        for part in ("post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
            yield norm(prefix + part, hidden)
        wide = ffn * (2 if shares and config.get("use_double_wide_mlp") else 1)
        for part, rows, columns in (("gate", wide, hidden), ("up", wide, hidden), ("down", hidden, wide)):
            yield matrix(f"{prefix}mlp.{part}_proj", rows, columns)
        if config.get("enable_moe_block"):
            yield from _experts(case, draw, prefix)
            yield matrix(f"{prefix}router.proj", config["num_experts"], hidden)
            for part in ("pre", "post"):
                yield norm(f"{prefix}{part}_feedforward_layernorm_2", hidden)
            yield norm(f"{prefix}post_feedforward_layernorm_1", hidden)
        if size:
            yield matrix(f"{prefix}per_layer_input_gate", size, hidden)
            yield matrix(f"{prefix}per_layer_projection", hidden, size)
            yield norm(f"{prefix}post_per_layer_input_norm", hidden)
        yield f"{prefix}layer_scalar", draw(f"{case.reference}/{prefix}layer_scalar", (1,), 0.1, 0.7)
    yield norm("model.norm", hidden)


def _experts(case: Case, draw: Callable[..., NDArray[np.float32]], prefix: str) -> Iterator[Named]:
    config = cast("Mapping[str, int]", case.text_config)
    count, width, hidden = config["num_experts"], config["moe_intermediate_size"], config["hidden_size"]
    for name, shape, deviation in (
        ("experts.gate_up_proj", (count, 2 * width, hidden), hidden**-0.5),
        ("experts.down_proj", (count, hidden, width), width**-0.5),
    ):
        yield prefix + name, draw(f"{case.reference}/{prefix}{name}", shape, deviation)
    for name, size in (("router.scale", hidden), ("router.per_expert_scale", count)):
        yield prefix + name, draw(f"{case.reference}/{prefix}{name}", (size,), 0.3, 1.0)
