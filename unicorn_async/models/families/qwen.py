"""Qwen 2.5 and Qwen 3, dense.

Source: the models' config.json and transformers' `modeling_qwen2.py` and `modeling_qwen3.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.models.families.dense import layer_kinds, plain_decoder

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.spec import ModelSpec

_MAX_WINDOW_LAYERS = 28  # whatever the number of layers


def qwen2(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `Qwen2ForCausalLM` (Qwen 2 and 2.5)."""
    raw.flag("attention_bias", True)  # of queries, keys and values, which always have one
    return plain_decoder(raw, "Qwen2ForCausalLM", qkv_bias=True, windows=_windows(raw))


def qwen3(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `Qwen3ForCausalLM`."""
    bias = raw.flag("attention_bias", False)
    return plain_decoder(raw, "Qwen3ForCausalLM", qkv_bias=bias, output_bias=bias, qk_norm=True, windows=_windows(raw))


def _windows(raw: JsonConfig) -> tuple[int, ...] | None:
    """Return the window of each layer: the layers from `max_window_layers` on, where windows are in use at all."""
    if not raw.flag("use_sliding_window", False) or not raw.has("sliding_window"):
        return None
    num_layers = raw.num_layers()
    window = raw.count("sliding_window")
    kinds = layer_kinds(raw, num_layers)
    if kinds is not None:
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    first = raw.index("max_window_layers", _MAX_WINDOW_LAYERS)
    return tuple(window if layer >= first else 0 for layer in range(num_layers))
