"""Mistakes that an engine could make with Granite 4; the tables are parts of those of golden_mistakes.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from golden_edits import change, ones, set_key, swap_kv_heads
from golden_mixture_mistakes import swap_expert_halves

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel


def norm_whole_rows(model: PreTrainedModel) -> None:
    """Norm what is gated over all groups at once."""
    for name, module in model.named_modules():
        if name.endswith("mamba.norm"):
            module.group_size *= model.config.mamba_n_groups


def swap_keys(model: PreTrainedModel) -> None:
    """Take C for B, and B for C."""
    config = model.config
    inner, size = config.mamba_n_heads * config.mamba_d_head, config.mamba_n_groups * config.mamba_d_state
    first = {"in_proj": 2 * inner, "conv1d": inner}
    for part, at in first.items():
        change(part, lambda w, at=at: swapped(w, at, size))(model)


def swapped(weight: torch.Tensor, at: int, size: int) -> torch.Tensor:
    """Return rows of which so many from `at` on have changed places with as many behind them."""
    ends = (at, at + size, at + 2 * size)
    return torch.cat((weight[:at], weight[ends[1] : ends[2]], weight[at : ends[1]], weight[ends[2] :]))


def swap_groups(model: PreTrainedModel) -> None:
    """Give each group of heads another group's keys and queries."""
    config = model.config
    inner, size = config.mamba_n_heads * config.mamba_d_head, config.mamba_d_state
    for part, at in {"in_proj": 2 * inner, "conv1d": inner}.items():
        for first in (at, at + 2 * size):
            change(part, lambda w, first=first: swapped(w, first, size))(model)


def swap_gates(model: PreTrainedModel) -> None:
    """Take values for gates, and gates for values."""
    inner = model.config.mamba_n_heads * model.config.mamba_d_head
    change("in_proj.weight", lambda w: swapped(w, 0, inner))(model)


def swap_shared_halves(model: PreTrainedModel) -> None:
    """Take the gate of what all tokens pass for what it is for."""
    change("shared_mlp.input_linear", lambda w: w.roll(w.shape[0] // 2, 0))(model)


_FACTORS = {
    "no embedding multiplier": set_key("embedding_multiplier", value=1.0),
    "no attention multiplier": set_key("attention_multiplier", value=32**-0.5),
    "no residual multiplier": set_key("residual_multiplier", value=1.0),
    "no logits scaling": set_key("logits_scaling", value=1.0),
}
_RECURRENCE = {
    "taps the other way round": change("conv1d.weight", lambda w: w.flip(-1)),
    "no bias of the convolution": change("conv1d.bias", torch.zeros_like),
    "B and C swapped": swap_keys,
    "values in place of gates": swap_gates,
    "no bias of steps": change("dt_bias", torch.zeros_like),
    "rates in place of their logarithms": change("A_log", torch.exp),
    "no skip": change("mamba.D", torch.zeros_like),
    "no norm of what heads find": ones("mamba.norm"),
    "shared gate and up swapped": swap_shared_halves,
}
GRANITE_CONFIG_MISTAKES: dict[str, dict[str, Callable[[dict[str, object]], None]]] = {
    "granite_hybrid_moe": {
        **_FACTORS,
        "positions": set_key("position_embedding_type", value="rope"),
        "an expert less": set_key("num_experts_per_tok", value=1),
        "an expert more": set_key("num_experts_per_tok", value=3),
    },
    "granite_hybrid": {
        **_FACTORS,
        "no positions": set_key("position_embedding_type", value="nope"),
        "another base": set_key("rope_theta", value=100.0),
    },
}
GRANITE_MODEL_MISTAKES: dict[str, dict[str, Callable[[PreTrainedModel], None]]] = {
    "granite_hybrid_moe": {
        **_RECURRENCE,
        "groups swapped": swap_groups,
        "a norm of all groups": norm_whole_rows,
        "no bias before the convolution": change("in_proj.bias", torch.zeros_like),
        "no bias behind the recurrence": change("out_proj.bias", torch.zeros_like),
        "experts the other way round": change("router.weight", lambda w: w.flip(0)),
        "gate and up swapped": swap_expert_halves,
        "nothing that all tokens share": change("shared_mlp.output_linear", torch.zeros_like),
    },
    "granite_hybrid": {**_RECURRENCE, "kv heads swapped": swap_kv_heads},
}
