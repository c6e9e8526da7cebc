"""Tensors of models with short convolutions, as LFM2's and LFM3's checkpoints have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .case import TOKENS, Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]


def attending_layers(config: Mapping[str, object]) -> list[int]:
    """Numbers of the layers of attention."""
    kinds = cast("list[str]", config.get("layer_types", []))
    listed = cast("list[int]", config.get("full_attn_idxs", []))
    return listed or [number for number, kind in enumerate(kinds) if kind != "conv"]


def ffn_size(config: Mapping[str, object]) -> int:
    """Columns of the FFN, of a file that has those of one without a gate."""
    size = int(cast("float", config["block_ffn_dim_multiplier"]) * (2 * cast("int", config["block_ff_dim"]) // 3))
    multiple = cast("int", config["block_multiple_of"])
    return multiple * -(-size // multiple)


LFM2_MOE = Case(
    "lfm2_moe",
    {
        **TOKENS,
        "architectures": ["Lfm2MoeForCausalLM"],
        "model_type": "lfm2_moe",
        "hidden_size": 128,
        "intermediate_size": 192,
        "moe_intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "conv_L_cache": 3,
        "conv_bias": False,
        "layer_types": ["conv", "full_attention", "conv"],
        "num_dense_layers": 2,
        "num_experts": 12,
        "num_experts_per_tok": 3,
        "use_expert_bias": True,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "tie_word_embeddings": True,
    },
    "lfm2_moe",
    gains={"q_proj": 1.2, "k_proj": 1.2, "v_proj": 2.0, "out_proj": 2.0, "w2": 5.0, "in_proj": 1.5, "gate": 1.5},
    norm_gains={"q_layernorm": 1.5, "k_layernorm": 1.5},
)

LFM3 = Case(
    "lfm3",
    {
        **TOKENS,
        "architectures": ["Lfm3ForCausalLM"],
        "model_type": "lfm3",
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 1024,
        "norm_eps": 1e-5,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {"rope_type": "proportional", "rope_theta": 1_000.0, "partial_rotary_factor": 0.5},
        },
        "sliding_window": 32,
        "conv_L_cache": 7,
        "conv_bias": True,
        "attention_bias": True,
        "layer_types": ["conv", "full_attention", "conv", "sliding_attention"],
        "tie_word_embeddings": True,
    },
    "lfm3",
    gains={"q_proj": 1.2, "k_proj": 1.2, "gate_proj": 2.0, "in_proj": 1.5},
    norm_gains={"post_operator_norm": 0.7, "post_ffn_norm": 0.7, "q_norm": 1.5, "k_norm": 1.5},
)


def lfm2_tensors(case: Case, draw: Callable[..., Floats]) -> Iterator[tuple[str, Floats]]:
    """Yield every tensor; `draw` gets a name, a shape, a deviation and a mean."""
    config = cast("Mapping[str, int]", case.config)
    hidden, vocab, taps = config["hidden_size"], config["vocab_size"], config["conv_L_cache"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim", hidden // heads)
    ffn = ffn_size(config) if "block_ff_dim" in config else config["intermediate_size"]
    is_third = config["model_type"] == "lfm3"  # type: ignore[comparison-overlap]
    output, q_norm, k_norm = ("o_proj", "q_norm", "k_norm") if is_third else ("out_proj", "q_layernorm", "k_layernorm")
    attending = attending_layers(case.config)

    def matrix(name: str, rows: int, columns: int) -> tuple[str, Floats]:
        gain = case.gains.get(name.rsplit(".", 1)[-1], 1.0)
        return f"{name}.weight", draw(f"{case.reference}/{name}", (rows, columns), gain / columns**0.5)

    def vector(name: str, size: int, deviation: float, mean: float = 0.0) -> tuple[str, Floats]:
        return name, draw(f"{case.reference}/{name}", (size,), deviation, mean)

    def norm(name: str, size: int) -> tuple[str, Floats]:
        factor = case.norm_gains.get(name.rsplit(".", 1)[-1], 1.0)
        return vector(f"{name}.weight", size, 0.2 * factor, factor)

    yield "model.embed_tokens.weight", draw(f"{case.reference}/embed", (vocab, hidden), hidden**-0.5)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield norm(f"{prefix}operator_norm", hidden)
        if layer in attending:
            for part, count in (("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)):
                yield matrix(f"{prefix}self_attn.{part}", count * head_dim, hidden)
                if config.get("attention_bias"):
                    yield vector(f"{prefix}self_attn.{part}.bias", count * head_dim, 0.5)
            yield matrix(f"{prefix}self_attn.{output}", hidden, heads * head_dim)
            if config.get("attention_bias"):
                yield vector(f"{prefix}self_attn.{output}.bias", hidden, 0.5)
            if is_third:
                yield matrix(f"{prefix}self_attn.gate_proj", heads, hidden)
            for part in (q_norm, k_norm):
                yield norm(f"{prefix}self_attn.{part}", head_dim)
        else:
            yield matrix(f"{prefix}conv.in_proj", 3 * hidden, hidden)
            yield f"{prefix}conv.conv.weight", draw(f"{case.reference}/{prefix}conv", (hidden, 1, taps), 1.0)
            yield matrix(f"{prefix}conv.out_proj", hidden, hidden)
            if config["conv_bias"]:
                yield vector(f"{prefix}conv.in_proj.bias", 3 * hidden, 0.5)
                yield vector(f"{prefix}conv.conv.bias", hidden, 0.5)
                yield vector(f"{prefix}conv.out_proj.bias", hidden, 0.5)
        if is_third:
            yield norm(f"{prefix}post_operator_norm", hidden)
            yield norm(f"{prefix}post_ffn_norm", hidden)
        yield norm(f"{prefix}ffn_norm", hidden)
        inner = f"{prefix}feed_forward."
        if layer < config.get("num_dense_layers", config["num_hidden_layers"]):
            for part, rows, columns in (("w1", ffn, hidden), ("w3", ffn, hidden), ("w2", hidden, ffn)):
                yield matrix(inner + part, rows, columns)
            continue
        width, count = config["moe_intermediate_size"], config["num_experts"]
        yield matrix(f"{inner}gate", count, hidden)
        yield vector(f"{inner}expert_bias", count, 0.15)
        for expert in range(count):
            for part, rows, columns in (("w1", width, hidden), ("w3", width, hidden), ("w2", hidden, width)):
                yield matrix(f"{inner}experts.{expert}.{part}", rows, columns)
    yield norm("model.embedding_norm", hidden)
