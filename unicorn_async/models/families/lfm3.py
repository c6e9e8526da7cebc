"""LFM3: short convolutions, and layers of attention among them, with windows and without, whose heads have gates.

Source: the models' config.json and transformers' `configuration_lfm3.py` and `modeling_lfm3.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.config import Activation
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.models.families.dense import Dimensions, decoder, layer_kinds
from unicorn_async.models.families.lfm2 import FFN_NAMES, short_conv
from unicorn_async.models.rotary_config import read_layer_rotary
from unicorn_async.rotary import RotaryConfig

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.blocks.block import Block
    from unicorn_async.models.spec import ModelSpec

_CONV, _LOCAL, _GLOBAL = "conv", "sliding_attention", "full_attention"
_BASES = {_LOCAL: 1e4, _GLOBAL: 1e6}


def lfm3(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of an `Lfm3ForCausalLM`."""
    if raw.has("rope_scaling"):
        raise UnsupportedModelError(f"{raw.where}: rope_scaling: only rope_parameters are supported here")
    sizes = Dimensions.read(raw, head_dim=128)
    sizes = replace(sizes, norm_eps=raw.number("norm_eps", 1e-5))
    has_post_norms = raw.flag("use_sandwich_norm", True)
    post_norm = "post_operator_norm" if has_post_norms else None
    ffn = sizes.gated_ffn(Activation.SILU, norm="ffn_norm", post_norm="post_ffn_norm" if has_post_norms else None)
    kinds = layer_kinds(raw, sizes.num_layers, (_CONV, _LOCAL, _GLOBAL)) or _default_kinds(sizes.num_layers)
    blocks: dict[str, Block] = {_CONV: short_conv(raw, sizes, num_taps=7, post_norm=post_norm)}
    bias, has_gates = raw.flag("attention_bias", False), raw.flag("use_attention_gate", True)
    for kind in {_LOCAL, _GLOBAL}.intersection(kinds):
        attention = sizes.attention(
            _rotary(raw, kind, sizes.head_dim),
            window=_window(raw) if kind == _LOCAL else 0,
            norm="operator_norm",
            post_norm=post_norm,
            qk_norm=True,
            qkv_bias=bias,
            output_bias=bias,
        )
        blocks[kind] = replace(attention, has_head_gates=has_gates)
    return decoder(
        raw,
        "Lfm3ForCausalLM",
        sizes,
        [(blocks[kind], ffn) for kind in kinds],
        vocab_size=128_000,
        max_position=128_000,
        tied=True,
        norm="model.embedding_norm",
        names=(("self_attn.g_proj", "self_attn.gate_proj"), *FFN_NAMES),
    )


def _default_kinds(num_layers: int) -> list[str]:
    turns = (_LOCAL, _CONV, _GLOBAL, _CONV)
    return [_CONV if layer == 0 else turns[layer % len(turns)] for layer in range(num_layers)]


def _window(raw: JsonConfig) -> int:
    window = raw.window("sliding_window", 256)
    if not window:
        raise CheckpointError(f"{raw.where}: sliding_window: expected a positive integer beside {_LOCAL!r}, got null")
    return window


def _rotary(raw: JsonConfig, kind: str, head_dim: int) -> RotaryConfig:
    base = _BASES[kind]
    if not raw.has("rope_parameters"):
        return RotaryConfig(base, num_pairs=head_dim // 4 if kind == _GLOBAL else 0)
    return read_layer_rotary(raw.section("rope_parameters").section(kind), head_dim, base, raw)
