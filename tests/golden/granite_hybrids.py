"""Golden models of Granite 4, with layers of Mamba-2: one of experts and a dense one; and their tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .case import PEAKED, TOKENS, Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

_COMMON = {
    **TOKENS,
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "normalization_function": "rmsnorm",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.125,
    "residual_multiplier": 0.25,
    "logits_scaling": 8.0,
    "rope_theta": 10_000.0,
    "rope_scaling": None,
    "mamba_expand": 2,
    "mamba_chunk_size": 64,
}
GRANITE_HYBRIDS = (
    # Groups of heads, biases of projections, an expert for all tokens, attention without positions.
    Case(
        "granite_hybrid_moe",
        {
            **_COMMON,
            "num_hidden_layers": 2,
            "layer_types": ["mamba", "attention"],
            "position_embedding_type": "nope",
            "intermediate_size": 64,
            "shared_intermediate_size": 96,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "mamba_n_heads": 8,
            "mamba_d_head": 32,
            "mamba_d_state": 32,
            "mamba_n_groups": 2,
            "mamba_d_conv": 4,
            "mamba_conv_bias": True,
            "mamba_proj_bias": True,
            "tie_word_embeddings": True,
        },
        "granite_hybrid_moe",
        gains={**PEAKED, "in_proj": 1.5, "out_proj": 1.5, "layer": 2.5, "output_linear": 1.4},
    ),
    # Layers' kinds by newer names, positions, a dense FFN and a head of its own.
    Case(
        "granite_hybrid",
        {
            **_COMMON,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "position_embedding_type": "rope",
            "intermediate_size": 192,
            "shared_intermediate_size": 192,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "mamba_expand": 4,
            "mamba_n_heads": 8,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "mamba_n_groups": 1,
            "mamba_d_conv": 4,
            "mamba_conv_bias": True,
            "mamba_proj_bias": False,
            "tie_word_embeddings": False,
        },
        "granite_hybrid",
        gains={**PEAKED, "in_proj": 1.5, "out_proj": 3.0, "output_linear": 2.0},
    ),
)


def granite_hybrid_tensors(case: Case, draw: Callable[..., Floats]) -> Iterator[tuple[str, Floats]]:
    """Yield every tensor; `draw` gets a name, a shape, a deviation and a mean."""
    config = cast("Mapping[str, int]", case.config)
    hidden, vocab, layers = config["hidden_size"], config["vocab_size"], config["num_hidden_layers"]
    kinds = cast("list[str]", case.config["layer_types"])
    is_tied = bool(case.config["tie_word_embeddings"])

    def matrix(name: str, *shape: int) -> tuple[str, Floats]:
        gain = case.gains.get(name.rsplit(".", 1)[-1], 1.0)
        return f"{name}.weight", draw(f"{case.reference}/{name}", shape, gain / shape[-1] ** 0.5)

    def vector(name: str, size: int, deviation: float, mean: float = 0.0) -> tuple[str, Floats]:
        return name, draw(f"{case.reference}/{name}", (size,), deviation, mean)

    yield "model.embed_tokens.weight", draw(f"{case.reference}/embed", (vocab, hidden), hidden**-0.5)
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        yield vector(f"{prefix}input_layernorm.weight", hidden, 0.2, 1.0)
        if kinds[layer] in ("mamba", "linear_attention"):
            yield from _mamba(config, f"{prefix}mamba.", matrix, vector)
        else:
            head_dim = hidden // config["num_attention_heads"]
            for part, heads in (
                ("q", "num_attention_heads"),
                ("k", "num_key_value_heads"),
                ("v", "num_key_value_heads"),
            ):
                yield matrix(f"{prefix}self_attn.{part}_proj", config[heads] * head_dim, hidden)
            yield matrix(f"{prefix}self_attn.o_proj", hidden, hidden)
        yield vector(f"{prefix}post_attention_layernorm.weight", hidden, 0.2, 1.0)
        if count := config["num_local_experts"]:
            width, inner = config["intermediate_size"], f"{prefix}block_sparse_moe."
            yield matrix(f"{inner}router.layer", count, hidden)
            yield matrix(f"{inner}input_linear", count, 2 * width, hidden)
            yield matrix(f"{inner}output_linear", count, hidden, width)
        shared = config["shared_intermediate_size"]
        yield matrix(f"{prefix}shared_mlp.input_linear", 2 * shared, hidden)
        yield matrix(f"{prefix}shared_mlp.output_linear", hidden, shared)
    yield vector("model.norm.weight", hidden, 0.2, 1.0)
    if not is_tied:
        yield matrix("lm_head", vocab, hidden)


def _mamba(
    config: Mapping[str, int],
    prefix: str,
    matrix: Callable[..., tuple[str, Floats]],
    vector: Callable[..., tuple[str, Floats]],
) -> Iterator[tuple[str, Floats]]:
    hidden, heads, taps = config["hidden_size"], config["mamba_n_heads"], config["mamba_d_conv"]
    inner = heads * config["mamba_d_head"]
    columns = inner + 2 * config["mamba_n_groups"] * config["mamba_d_state"]
    yield matrix(f"{prefix}in_proj", inner + columns + heads, hidden)
    yield matrix(f"{prefix}conv1d", columns, 1, taps)
    yield vector(f"{prefix}conv1d.bias", columns, 0.5)
    yield vector(f"{prefix}dt_bias", heads, 1.0, -1.0)
    yield vector(f"{prefix}A_log", heads, 1.0)
    yield vector(f"{prefix}D", heads, 0.5, 1.0)
    yield vector(f"{prefix}norm.weight", inner, 0.2, 1.0)
    yield matrix(f"{prefix}out_proj", hidden, inner)
    if config["mamba_proj_bias"]:
        yield vector(f"{prefix}in_proj.bias", inner + columns + heads, 0.5)
        yield vector(f"{prefix}out_proj.bias", hidden, 0.5)
