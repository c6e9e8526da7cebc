"""Ministral 3 and Mistral Small 4, alone and as the text part of Mistral's multimodal models.

Source: the models' config.json and transformers' `modeling_ministral3.py`, `modeling_mistral3.py` and
`modeling_mistral4.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.json_config import JsonConfig
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.models.families.deepseek import LatentSizes, latent_attention, latent_experts
from unicorn_async.models.families.dense import Dimensions, decoder, window_of
from unicorn_async.models.rotary_config import original_positions, read_rotary
from unicorn_async.ops.routing import Routing

if TYPE_CHECKING:
    from unicorn_async.models.spec import ModelSpec

_TEXT_MODELS = ("mistral", "ministral3", "mistral4")


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
    read = _latent_mixture if kind == "mistral4" else _decoder
    outer = {"tie_word_embeddings": raw.raw["tie_word_embeddings"]} if raw.has("tie_word_embeddings") else {}
    return read(JsonConfig({**outer, **section.raw}, section.where, section.traits), "Mistral3ForConditionalGeneration")


def mistral4(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `Mistral4ForCausalLM`, Small 4: latent attention, and mixtures in every layer."""
    return _latent_mixture(raw, "Mistral4ForCausalLM")


def _latent_mixture(raw: JsonConfig, architecture: str) -> ModelSpec:
    sizes = Dimensions.read(raw)
    plain, rotary_dim = raw.count("qk_nope_head_dim", 64), raw.count("qk_rope_head_dim", 64)
    whole = plain + rotary_dim
    rotary = read_rotary(raw, whole, default_part=rotary_dim / whole)
    if rotary.dim != rotary_dim:
        raise UnsupportedModelError(f"{raw.where}: partial_rotary_factor: {rotary.dim} elements, not {rotary_dim}")
    growth, period = _query_growth(raw)
    defaults = LatentSizes(plain=64, latent=256, query_latent=1024)
    attention = latent_attention(raw, sizes, replace(rotary, dim=0), defaults)
    attention = replace(attention, query_growth=growth, query_period=period)
    routing = Routing(
        raw.count("n_routed_experts", 128),
        raw.count("num_experts_per_tok", 4),
        normalises=raw.flag("norm_topk_prob", True),
        scale=raw.factor("routed_scaling_factor", 1.0),
        num_groups=raw.count("n_group", 1),
        groups_kept=raw.count("topk_group", 1),
    )
    experts = latent_experts(raw, sizes, routing, num_shared=raw.index("n_shared_experts", 1), width=2048)
    experts = replace(experts, is_stacked=not raw.traits.are_experts_apart)
    ffn, num_dense = sizes.gated_ffn(experts.activation), raw.index("first_k_dense_replace", 0)
    layers = ((attention, ffn if layer < num_dense else experts) for layer in range(sizes.num_layers))
    return decoder(raw, architecture, sizes, layers)


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
