"""Ministral 3, alone and as the text part of Mistral's multimodal models.

Source: the models' config.json and transformers' `modeling_ministral3.py` and `modeling_mistral3.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.json_config import JsonConfig
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.models.families.dense import Dimensions, decoder, window_of
from unicorn_async.models.rotary_config import original_positions, read_rotary

if TYPE_CHECKING:
    from unicorn_async.models.spec import ModelSpec

_TEXT_MODELS = ("mistral", "ministral3")


def ministral3(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `Ministral3ForCausalLM`: YaRN, and queries that grow with their position."""
    return _decoder(raw, "Ministral3ForCausalLM")


def mistral3(raw: JsonConfig) -> ModelSpec:
    """Read the text part of the config.json of a `Mistral3ForConditionalGeneration`."""
    section = raw.section("text_config")
    kind = section.text("model_type", "mistral")
    if kind not in _TEXT_MODELS:
        known = ", ".join(_TEXT_MODELS)
        raise UnsupportedModelError(f"{section.where}: model_type {kind!r} is not supported; known are {known}")
    outer = {"tie_word_embeddings": raw.raw["tie_word_embeddings"]} if raw.has("tie_word_embeddings") else {}
    return _decoder(
        JsonConfig({**outer, **section.raw}, section.where, section.traits), "Mistral3ForConditionalGeneration"
    )


def _decoder(raw: JsonConfig, architecture: str) -> ModelSpec:
    sizes = Dimensions.read(raw, head_dim=128, norm_eps=1e-5)
    growth, period = _query_growth(raw)
    attention = replace(
        sizes.attention(read_rotary(raw, sizes.head_dim), window=window_of(raw)),
        query_growth=growth,
        query_period=period,
    )
    ffn = sizes.gated_ffn(raw.activation("hidden_act", "silu"))
    return decoder(raw, architecture, sizes, [(attention, ffn)] * sizes.num_layers)


def _query_growth(raw: JsonConfig) -> tuple[float, int]:
    name = next((name for name in ("rope_parameters", "rope_scaling") if raw.has(name)), None)
    section = None if name is None else raw.section(name)
    if section is None or not section.has("llama_4_scaling_beta"):
        return 0.0, 1
    return section.factor("llama_4_scaling_beta"), original_positions(section, raw)
