"""Edits of a golden case's config.json, or of its model in transformers, that mistakes are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel


def set_key(*path: str, value: object) -> Callable[[dict[str, object]], None]:
    """Return an edit of config.json that sets one key, given its path."""

    def edit(config: dict[str, object]) -> None:
        inner = config
        for key in path[:-1]:
            inner = inner[key]  # type: ignore[assignment]
        inner[path[-1]] = value

    return edit


def change(part: str, function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[PreTrainedModel], None]:
    """Return an edit of a model that changes every parameter whose name contains `part`."""

    def edit(model: PreTrainedModel) -> None:
        for name, parameter in model.named_parameters():
            if part in name:
                parameter.data = function(parameter.data)

    return edit


def swap_kv_heads(model: PreTrainedModel) -> None:
    """Give each group of queries another group's keys and values."""
    for part in ("k_proj.weight", "v_proj.weight"):
        change(part, lambda w: w.view(model.config.num_key_value_heads, -1, w.shape[-1]).flip(0).reshape(w.shape))(
            model
        )


def ones(part: str) -> Callable[[PreTrainedModel], None]:
    """Return an edit that makes every parameter whose name contains `part` one."""
    return change(part, torch.ones_like)


def pair_halves(model: PreTrainedModel) -> None:
    """Rotate the halves of a head against each other in place of neighbours."""
    pairs = model.config.head_dim // 2
    for part in ("q_proj.weight", "k_proj.weight"):
        change(part, lambda w: w.view(-1, 2, pairs, w.shape[-1]).transpose(1, 2).reshape(w.shape))(model)
