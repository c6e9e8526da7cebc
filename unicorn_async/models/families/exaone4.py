"""EXAONE 4.

Source: the models' config.json and transformers' `modeling_exaone4.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError
from unicorn_async.models.families.dense import Dimensions, decoder, local_layers, window_of
from unicorn_async.models.rotary_config import read_rotary

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.spec import ModelSpec


def exaone4(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of an `Exaone4ForCausalLM`: norms behind attention and FFN, and of each head's q and k.

    Where layers have windows, the global ones among them have no positions.
    """
    sizes, window = Dimensions.read(raw, norm_eps=1e-5), window_of(raw)
    rotary = read_rotary(raw, sizes.head_dim)
    local = _local_layers(raw, sizes.num_layers) if window else [False] * sizes.num_layers
    attentions = (
        sizes.attention(
            replace(rotary, is_still=window > 0 and not is_local),
            window=window if is_local else 0,
            norm=None,
            post_norm="post_attention_layernorm",
            qk_norm=True,
        )
        for is_local in local
    )
    activation = raw.activation("hidden_act", "silu")
    ffn = sizes.gated_ffn(activation, norm=None, post_norm="post_feedforward_layernorm")
    return decoder(raw, "Exaone4ForCausalLM", sizes, ((attention, ffn) for attention in attentions))


def _local_layers(raw: JsonConfig, num_layers: int) -> list[bool]:
    pattern = raw.raw.get("sliding_window_pattern")
    if not isinstance(pattern, str) or raw.has("layer_types"):
        return local_layers(raw, num_layers, 4)
    if not pattern or set(pattern) - set("LG"):
        raise CheckpointError(f"{raw.where}: sliding_window_pattern: expected L and G, got {pattern[:100]!r}")
    return [pattern[layer % len(pattern)] == "L" for layer in range(num_layers)]
