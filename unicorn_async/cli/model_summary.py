"""A model's shape in a few lines."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.models.blocks.declarations import Paged
    from unicorn_async.models.spec import ModelSpec


def config_lines(config: ModelSpec) -> list[str]:
    """Return what people want to know of a model's configuration."""
    windows = Counter(window for window in config.layer_windows if window is not None)
    kinds = [f"{windows[0]} global"] if windows[0] else []
    kinds += [f"{count} with a window of {window}" for window, count in sorted(windows.items()) if window]
    others = config.num_layers - windows.total()
    kinds += [f"{others} without attention"] if others else []
    head = "tied to the embeddings" if config.head.is_tied else "own weights"
    heads = dict.fromkeys(layer.paged for layer in config.layers if layer.paged is not None)
    kv_heads = dict.fromkeys(_kv_text(state) for state in heads)
    summaries = dict.fromkeys(block.summary for block in config.unique_blocks if block.summary)
    attention = [f"heads          {config.num_heads} for queries, {', or '.join(kv_heads)}"] if config.attends else []
    return [
        f"layers         {config.num_layers}: {', '.join(kinds)}",
        f"hidden size    {', '.join((str(config.hidden_size), *summaries))}",
        *attention,
        f"vocabulary     {config.vocab_size}, output head: {head}",
        f"context        {config.max_position} tokens",
    ]


def _kv_text(state: Paged) -> str:
    if state.latent_dim:
        return f"latents of {state.latent_dim} and a key of {state.head_dim - state.latent_dim} for all of them"
    return f"{state.num_kv_heads} for keys and values, of {state.head_dim}"


def config_json(config: ModelSpec) -> dict[str, object]:
    """Return the configuration as JSON values."""
    return {key: _plain(value) for key, value in asdict(config).items()}


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
