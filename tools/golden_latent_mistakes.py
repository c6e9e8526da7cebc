"""Mistakes that an engine could make with latent attention; the tables are parts of those of golden_mistakes.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from golden_edits import change, ones, set_key
from golden_mixture_mistakes import drop_corrections, swap_expert_halves, swap_shared_halves

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel


def in_halves(model: PreTrainedModel) -> None:
    """Take halves of what rotates for its pairs, where these are neighbours."""
    width, plain = model.config.qk_rope_head_dim, model.config.qk_nope_head_dim
    order = torch.arange(width).view(2, -1).T.reshape(-1)
    for name, weight in model.named_parameters():
        if name.endswith("kv_a_proj_with_mqa.weight"):
            weight.data[-width:] = weight.data[-width:][order]
        elif name.endswith(("q_b_proj.weight", "q_proj.weight")):
            heads = weight.data.view(-1, plain + width, weight.shape[-1])
            heads[:, plain:] = heads[:, plain:][:, order]


def swap_keys_and_values(model: PreTrainedModel) -> None:
    """Take rows of values for those of keys, as far as there are as many of both."""
    plain, value = model.config.qk_nope_head_dim, model.config.v_head_dim

    def swapped(weight: torch.Tensor) -> torch.Tensor:
        keys, values = weight.view(-1, plain + value, weight.shape[-1]).split([plain, value], dim=1)
        return torch.cat([values, keys], dim=1).reshape(weight.shape)

    change("kv_b_proj", swapped)(model)


def keys_before_values(model: PreTrainedModel) -> None:
    """Take all heads' keys to come before all values."""
    plain, value = model.config.qk_nope_head_dim, model.config.v_head_dim

    def parted(weight: torch.Tensor) -> torch.Tensor:
        heads = len(weight) // (plain + value)
        keys, values = weight[: heads * plain].view(heads, plain, -1), weight[heads * plain :].view(heads, value, -1)
        return torch.cat([keys, values], dim=1).reshape(weight.shape)

    change("kv_b_proj", parted)(model)


def scaled_scores(factor: float) -> Callable[[PreTrainedModel], None]:
    """Multiply scores by a factor that they have not."""

    def edit(model: PreTrainedModel) -> None:
        for module in model.modules():
            if hasattr(module, "kv_b_proj"):
                module.scaling = module.scaling * factor

    return edit


_EXPERTS: dict[str, Callable[[dict[str, object]], None]] = {
    "an expert less": set_key("num_experts_per_tok", value=1),
    "an expert more": set_key("num_experts_per_tok", value=3),
    "no scale": set_key("routed_scaling_factor", value=1.0),
}
_YARN: dict[str, Callable[[dict[str, object]], None]] = {
    "no YaRN": set_key("rope_scaling", value={"rope_type": "default"}),
    "scores without YaRN's square": set_key("rope_scaling", "mscale_all_dim", value=0.0),
}
LATENT_CONFIG_MISTAKES: dict[str, dict[str, Callable[[dict[str, object]], None]]] = {
    "glm4_moe_lite": {
        **_EXPERTS,
        "weights as the sigmoid has them": set_key("norm_topk_prob", value=False),
        "no groups": lambda config: config.update(n_group=1, topk_group=1),
        "another base": set_key("rope_theta", value=10_000.0),
    },
    "deepseek_v2": {
        **_EXPERTS,
        **_YARN,
        "no groups": set_key("topk_method", value="greedy"),
        "a group more": set_key("topk_group", value=2),
        "no amplitude": set_key("rope_scaling", "mscale", value=0.6),
    },
    "deepseek_v3": {
        **_EXPERTS,
        **_YARN,
        "weights as the sigmoid has them": set_key("norm_topk_prob", value=False),
        "no groups": lambda config: config.update(n_group=1, topk_group=1),
    },
    "mistral4": {
        **_EXPERTS,
        "scores without YaRN's square": set_key("rope_parameters", "mscale_all_dim", value=0.0),
        "weights as the softmax has them": set_key("norm_topk_prob", value=False),
        "groups by their best": lambda config: config.update(n_group=1, topk_group=1),
        "queries that do not grow": set_key("rope_parameters", "llama_4_scaling_beta", value=0.0),
        "queries that grow from another context on": set_key(
            "rope_parameters", "original_max_position_embeddings", value=128
        ),
    },
    "deepseek_v2_lite": {key: edit for key, edit in (*_EXPERTS.items(), *_YARN.items()) if key != "no scale"},
}
_LATENT_MODEL: dict[str, Callable[[PreTrainedModel], None]] = {
    "experts the other way round": change("mlp.gate.weight", lambda w: w.flip(0)),
    "gate and up swapped": swap_expert_halves,
    "shared gate and up swapped": swap_shared_halves,
    "no shared expert": change("shared_experts.down_proj", torch.zeros_like),
    "no norm of latents": ones("kv_a_layernorm"),
    "pairs in halves": in_halves,
    "values for keys": swap_keys_and_values,
    "keys before values": keys_before_values,
    "scores of another size": scaled_scores(1.3),
}
LATENT_MODEL_MISTAKES: dict[str, dict[str, Callable[[PreTrainedModel], None]]] = {
    "glm4_moe_lite": {**_LATENT_MODEL, "no norm of queries": ones("q_a_layernorm"), "no correction": drop_corrections},
    "deepseek_v2": {**_LATENT_MODEL, "no norm of queries": ones("q_a_layernorm")},
    "deepseek_v2_lite": _LATENT_MODEL,
    "deepseek_v3": {**_LATENT_MODEL, "no norm of queries": ones("q_a_layernorm"), "no correction": drop_corrections},
    "mistral4": {**_LATENT_MODEL, "no norm of queries": ones("q_a_layernorm")},
}
