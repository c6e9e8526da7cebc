"""Llama 3.x, and Mistral, which shares its layout.

Source: the models' config.json and transformers' `modeling_llama.py` and `modeling_mistral.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.models.families.dense import plain_decoder, window_of

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.spec import ModelSpec


def llama(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `LlamaForCausalLM`."""
    bias = raw.flag("attention_bias", False)
    return plain_decoder(raw, "LlamaForCausalLM", qkv_bias=bias, output_bias=bias)


def mistral(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `MistralForCausalLM`; `sliding_window` null means global attention."""
    return plain_decoder(raw, "MistralForCausalLM", windows=(window_of(raw),) * raw.num_layers())
