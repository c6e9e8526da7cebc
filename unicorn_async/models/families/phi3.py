"""Phi 3, 3.5 and 4, Phi-4-mini among them.

Source: the models' config.json and transformers' `modeling_phi3.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.models.families.dense import Dimensions, decoder, window_of
from unicorn_async.models.rotary_config import read_rotary

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.spec import ModelSpec


def phi3(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `Phi3ForCausalLM`: fused projections, LongRoPE, in some a part of each head rotates."""
    sizes = Dimensions.read(raw, norm_eps=1e-5)
    attention = sizes.attention(read_rotary(raw, sizes.head_dim), window=window_of(raw), is_fused=True)
    ffn = sizes.gated_ffn(raw.activation("hidden_act", "silu"), is_fused=True)
    return decoder(raw, "Phi3ForCausalLM", sizes, [(attention, ffn)] * sizes.num_layers)
