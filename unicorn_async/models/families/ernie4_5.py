"""ERNIE 4.5, dense (`ERNIE-4.5-0.3B-PT`).

Source: the models' config.json and transformers' `modeling_ernie4_5.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.models.families.dense import Dimensions, decoder
from unicorn_async.models.rotary_config import read_rotary

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.spec import ModelSpec


def ernie4_5(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of an `Ernie4_5ForCausalLM`: Llama's layout with neighbours as rotary pairs."""
    if raw.flag("use_bias", False):
        raise UnsupportedModelError(f"{raw.where}: use_bias: biases, the FFN's among them, are not supported")
    # Null stands for the hidden size over the heads.
    sizes = Dimensions.read(raw, head_dim=None if "head_dim" in raw.raw else 128, norm_eps=1e-5)
    rotary = read_rotary(raw, sizes.head_dim, default_base=500_000.0)
    attention = sizes.attention(rotary, is_interleaved=True)
    ffn = sizes.gated_ffn(raw.activation("hidden_act", "silu"))
    return decoder(raw, "Ernie4_5ForCausalLM", sizes, [(attention, ffn)] * sizes.num_layers, tied=True)
