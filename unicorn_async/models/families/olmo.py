"""OLMo 2 and OLMo 3.

Source: the models' config.json and transformers' `modeling_olmo2.py` and `modeling_olmo3.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.models.families.dense import Dimensions, decoder, local_layers, refuse_ffn_bias
from unicorn_async.models.rotary_config import read_rotary, read_section_rotary, read_whole_rotary
from unicorn_async.rotary import RotaryConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.spec import ModelSpec

_BASE = 500_000.0


def olmo2(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of an `Olmo2ForCausalLM`: norms behind attention and FFN alone, and of whole q and k."""
    sizes = Dimensions.read(raw, norm_eps=1e-5)
    rotary = read_rotary(raw, sizes.head_dim)
    return _decoder(raw, "Olmo2ForCausalLM", sizes, [(rotary, 0)] * sizes.num_layers)


def olmo3(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of an `Olmo3ForCausalLM`: three layers with a window to a global one, which alone scales."""
    sizes, window = Dimensions.read(raw, norm_eps=1e-5), raw.window("sliding_window", 4096)
    full, sliding = _rotaries(raw, sizes.head_dim)
    local = local_layers(raw, sizes.num_layers, 4)
    layers = [(sliding, window) if is_local else (full, 0) for is_local in local]
    return _decoder(raw, "Olmo3ForCausalLM", sizes, layers)


def _decoder(
    raw: JsonConfig, architecture: str, sizes: Dimensions, layers: Sequence[tuple[RotaryConfig, int]]
) -> ModelSpec:
    if raw.has("clip_qkv"):
        raise UnsupportedModelError(f"{raw.where}: clip_qkv: limits of queries, keys and values are not supported")
    refuse_ffn_bias(raw)
    bias = raw.flag("attention_bias", False)
    attentions = (
        sizes.attention(
            rotary,
            window=window,
            norm=None,
            post_norm="post_attention_layernorm",
            whole_qk_norm=True,
            qkv_bias=bias,
            output_bias=bias,
        )
        for rotary, window in layers
    )
    activation = raw.activation("hidden_act", "silu")
    ffn = sizes.gated_ffn(activation, norm=None, post_norm="post_feedforward_layernorm")
    return decoder(raw, architecture, sizes, ((attention, ffn) for attention in attentions))


def _rotaries(raw: JsonConfig, head_dim: int) -> tuple[RotaryConfig, RotaryConfig]:
    """The embeddings of global layers and of those with a window."""
    if raw.has("rope_parameters"):
        parameters = raw.section("rope_parameters")
        full, sliding = parameters.section("full_attention"), parameters.section("sliding_attention")
        return (
            read_section_rotary(full, head_dim, _BASE, raw),
            read_section_rotary(sliding, head_dim, _BASE, raw),
        )
    rotary = read_whole_rotary(raw, head_dim, _BASE)
    return rotary, RotaryConfig(rotary.base)
