"""DeepSeek V2 and V3, and what their latent attention and mixtures of experts share with other families.

Source: the models' config.json and transformers' `modeling_deepseek_v2.py` and `modeling_deepseek_v3.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.models.blocks.declarations import Norm
from unicorn_async.models.blocks.experts import Experts
from unicorn_async.models.blocks.latent_attention import LatentAttention
from unicorn_async.models.blocks.shared_expert import SharedExpert
from unicorn_async.models.families.dense import Dimensions, decoder, predictor
from unicorn_async.models.rotary_config import read_whole_rotary, softmax_growth
from unicorn_async.ops.routing import Routing

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.rotary import RotaryConfig


class LatentSizes(NamedTuple):
    """What a family's heads and latents have where config.json does not say it."""

    plain: int = 128
    value: int = 128
    latent: int = 512
    query_latent: int = 1536


class MixtureSizes(NamedTuple):
    """The same of its experts: how many, of which a token takes some, their width, the scale of weights, and groups."""

    experts: int = 256
    chosen: int = 8
    width: int = 2048
    scale: float = 2.5
    groups: int = 8
    groups_kept: int = 4


_V2_MIXTURE = MixtureSizes(experts=64, chosen=6, width=1408, scale=1.0)
_MOST_HEADS = 1024
_LATENT_EPS = 1e-6  # of norms of latents, whatever that of the others is
_PREDICTOR = {
    "embedding_norm": "enorm",
    "hidden_norm": "hnorm",
    "head_norm": "shared_head.norm",
    "projection": "eh_proj",
    "layer": "",
}


