"""Mistakes that an engine could make with mixtures of experts; the tables are parts of those of golden_mistakes.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from golden_edits import change, ones, pair_halves, set_key, swap_kv_heads

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel


def swap_expert_halves(model: PreTrainedModel) -> None:
    """Take experts' gates for what they are for; transformers has both of all experts in one tensor."""
    change("experts.gate_up_proj", lambda w: torch.cat(w.chunk(2, dim=1)[::-1], dim=1))(model)


def swap_shared_halves(model: PreTrainedModel) -> None:
    """Take the gate of what all tokens share for what it is for."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2].startswith("shared_expert") and hasattr(module, "up_proj"):
            module.gate_proj, module.up_proj = module.up_proj, module.gate_proj


def drop_corrections(model: PreTrainedModel) -> None:
    """Choose experts by their scores alone."""
    for name, buffer in model.named_buffers():
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            buffer.zero_()


def ungroup(weight: torch.Tensor) -> torch.Tensor:
    """Take rows of two heads of keys by turns."""
    return weight.view(2, 2, -1, weight.shape[-1]).transpose(0, 1).reshape(weight.shape)


def swap_turns(weight: torch.Tensor) -> torch.Tensor:
    """Take gates for what they are for, where these lie by turns."""
    return weight.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


MIXTURE_CONFIG_MISTAKES: dict[str, dict[str, Callable[[dict[str, object]], None]]] = {
    "qwen3_moe": {
        "an expert less": set_key("num_experts_per_tok", value=2),
        "an expert more": set_key("num_experts_per_tok", value=4),
        "weights as the softmax has them": set_key("norm_topk_prob", value=False),
    },
    "qwen2_moe": {
        "an expert less": set_key("num_experts_per_tok", value=2),
        "an expert more": set_key("num_experts_per_tok", value=4),
        "weights that add up to one": set_key("norm_topk_prob", value=True),
    },
    "ernie4_5_moe": {
        "an expert less": set_key("moe_k", value=2),
        "an expert more": set_key("moe_k", value=4),
        "another base": set_key("rope_theta", value=10_000.0),
    },
    "glm4_moe": {
        "an expert less": set_key("num_experts_per_tok", value=2),
        "an expert more": set_key("num_experts_per_tok", value=4),
        "weights as the sigmoid has them": set_key("norm_topk_prob", value=False),
        "no scale": set_key("routed_scaling_factor", value=1.0),
        "no groups": lambda config: config.update(n_group=1, topk_group=1),
        "a group more": set_key("topk_group", value=3),
        "the whole head rotates": set_key("partial_rotary_factor", value=1.0),
    },
    "olmoe": {
        "an expert less": set_key("num_experts_per_tok", value=1),
        "an expert more": set_key("num_experts_per_tok", value=3),
        "weights that add up to one": set_key("norm_topk_prob", value=True),
    },
    "mixtral": {
        "an expert less": set_key("num_experts_per_tok", value=1),
        "an expert more": set_key("num_experts_per_tok", value=3),
        "another base": set_key("rope_theta", value=10_000.0),
    },
    "qwen3_5_moe": {
        "an expert less": set_key("num_experts_per_tok", value=2),
        "an expert more": set_key("num_experts_per_tok", value=4),
        "the whole head rotates": set_key("rope_parameters", "partial_rotary_factor", value=1.0),
    },
    "qwen3_next": {
        "an expert less": set_key("num_experts_per_tok", value=2),
        "an expert more": set_key("num_experts_per_tok", value=4),
        "weights as the softmax has them": set_key("norm_topk_prob", value=False),
        "the whole head rotates": set_key("rope_parameters", "partial_rotary_factor", value=1.0),
    },
    "gpt_oss": {
        "an expert less": set_key("num_experts_per_tok", value=1),
        "an expert more": set_key("num_experts_per_tok", value=3),
        "window one short": set_key("sliding_window", value=23),
        "no window": set_key("layer_types", value=["full_attention"] * 2),
        "windows in the other layers": set_key("layer_types", value=["full_attention", "sliding_attention"]),
        "no YaRN": set_key("rope_scaling", value={"rope_type": "default"}),
        "bounds that are whole numbers": set_key("rope_scaling", "truncate", value=True),
        "no limits": set_key("swiglu_limit", value=1e4),
        "a plain SiLU": set_key("swiglu_alpha", value=1.0),
    },
    "lfm2_moe": {
        "an expert less": set_key("num_experts_per_tok", value=2),
        "an expert more": set_key("num_experts_per_tok", value=4),
        "weights as the sigmoid has them": set_key("norm_topk_prob", value=False),
        "no scale": set_key("routed_scaling_factor", value=1.0),
    },
}
MIXTURE_MODEL_MISTAKES: dict[str, dict[str, Callable[[PreTrainedModel], None]]] = {
    "qwen3_moe": {
        "experts the other way round": change("mlp.gate.weight", lambda w: w.flip(0)),
        "gate and up swapped": swap_expert_halves,
        "no q norm weight": ones("q_norm"),
        "no k norm weight": ones("k_norm"),
    },
    "qwen2_moe": {
        "experts the other way round": change("mlp.gate.weight", lambda w: w.flip(0)),
        "gate and up swapped": swap_expert_halves,
        "shared gate and up swapped": swap_shared_halves,
        "no shared expert": change("shared_expert.down_proj", torch.zeros_like),
        "no gate of the shared expert": change("shared_expert_gate", lambda w: w * 0.0),
        "no q bias": change("q_proj.bias", torch.zeros_like),
    },
    "ernie4_5_moe": {
        "experts the other way round": change("mlp.gate.weight", lambda w: w.flip(0)),
        "no correction": change("e_score_correction_bias", torch.zeros_like),
        "rotary pairs in halves": pair_halves,
        "gate and up swapped": swap_expert_halves,
        "no shared expert": change("shared_experts.down_proj", torch.zeros_like),
    },
    "glm4_moe": {
        "experts the other way round": change("mlp.gate.weight", lambda w: w.flip(0)),
        "no correction": drop_corrections,
        "gate and up swapped": swap_expert_halves,
        "shared gate and up swapped": swap_shared_halves,
        "no shared expert": change("shared_experts.down_proj", torch.zeros_like),
        "no q bias": change("q_proj.bias", torch.zeros_like),
        "no q norm weight": ones("q_norm"),
        "no k norm weight": ones("k_norm"),
    },
    "olmoe": {
        "experts the other way round": change("mlp.gate.weight", lambda w: w.flip(0)),
        "gate and up swapped": swap_expert_halves,
        "no q norm weight": ones("q_norm"),
        "no k norm weight": ones("k_norm"),
    },
    "mixtral": {
        "experts the other way round": change("mlp.gate.weight", lambda w: w.flip(0)),
        "gate and up swapped": swap_expert_halves,
        "kv heads swapped": swap_kv_heads,
    },
    "qwen3_5_moe": {
        "experts the other way round": change("mlp.gate.weight", lambda w: w.flip(0)),
        "gate and up swapped": swap_expert_halves,
        "shared gate and up swapped": swap_shared_halves,
        "no shared expert": change("shared_expert.down_proj", torch.zeros_like),
        "no gate of the shared expert": change("shared_expert_gate", lambda w: w * 0.0),
        "norms multiply by weight, not 1 + weight": change("layernorm", lambda w: w - 1.0),
    },
    "qwen3_next": {
        "projections not in groups": change("in_proj_qkvz", ungroup),
        "betas and decays not in groups": change("in_proj_ba", ungroup),
        "experts the other way round": change("mlp.gate.weight", lambda w: w.flip(0)),
        "no shared expert": change("shared_expert.down_proj", torch.zeros_like),
        "no gate of the shared expert": change("shared_expert_gate", lambda w: w * 0.0),
        "norms multiply by weight, not 1 + weight": change("layernorm", lambda w: w - 1.0),
    },
    "gpt_oss": {
        "experts the other way round": change("router.weight", lambda w: w.flip(0)),
        "gate and up swapped": change("experts.gate_up_proj", swap_turns),
        "no sinks": change("sinks", lambda w: w - 100),
        "sinks of other heads": change("sinks", lambda w: w.flip(0)),
        "no bias of the router": change("router.bias", torch.zeros_like),
        "no biases of gates": change("gate_up_proj_bias", torch.zeros_like),
        "no biases of outputs": change("down_proj_bias", torch.zeros_like),
        **{f"no {part} bias": change(f"{part}_proj.bias", torch.zeros_like) for part in ("q", "k", "v", "o")},
    },
    "lfm2_moe": {
        "experts the other way round": change("feed_forward.gate.weight", lambda w: w.flip(0)),
        "no correction": drop_corrections,
        "gate and up swapped": swap_expert_halves,
    },
}
