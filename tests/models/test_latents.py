"""What config.json files of models with latent attention mean, and what of them is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.golden.cases import CASES
from unicorn_async.checkpoint.file_traits import FileTraits
from unicorn_async.config import AttentionKind, AttentionTarget, EngineConfig
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.hybrid.choice import fit_options
from unicorn_async.memory.plan import attention_shape
from unicorn_async.models.blocks.experts import Experts
from unicorn_async.models.blocks.gated_ffn import GatedFFN
from unicorn_async.models.blocks.latent_attention import LatentAttention
from unicorn_async.models.registry import model_spec
from unicorn_async.ops.routing import Routing

if TYPE_CHECKING:
    from unicorn_async.models.spec import ModelSpec

FLASH: dict[str, object] = {
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 10240,
    "num_hidden_layers": 3,
    "num_attention_heads": 20,
    "num_key_value_heads": 20,
    "vocab_size": 1000,
    "max_position_embeddings": 202_752,
    "q_lora_rank": 768,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "n_routed_experts": 64,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1536,
    "routed_scaling_factor": 1.8,
    "rope_theta": 1_000_000.0,
    "num_nextn_predict_layers": 1,
}


def latents_of(model: ModelSpec) -> LatentAttention:
    attention = model.attention
    assert isinstance(attention, LatentAttention)
    return attention


def experts_of(model: ModelSpec) -> Experts:
    block = model.layers[-1].blocks[-1]
    assert isinstance(block, Experts)
    return block


def test_flash_keeps_one_latent_a_token_and_has_a_dense_layer_first() -> None:
    model = model_spec(FLASH)
    attention = latents_of(model)
    assert (attention.head_dim, attention.num_kv_heads, attention.state.num_parts) == (576, 1, 1)
    assert attention_shape(model, EngineConfig()).token_nbytes == 1152
    assert attention.softmax_scale == 256**-0.5 and attention.is_interleaved
    assert [type(layer.blocks[1]) for layer in model.layers] == [GatedFFN, Experts, Experts]
    assert experts_of(model).routing == Routing(64, 4, is_sigmoid=True, normalises=True, scale=1.8)
    assert (model.num_predictors, len(model.predictors)) == (1, 1)
    kinds = model_spec({**FLASH, "mlp_layer_types": ["sparse", "dense", "sparse"]}).layers
    assert [type(layer.blocks[1]) for layer in kinds] == [Experts, GatedFFN, Experts]


def test_a_matrix_of_keys_and_values_is_two_weights_or_two_tensors() -> None:
    traits = (FileTraits(are_latent_heads_split=is_split) for is_split in (False, True))
    whole, split = (latents_of(model_spec(FLASH, traits=each)) for each in traits)
    assert [(w.name, w.dest, w.shape) for w in whole.weights if w.dest in ("k_b", "v_b")] == [
        ("self_attn.kv_b_proj.weight", "k_b", (10240, 192)),
        ("self_attn.kv_b_proj.weight", "v_b", (5120, 512)),
    ]
    names = [w.name for w in split.weights if w.dest in ("k_b", "v_b")]
    assert names == ["self_attn.k_b_proj.weight", "self_attn.v_b_proj.weight"]


def test_deepseek_v2_multiplies_scores_by_the_square_of_what_yarn_has_for_all_dimensions() -> None:
    model = model_spec(CASES["deepseek_v2"].config)
    growth = latents_of(model).softmax_scale / 96**-0.5
    assert growth == pytest.approx((0.1 * 0.6 * 2.0794415416798357 + 1) ** 2)
    assert experts_of(model).routing == Routing(9, 2, scale=2.5, num_groups=3, groups_kept=1, by_best=True)
    lite = model_spec(CASES["deepseek_v2_lite"].config)
    assert latents_of(lite).q_norm is None
    assert experts_of(lite).routing.num_groups == 1


@pytest.mark.parametrize("weights", [{}, {"mscale_all_dim": 0.0}, {"mscale": 1.0, "mscale_all_dim": 0}])
def test_yarn_without_a_weight_for_all_dimensions_multiplies_no_scores(weights: dict[str, object]) -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, **weights}
    config = {key: value for key, value in CASES["glm4_moe_lite"].config.items() if key != "rope_parameters"}
    attention = latents_of(model_spec({**config, "rope_scaling": yarn, "max_position_embeddings": 256}))
    plain = latents_of(model_spec(CASES["glm4_moe_lite"].config))
    assert attention.softmax_scale == plain.softmax_scale
    assert attention.rotary.amplitude == pytest.approx(0.1 * 1.3862943611198906 + 1)


def test_mistral_small_4_has_softmax_groups_stacked_experts_and_queries_that_grow() -> None:
    model = model_spec(CASES["mistral4"].config)
    attention, experts = latents_of(model), experts_of(model)
    assert (attention.query_growth, attention.query_period, attention.rotary.dim) == (0.2, 64, 0)
    assert len(attention.rotary.factors) == 16  # of the part that rotates, whatever share of a head that is
    assert experts.routing == Routing(6, 2, normalises=True, scale=1.5, num_groups=3, groups_kept=2)
    assert experts.is_stacked
    inside = model_spec(CASES["mistral4_multimodal"].config)
    assert inside.layers == model.layers


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method 'noaux_tc' is not supported for DeepSeek V2"),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob"),
        ("deepseek_v2", {"scoring_func": "sigmoid"}, "scoring_func 'sigmoid' is not supported, only 'softmax'"),
        ("deepseek_v2", {"moe_layer_freq": 2}, "moe_layer_freq 2"),
        ("deepseek_v2", {"attention_bias": True}, "attention_bias"),
        ("deepseek_v2", {"kv_lora_rank": 1024}, r"kv_lora_rank \+ qk_rope_head_dim: expected 32 to 576, got 1088"),
        (
            "deepseek_v2",
            {"num_attention_heads": 1 << 24, "num_key_value_heads": 1 << 24},
            "at most 1024 beside latents",
        ),
        ("deepseek_v2", {"qk_nope_head_dim": 36}, "qk_nope_head_dim: expected a multiple of 8, got 36"),
        ("deepseek_v3", {"topk_method": "greedy"}, "topk_method 'greedy' is not supported; known are"),
        ("mistral4", {"partial_rotary_factor": 0.25}, "partial_rotary_factor: 16 elements, not 32"),
        ("glm4_moe_lite", {"mlp_layer_types": ["dense", "odd"]}, r"mlp_layer_types \['odd'\] are not supported"),
        ("glm4_moe_lite", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5 of a head"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_key(name: str, keys: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        model_spec({**CASES[name].config, **keys})


def test_latents_are_attended_to_where_the_model_is() -> None:
    options = replace(EngineConfig(), attention=AttentionTarget(AttentionKind.VULKAN, "other"))
    with pytest.raises(UnsupportedModelError, match="Glm4MoeLiteForCausalLM attends to latents"):
        fit_options(model_spec(FLASH), options)
