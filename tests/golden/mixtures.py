"""Golden mixtures of experts, and the tensors of their experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .case import PEAKED, PLAIN, Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    Named = tuple[str, NDArray[np.float32]]

MIXTURES = (
    # More experts than a tile has pairs, and a layer without.
    Case(
        "qwen3_moe",
        {
            **PLAIN,
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "head_dim": 32,
            "num_experts": 12,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 96,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [1],
        },
        "qwen3_moe",
        gains={**PEAKED, "gate": 2.0},
    ),
    Case(
        "olmoe",
        {
            **PLAIN,
            "architectures": ["OlmoeForCausalLM"],
            "model_type": "olmoe",
            "num_hidden_layers": 2,
            "intermediate_size": 64,
            "num_experts": 10,
            "num_experts_per_tok": 2,
            "norm_topk_prob": False,
        },
        "olmoe",
        gains={**PEAKED, "gate": 3.0, "down_proj": 3.0},
    ),
    Case(
        "mixtral",
        {
            **PLAIN,
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_hidden_layers": 2,
            "intermediate_size": 96,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": None,
            "rope_theta": 1_000_000.0,
        },
        "mixtral",
        gains={**PEAKED, "gate": 4.0, "w2": 2.0},
    ),
    # An expert for all tokens behind a gate; layers without any about it.
    Case(
        "qwen2_moe",
        {
            **{key: value for key, value in PLAIN.items() if key != "attention_bias"},
            "architectures": ["Qwen2MoeForCausalLM"],
            "model_type": "qwen2_moe",
            "num_hidden_layers": 3,
            "num_experts": 11,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 96,
            "shared_expert_intermediate_size": 160,
            "norm_topk_prob": False,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [],
        },
        "qwen2_moe",
        gains={**PEAKED, "gate": 1.0, "shared_expert_gate": 2.0, "down_proj": 3.0},
    ),
    # A softmax with corrections, neighbours as rotary pairs, and a dense layer on either side.
    Case(
        "ernie4_5_moe",
        {
            **PLAIN,
            "architectures": ["Ernie4_5_MoeForCausalLM"],
            "model_type": "ernie4_5_moe",
            "hidden_size": 96,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 64,
            "use_bias": False,
            "moe_num_experts": 12,
            "moe_k": 3,
            "moe_intermediate_size": 64,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 1,
            "moe_layer_interval": 1,
            "tie_word_embeddings": True,
            "rope_theta": 500_000.0,
        },
        "ernie4_5_moe",
        gains={**PEAKED, "gate": 1.0, "down_proj": 2.5},
    ),
    # Groups, a correction of each expert, and norms and biases of the attention.
    Case(
        "glm4_moe",
        {
            **PLAIN,
            "architectures": ["Glm4MoeForCausalLM"],
            "model_type": "glm4_moe",
            "num_hidden_layers": 2,
            "head_dim": 64,
            "attention_bias": True,
            "use_qk_norm": True,
            "partial_rotary_factor": 0.5,
            "n_routed_experts": 12,
            "n_shared_experts": 2,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 64,
            "first_k_dense_replace": 1,
            "n_group": 3,
            "topk_group": 2,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
            "num_nextn_predict_layers": 0,
        },
        "glm4_moe",
        gains={**PEAKED, "gate": 1.5, "down_proj": 2.5},
    ),
)


_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def has_experts(config: Mapping[str, object], layer: int) -> bool:
    """Whether a layer has experts in place of an FFN."""
    if config["model_type"] == "mixtral":
        return True
    if "first_k_dense_replace" in config:
        return layer >= cast("int", config["first_k_dense_replace"])
    if config["model_type"] == "ernie4_5_moe":
        return cast("int", config["moe_layer_start_index"]) <= layer <= cast("int", config["moe_layer_end_index"])
    dense = cast("list[int]", config.get("mlp_only_layers") or ())
    step = cast("int", config.get("decoder_sparse_step", 1))
    return "num_experts" in config and layer not in dense and (layer + 1) % step == 0


def expert_tensors(
    config: Mapping[str, object],
    prefix: str,
    matrix: Callable[[str, int, int], Named],
    stack: Callable[[str, int, int], Named] | None = None,
) -> Iterator[Named]:
    """Yield the router of a layer, its experts and what all tokens share.

    `matrix` gets a name, rows and columns; `stack` gets those of each expert, where all experts' are one tensor.
    """
    sizes = cast("Mapping[str, int]", config)
    hidden = sizes["hidden_size"]
    count = next(sizes[key] for key in _COUNTS if key in sizes)
    width = sizes.get("moe_intermediate_size", sizes.get("intermediate_size", 0))
    module, gate, up, down = "mlp.", "gate_proj", "up_proj", "down_proj"
    if config["model_type"] == "mixtral":
        module, gate, up, down = "block_sparse_moe.", "w1", "w3", "w2"
    yield matrix(f"{prefix}{module}gate", count, hidden)
    if stack is not None:
        yield stack(f"{prefix}mlp.experts.gate_up_proj", 2 * width, hidden)
        yield stack(f"{prefix}mlp.experts.down_proj", hidden, width)
    for expert in range(count if stack is None else 0):
        base = f"{prefix}{module}experts.{expert}."
        yield matrix(base + gate, width, hidden)
        yield matrix(base + up, width, hidden)
        yield matrix(base + down, hidden, width)
    if "shared_expert_intermediate_size" in sizes:
        module, width = "mlp.shared_expert", sizes["shared_expert_intermediate_size"]
        yield matrix(f"{prefix}mlp.shared_expert_gate", 1, hidden)
    elif "moe_num_shared_experts" in sizes:
        module, width = "mlp.shared_experts", sizes["moe_num_shared_experts"] * width
    elif "n_shared_experts" in sizes:
        module, width = "mlp.shared_experts", sizes["n_shared_experts"] * width
    else:
        return
    yield matrix(f"{prefix}{module}.gate_proj", width, hidden)
    yield matrix(f"{prefix}{module}.up_proj", width, hidden)
    yield matrix(f"{prefix}{module}.down_proj", hidden, width)


def apart(tensors: Iterable[Named]) -> Iterator[Named]:
    """Yield tensors, those of each expert alone; their names are modules' then."""
    for name, value in tensors:
        module = name.rpartition(".")[0]
        if name.endswith("experts.gate_up_proj"):
            for expert, matrix in enumerate(value):
                half = len(matrix) // 2
                yield f"{module}.{expert}.gate_proj", matrix[:half]
                yield f"{module}.{expert}.up_proj", matrix[half:]
        elif name.endswith("experts.down_proj"):
            for expert, matrix in enumerate(value):
                yield f"{module}.{expert}.down_proj", matrix
        else:
            yield name, value