def deepseek_v2(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `DeepseekV2ForCausalLM`; V2-Lite has no latent of queries, and no groups."""
    sizes = Dimensions.read(raw)
    method = raw.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise UnsupportedModelError(f"{raw.where}: topk_method {method!r} is not supported for DeepSeek V2")
    if raw.flag("norm_topk_prob", False):
        raise UnsupportedModelError(f"{raw.where}: norm_topk_prob: weights of experts that add up to one")
    grouped = method == "group_limited_greedy"
    routing = Routing(
        raw.count("n_routed_experts", _V2_MIXTURE.experts),
        raw.count("num_experts_per_tok", _V2_MIXTURE.chosen),
        scale=raw.factor("routed_scaling_factor", _V2_MIXTURE.scale),
        num_groups=raw.count("n_group") if grouped else 1,
        groups_kept=raw.count("topk_group") if grouped else 1,
        by_best=True,
    )
    _check(raw, scoring="softmax")
    rotary = read_whole_rotary(raw, raw.count("qk_rope_head_dim", 64), 10_000.0)
    attention = latent_attention(raw, sizes, rotary, LatentSizes())
    experts = latent_experts(raw, sizes, routing, num_shared=raw.index("n_shared_experts", 2), width=_V2_MIXTURE.width)
    return _mixture(raw, "DeepseekV2ForCausalLM", sizes, attention, experts, raw.index("first_k_dense_replace", 0))


def deepseek_v3(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `DeepseekV3ForCausalLM`; the first layer behind the last predicts a token more."""
    _check(raw, scoring="sigmoid", methods=("noaux_tc",))
    sizes = Dimensions.read(raw)
    num_dense = raw.index("first_k_dense_replace", 3)
    is_dense = [layer < num_dense for layer in range(sizes.num_layers)]
    rotary = read_whole_rotary(raw, raw.count("qk_rope_head_dim", 64), 10_000.0)
    attention = latent_attention(raw, sizes, rotary, LatentSizes())
    return corrected_mixture(raw, "DeepseekV3ForCausalLM", sizes, attention, MixtureSizes(), is_dense)


def corrected_mixture(
    raw: JsonConfig,
    architecture: str,
    sizes: Dimensions,
    attention: LatentAttention,
    defaults: MixtureSizes,
    is_dense: list[bool],
) -> ModelSpec:
    """Read a model whose routers have sigmoids with corrections, and which layers have none of them."""
    routing = Routing(
        raw.count("n_routed_experts", defaults.experts),
        raw.count("num_experts_per_tok", defaults.chosen),
        is_sigmoid=True,
        normalises=raw.flag("norm_topk_prob", True),
        scale=raw.factor("routed_scaling_factor", defaults.scale),
        num_groups=raw.count("n_group", defaults.groups),
        groups_kept=raw.count("topk_group", defaults.groups_kept),
    )
    experts = latent_experts(raw, sizes, routing, num_shared=raw.index("n_shared_experts", 1), width=defaults.width)
    experts = replace(experts, is_corrected=True)
    ffn = sizes.gated_ffn(experts.activation)
    num_predictors = raw.index("num_nextn_predict_layers", 0)
    spec = decoder(raw, architecture, sizes, ((attention, ffn if dense else experts) for dense in is_dense))
    if not num_predictors:
        return spec
    prefix = f"model.layers.{sizes.num_layers}."
    found = predictor(spec, sizes, (attention, experts), prefix=prefix, names=_PREDICTOR, reads_normed=False)
    return replace(spec, num_predictors=num_predictors, predictors=(found,))


def latent_attention(
    raw: JsonConfig, sizes: Dimensions, rotary: RotaryConfig, defaults: LatentSizes
) -> LatentAttention:
    """Return the attention of a model, whose `rotary` is of the part of heads that has a position."""
    plain, rotary_dim = raw.count("qk_nope_head_dim", defaults.plain), raw.count("qk_rope_head_dim", 64)
    is_direct = "q_lora_rank" in raw.raw and not raw.has("q_lora_rank")  # null: queries have no latent
    rank = 0 if is_direct else raw.count("q_lora_rank", defaults.query_latent)
    latent = raw.count("kv_lora_rank", defaults.latent)
    if sizes.num_heads > _MOST_HEADS:  # for each of which there is something to be made
        raise UnsupportedModelError(
            f"{raw.where}: num_attention_heads: expected at most {_MOST_HEADS} beside latents, got {sizes.num_heads}"
        )
    return LatentAttention(
        hidden_size=sizes.hidden_size,
        num_heads=sizes.num_heads,
        plain_dim=plain,
        rotary_dim=rotary_dim,
        value_dim=raw.count("v_head_dim", defaults.value),
        latent_dim=latent,
        rotary=rotary,
        softmax_scale=(plain + rotary_dim) ** -0.5 * softmax_growth(raw),
        norm=sizes.norm("input_layernorm", "input_norm"),
        kv_norm=Norm("self_attn.kv_a_layernorm.weight", "kv_a_norm", latent, _LATENT_EPS),
        q_norm=Norm("self_attn.q_a_layernorm.weight", "q_a_norm", rank, _LATENT_EPS) if rank else None,
        is_interleaved=raw.flag("rope_interleave", True),
        is_split=raw.traits.are_latent_heads_split,
    )


def latent_experts(raw: JsonConfig, sizes: Dimensions, routing: Routing, *, num_shared: int, width: int) -> Experts:
    """Return the mixture of a model, with what so many experts are for all tokens; `width` is the default of one."""
    width = raw.count("moe_intermediate_size", width)
    return Experts(
        hidden_size=sizes.hidden_size,
        intermediate_size=width,
        activation=raw.activation("hidden_act", "silu"),
        routing=routing,
        norm=sizes.norm("post_attention_layernorm", "ffn_norm"),
        shared=SharedExpert(num_shared * width, "mlp.shared_experts") if num_shared else None,
    )


def _mixture(
    raw: JsonConfig,
    architecture: str,
    sizes: Dimensions,
    attention: LatentAttention,
    experts: Experts,
    num_dense: int,
) -> ModelSpec:
    ffn = sizes.gated_ffn(experts.activation)
    layers = ((attention, ffn if layer < num_dense else experts) for layer in range(sizes.num_layers))
    return decoder(raw, architecture, sizes, layers)


def _check(raw: JsonConfig, *, scoring: str, methods: tuple[str, ...] = ()) -> None:
    if (found := raw.text("scoring_func", scoring)) != scoring:
        raise UnsupportedModelError(f"{raw.where}: scoring_func {found!r} is not supported, only {scoring!r}")
    if methods and (method := raw.text("topk_method", methods[0])) not in methods:
        raise UnsupportedModelError(f"{raw.where}: topk_method {method!r} is not supported; known are {methods}")
    if (step := raw.count("moe_layer_freq", 1)) != 1:
        raise UnsupportedModelError(f"{raw.where}: moe_layer_freq {step}: dense layers between mixtures")
