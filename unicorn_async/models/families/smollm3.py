"""SmolLM3.

Source: the models' config.json and transformers' `modeling_smollm3.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError
from unicorn_async.models.families.dense import Dimensions, decoder, layer_kinds, refuse_ffn_bias
from unicorn_async.models.rotary_config import read_rotary

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.spec import ModelSpec


def smollm3(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `SmolLM3ForCausalLM`: every fourth layer has no positions."""
    refuse_ffn_bias(raw)
    sizes, bias = Dimensions.read(raw), raw.flag("attention_bias", False)
    rotary = read_rotary(raw, sizes.head_dim, default_base=2_000_000.0)
    rotates = _rotating_layers(raw, sizes.num_layers)
    attentions = (
        sizes.attention(replace(rotary, is_still=not rotating), window=window, qkv_bias=bias, output_bias=bias)
        for rotating, window in zip(rotates, _windows(raw, rotates), strict=True)
    )
    ffn = sizes.gated_ffn(raw.activation("hidden_act", "silu"))
    return decoder(raw, "SmolLM3ForCausalLM", sizes, ((attention, ffn) for attention in attentions), tied=True)


def _rotating_layers(raw: JsonConfig, num_layers: int) -> list[bool]:
    given = raw.raw.get("no_rope_layers")
    if given is None:
        interval = raw.count("no_rope_layer_interval", 4)
        return [(layer + 1) % interval != 0 for layer in range(num_layers)]
    if not isinstance(given, list) or len(given) < num_layers or any(item not in (0, 1) for item in given):
        raise CheckpointError(f"{raw.where}: no_rope_layers: expected 0 or 1 for each of {num_layers} layers")
    return [bool(item) for item in given[:num_layers]]


def _windows(raw: JsonConfig, rotates: list[bool]) -> list[int]:
    if not raw.flag("use_sliding_window", False) or not raw.has("sliding_window"):
        return [0] * len(rotates)
    window, kinds = raw.count("sliding_window"), layer_kinds(raw, len(rotates))
    local = [not rotating for rotating in rotates] if kinds is None else [kind == "sliding_attention" for kind in kinds]
    return [window if is_local else 0 for is_local in local]
