"""GLM 4.5, 4.6 and 4.7, and 4.7 Flash: mixtures of experts behind a few dense layers.

Source: the models' config.json and transformers' `modeling_glm4_moe.py` and `modeling_glm4_moe_lite.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.models.blocks.experts import Experts
from unicorn_async.models.blocks.shared_expert import SharedExpert
from unicorn_async.models.families.deepseek import LatentSizes, MixtureSizes, corrected_mixture, latent_attention
from unicorn_async.models.families.dense import Dimensions, decoder, predictor
from unicorn_async.models.rotary_config import read_rotary, read_whole_rotary
from unicorn_async.ops.routing import Routing

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.spec import ModelSpec

_PREDICTOR = {
    "embedding_norm": "enorm",
    "hidden_norm": "hnorm",
    "head_norm": "shared_head.norm",
    "projection": "eh_proj",
    "layer": "",
}


def glm4_moe(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `Glm4MoeForCausalLM`; the first layer behind the last predicts a token more."""
    sizes = Dimensions.read(raw, norm_eps=1e-5)
    attention = sizes.attention(
        read_rotary(raw, sizes.head_dim, default_part=0.5),
        qk_norm=raw.flag("use_qk_norm", False),
        qkv_bias=raw.flag("attention_bias", False),
    )
    width, num_shared = raw.count("moe_intermediate_size", 1408), raw.index("n_shared_experts", 1)
    experts = Experts(
        hidden_size=sizes.hidden_size,
        intermediate_size=width,
        activation=raw.activation("hidden_act", "silu"),
        routing=_routing(raw),
        norm=sizes.norm("post_attention_layernorm", "ffn_norm"),
        shared=SharedExpert(num_shared * width, "mlp.shared_experts") if num_shared else None,
        is_corrected=True,
    )
    dense, num_dense = sizes.gated_ffn(experts.activation), raw.index("first_k_dense_replace", 1)
    layers = ((attention, dense if layer < num_dense else experts) for layer in range(sizes.num_layers))
    spec = decoder(raw, "Glm4MoeForCausalLM", sizes, layers)
    num_predictors = raw.index("num_nextn_predict_layers", 1)
    if not num_predictors:
        return spec
    prefix = f"model.layers.{sizes.num_layers}."
    found = predictor(spec, sizes, (attention, experts), prefix=prefix, names=_PREDICTOR, reads_normed=False)
    return replace(spec, num_predictors=num_predictors, predictors=(found,))


def glm4_moe_lite(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `Glm4MoeLiteForCausalLM`, 4.7 Flash: latent attention before the same experts."""
    sizes = Dimensions.read(raw, norm_eps=1e-5)
    rotary = read_whole_rotary(raw, raw.count("qk_rope_head_dim", 64), 10_000.0)
    attention = latent_attention(raw, sizes, rotary, LatentSizes(plain=192, value=256, query_latent=768))
    mixture = MixtureSizes(experts=64, chosen=4, width=1536, scale=1.8, groups=1, groups_kept=1)
    is_dense = _dense_layers(raw, sizes.num_layers)
    return corrected_mixture(raw, "Glm4MoeLiteForCausalLM", sizes, attention, mixture, is_dense)


def _dense_layers(raw: JsonConfig, num_layers: int) -> list[bool]:
    """Which layers have no experts: by `mlp_layer_types`, or the first ones."""
    num_dense, kinds = raw.index("first_k_dense_replace", 1), raw.texts("mlp_layer_types")
    if kinds is None:
        return [layer < num_dense for layer in range(num_layers)]
    if unknown := sorted(set(kinds) - {"dense", "sparse"}):
        raise UnsupportedModelError(
            f"{raw.where}: mlp_layer_types {unknown} are not supported; known are dense, sparse"
        )
    if len(kinds) != num_layers:
        raise CheckpointError(f"{raw.where}: mlp_layer_types: expected {num_layers} entries, got {len(kinds)}")
    return [kind == "dense" for kind in kinds]


def _routing(raw: JsonConfig) -> Routing:
    return Routing(
        raw.count("n_routed_experts", 128),
        raw.count("num_experts_per_tok", 8),
        is_sigmoid=True,
        normalises=raw.flag("norm_topk_prob", True),
        scale=raw.factor("routed_scaling_factor", 1.0),
        num_groups=raw.count("n_group", 1),
        groups_kept=raw.count("topk_group", 1),
    )
