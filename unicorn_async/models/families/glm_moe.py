"""GLM 4.5 and 4.6: mixtures of experts behind a few dense layers.

Source: the models' config.json and transformers' `modeling_glm4_moe.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.models.blocks.experts import Experts
from unicorn_async.models.blocks.shared_expert import SharedExpert
from unicorn_async.models.families.dense import Dimensions, decoder, predictor
from unicorn_async.models.rotary_config import read_rotary
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
