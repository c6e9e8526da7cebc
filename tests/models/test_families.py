"""What config.json files of the families leave out is as in transformers, and what is not supported is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.golden.cases import CASES
from unicorn_async.checkpoint.file_traits import FileTraits
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.models.blocks.attention import Attention
from unicorn_async.models.blocks.time_mix import Ranks, TimeMix
from unicorn_async.models.registry import model_spec
from unicorn_async.ops.time_mix import TimeMixShape
from unicorn_async.rotary import RotaryConfig, RotaryScaling

if TYPE_CHECKING:
    from unicorn_async.models.spec import ModelSpec

PLAIN: dict[str, object] = {
    "hidden_size": 128,
    "num_hidden_layers": 5,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
}
YARN: dict[str, object] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
LONGROPE: dict[str, object] = {"type": "su", "short_factor": [1] * 32, "long_factor": [2.0] * 32}


def spec(architecture: str, **keys: object) -> ModelSpec:
    return model_spec({**PLAIN, "architectures": [f"{architecture}ForCausalLM"], **keys})


def still_layers(model: ModelSpec) -> list[int]:
    return [number for number, layer in enumerate(model.layers) if layer.attention.rotary.is_still]


def test_gemma_2_has_caps_unless_they_are_null_and_windows_in_every_other_layer() -> None:
    model = spec("Gemma2", sliding_window=16)
    assert model.layer_windows == (16, 0, 16, 0, 16)
    assert (model.attention.soft_cap, model.head.soft_cap) == (50.0, 30.0)
    assert (model.attention.softmax_scale, model.head_dim, model.head.is_tied) == (1 / 16, 256, True)
    bare = spec("Gemma2", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (bare.attention.soft_cap, bare.head.soft_cap) == (0.0, 0.0)


def test_olmo_2_has_norms_behind_its_blocks_alone_and_of_whole_queries() -> None:
    attention = spec("Olmo2").attention
    assert attention.norm is None
    assert attention.post_norm is not None and attention.post_norm.eps == 1e-5
    assert attention.q_norm is not None and attention.q_norm.size == 128
    assert attention.k_norm is not None and attention.k_norm.size == 64


@pytest.mark.parametrize("nested", [False, True])
def test_olmo_3_scales_its_global_layers_alone(nested: bool) -> None:
    parameters = {"full_attention": {**YARN, "rope_theta": 5e5}, "sliding_attention": {"rope_theta": 5e5}}
    model = spec("Olmo3", **({"rope_parameters": parameters} if nested else {"rope_scaling": YARN, "rope_theta": 5e5}))
    assert model.layer_windows == (4096, 4096, 4096, 0, 4096)
    assert model.attention.rotary == RotaryConfig(5e5)
    scaled = model.layers[3].attention.rotary
    assert scaled.scaling is RotaryScaling.FACTORS
    assert (scaled.factors[0], scaled.factors[-1]) == (1.0, 4.0)
    assert scaled.amplitude == pytest.approx(1.1386, abs=1e-4)


def test_phi_3_has_long_factors_beside_the_short_ones() -> None:
    rotary = spec("Phi3", rope_scaling=LONGROPE, original_max_position_embeddings=1024).attention.rotary
    assert (rotary.factors, rotary.long_factors) == ((1.0,) * 32, (2.0,) * 32)
    assert rotary.original_max_position == 1024
    assert rotary.amplitude == pytest.approx(1.0954, abs=1e-4)
    model = spec("Phi3", partial_rotary_factor=0.75)
    assert model.attention.rotary == RotaryConfig(1e4, dim=48)
    (weight,) = [weight for weight in model.attention.weights if weight.dest == "qkv"]
    assert (weight.name, weight.shape) == ("self_attn.qkv_proj.weight", (256, 128))
    assert weight.head_order is not None and weight.head_order.num_heads == 3


def test_smollm3_s_layers_without_positions_are_listed_or_every_fourth() -> None:
    assert still_layers(spec("SmolLM3")) == [3]
    assert still_layers(spec("SmolLM3", no_rope_layers=[0, 1, 1, 1, 0, 1])) == [0, 4]
    windowed = spec("SmolLM3", use_sliding_window=True, sliding_window=16)
    assert windowed.layer_windows == (0, 0, 0, 16, 0)
    assert windowed.attention.rotary.base == 2e6


def test_granite_s_factors_are_one_where_the_file_has_none() -> None:
    model = spec("Granite")
    assert (model.attention.softmax_scale, model.attention.residual_scale) == (1.0, 1.0)
    assert (model.embedding.scale, model.head.scale) == (1.0, 1.0)
    assert spec("Granite", logits_scaling=16).head.scale == 1 / 16


def test_half_of_glm_s_heads_rotate() -> None:
    for name in ("Glm", "Glm4"):
        attention = spec(name).attention
        assert (attention.head_dim, attention.rotary.dim, attention.qkv_bias) == (128, 64, True)
        assert attention.is_interleaved
    assert [block.residue.norm for block in spec("Glm").layers[0].blocks] == ["", ""]


def test_ministral_3_s_queries_grow_from_the_original_context_on() -> None:
    parameters = {**YARN, "rope_theta": 1e6, "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0}
    attention = spec("Ministral3", rope_parameters=parameters).attention
    assert (attention.query_growth, attention.query_period) == (0.1, 1024)
    assert attention.rotary.amplitude == 1.0
    assert spec("Ministral3", rope_theta=1e6).attention.query_growth == 0.0


def test_the_text_part_of_a_multimodal_mistral_may_be_a_mistral_or_a_ministral() -> None:
    outer = {"architectures": ["Mistral3ForConditionalGeneration"], "tie_word_embeddings": True}
    model = model_spec({**outer, "text_config": {**PLAIN, "model_type": "ministral3"}})
    assert (model.num_layers, model.head.is_tied) == (5, True)
    untied = model_spec({**outer, "text_config": {**PLAIN, "tie_word_embeddings": False}})
    assert not untied.head.is_tied
    with pytest.raises(UnsupportedModelError, match="model_type 'mistral9' is not supported; known are mistral, minis"):
        model_spec({**outer, "text_config": {**PLAIN, "model_type": "mistral9"}})


def test_cohere_2_reads_one_norm_twice_and_its_global_layers_stand_still() -> None:
    model = spec("Cohere2", sliding_window=16)
    assert model.layer_windows == (16, 16, 16, 0, 16)
    assert still_layers(model) == [3]
    assert (model.head.scale, model.head.norm.centred) == (0.0625, True)
    names = [weight.name for weight in model.layers[0].weights]
    assert names.count("input_layernorm.weight") == 1
    assert len(names) == 8


def test_exaone_4_has_positions_everywhere_where_it_has_no_window() -> None:
    assert still_layers(spec("Exaone4", sliding_window=None)) == []
    for keys in ({"sliding_window_pattern": "LLLG"}, {"sliding_window_pattern": 4}, {}):
        model = spec("Exaone4", sliding_window=16, **keys)
        assert model.layer_windows == (16, 16, 16, 0, 16)
        assert still_layers(model) == [3]


def test_seed_oss_has_biases_but_for_the_output() -> None:
    attention = spec("SeedOss").attention
    assert (attention.qkv_bias, attention.output_bias, attention.head_dim) == (True, False, 128)


def test_ernie_4_5_rotates_neighbours_and_a_null_head_is_the_hidden_size_over_the_heads() -> None:
    model = spec("Ernie4_5")
    attention = model.attention
    assert (attention.head_dim, attention.is_interleaved, attention.qkv_bias) == (128, True, False)
    assert attention.rotary == RotaryConfig(5e5)
    assert attention.norm is not None and attention.norm.eps == 1e-5
    assert model.head.is_tied
    assert spec("Ernie4_5", head_dim=None).head_dim == 64


def test_yarn_is_for_every_family() -> None:
    rotary = spec("Qwen3", rope_scaling=YARN).attention.rotary
    whole = spec("Qwen3", rope_scaling={**YARN, "attention_factor": 1.0, "truncate": False}).attention.rotary
    assert rotary.amplitude == pytest.approx(1.1386, abs=1e-4)
    assert whole.amplitude == 1.0
    assert replace(whole, factors=()) == replace(rotary, factors=(), amplitude=1.0)
    assert whole.factors != rotary.factors


@pytest.mark.parametrize(
    ("architecture", "keys", "message"),
    [
        ("Gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention: only causal"),
        ("Olmo2", {"clip_qkv": 8.0}, "clip_qkv"),
        *((name, {"mlp_bias": True}, "mlp_bias") for name in ("Granite", "SeedOss", "SmolLM3")),
        ("Ernie4_5", {"use_bias": True}, "use_bias"),
        ("Qwen3", {"rope_scaling": YARN, "head_dim": 1 << 24}, "head_dim: expected at most 4096, got 16777216"),
        ("Phi3", {"partial_rotary_factor": 0.51}, r"partial_rotary_factor: 0\.51 of a head of 100"),
        ("Lfm2", {"conv_L_cache": 1}, "conv_L_cache: expected 2 to 16, got 1"),
        ("Lfm2", {"conv_L_cache": 17}, "conv_L_cache: expected 2 to 16, got 17"),
        ("Lfm2", {"layer_types": ["sliding_attention"] * 5}, "layer_types .'sliding_attention'. are not supported"),
        ("Lfm2", {"full_attn_idxs": []}, "models without attention"),
        ("Lfm2Vl", {}, "Lfm2VlForCausalLM.* is not supported"),
        ("Phi3", {"rope_scaling": {"rope_type": "dynamic"}}, "known are default, linear, llama3, yarn, longrope"),
    ],
)
def test_an_option_that_is_not_supported_is_named(architecture: str, keys: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        spec(architecture, **{**keys, **({"head_dim": 100} if "partial_rotary_factor" in keys else {})})


@pytest.mark.parametrize(
    ("architecture", "keys", "message"),
    [
        ("Phi3", {"rope_scaling": {**LONGROPE, "long_factor": [1.0]}}, "long_factor: expected 32 numbers, got 1"),
        (
            "Phi3",
            {"rope_scaling": {**LONGROPE, "short_factor": [0.0] * 32}},
            "short_factor: expected numbers from 1e-06 to 1000000",
        ),
        ("Phi3", {"rope_scaling": LONGROPE, "original_max_position_embeddings": 1}, "expected at least 2, got 1"),
        ("Qwen3", {"rope_scaling": {**YARN, "factor": None}}, "factor is missing"),
        ("Qwen3", {"rope_scaling": YARN, "rope_theta": 1.0}, "rope_theta: expected more than 1"),
        ("Phi3", {"rope_scaling": {**LONGROPE, "short_factor": [10**400] * 32}}, "short_factor: expected numbers"),
        ("Granite", {"residual_multiplier": 1e300}, "residual_multiplier: expected 1e-06 to 1000000.0, got '1e.300'"),
        ("Gemma2", {"query_pre_attn_scalar": 5e-324}, "query_pre_attn_scalar: expected 1e-06"),
        ("Qwen3", {"rope_scaling": {**YARN, "beta_fast": 1e300}}, "beta_fast: expected 1e-06"),
        ("Lfm2", {"full_attn_idxs": [5]}, "full_attn_idxs: expected less than 5, got 5"),
        ("Lfm2", {"full_attn_idxs": [-1]}, "full_attn_idxs: expected a list of indices"),
        ("Lfm2", {"block_ffn_dim_multiplier": 1e300}, "block_ffn_dim_multiplier: expected 1e-06"),
        ("SmolLM3", {"no_rope_layers": [1, 1]}, "no_rope_layers: expected 0 or 1 for each of 5 layers"),
        ("SmolLM3", {"no_rope_layers": []}, "no_rope_layers: expected 0 or 1 for each of 5 layers"),
        ("Exaone4", {"sliding_window": 16, "sliding_window_pattern": "LX"}, "expected L and G, got 'LX'"),
    ],
)
def test_a_wrong_value_is_named(architecture: str, keys: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        spec(architecture, **keys)


@pytest.mark.parametrize("architecture", ["Gemma3", "Olmo3"])
@pytest.mark.parametrize(
    "keys",
    [
        {"partial_rotary_factor": 0.5},
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0, "partial_rotary_factor": 0.5}},
        {"partial_rotary_factor": 0.5, "rope_parameters": {"full_attention": {}, "sliding_attention": {}}},
        {"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}, "sliding_attention": {}}},
        {"rope_parameters": {"full_attention": {}, "sliding_attention": {"partial_rotary_factor": 0.5}}},
    ],
)
def test_a_part_of_each_head_is_refused_for_every_kind_of_layer(architecture: str, keys: dict[str, object]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"partial_rotary_factor: 0\.5 "):
        spec(architecture, **keys)
    assert spec(architecture, partial_rotary_factor=1.0) == spec(architecture)


@pytest.mark.parametrize(
    ("architecture", "keys"),
    [("Gemma2", {"norm_plus_one": False}), ("Gemma3", {"norm_plus_one": False}), ("Glm4", {"fused_qkv": True})],
)
def test_what_gguf_files_are_like_is_not_said_by_config_json(architecture: str, keys: dict[str, object]) -> None:
    assert spec(architecture, **keys) == spec(architecture)


def test_factors_of_frequencies_are_a_file_s_alone() -> None:
    section = {"rope_type": "factors", "factors": [2.0] * 32}
    with pytest.raises(UnsupportedModelError, match="rope_type 'factors' is not supported"):
        spec("Llama", rope_scaling=section)
    raw = {**PLAIN, "architectures": ["LlamaForCausalLM"]}
    rotary = model_spec(raw, traits=FileTraits(rope_factors=(2.0,) * 32)).attention.rotary
    assert (rotary.scaling, rotary.factors) == (RotaryScaling.FACTORS, (2.0,) * 32)


@pytest.mark.parametrize("name", ["Gemma2ForCausalLM", "Cohere2ForCausalLM", "Olmo3ForCausalLM", "Gemma3ForCausalLM"])
def test_a_window_that_is_null_is_none(name: str) -> None:
    assert set(model_spec({**PLAIN, "architectures": [name], "sliding_window": None}).layer_windows) == {0}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("LlamaForCausalLM", {"clip_qkv": 8.0}),
        ("MistralForCausalLM", {"attention_bias": True}),
        ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}),
        ("Qwen3ForCausalLM", {"is_causal": False}),
        ("Cohere2ForCausalLM", {"rotary_pct": 0.5}),
        ("Cohere2ForCausalLM", {"use_gated_activation": False}),
        ("Cohere2ForCausalLM", {"use_parallel_block": False}),
        ("Qwen3ForCausalLM", {"num_local_experts": 8}),
        ("GlmForCausalLM", {"mlp_bias": True}),
    ],
)
def test_what_would_change_the_result_and_is_read_by_no_family_is_refused_by_name(
    name: str, change: dict[str, object]
) -> None:
    raw = {**PLAIN, "architectures": [name]}
    model_spec(raw)
    with pytest.raises(UnsupportedModelError, match=next(iter(change))):
        model_spec({**raw, **change})


def test_a_text_part_that_sees_what_comes_is_refused() -> None:
    raw = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {"use_bidirectional_attention": False}}
    model_spec(raw)
    with pytest.raises(UnsupportedModelError, match="text_config: use_bidirectional_attention: True"):
        model_spec({**raw, "text_config": {"use_bidirectional_attention": True}})


@pytest.mark.parametrize("change", [{"eps": 0.5}, {"plus_one": True}, {"centred": True}])
def test_norms_that_one_dispatch_could_not_apply_are_refused(change: dict[str, Any]) -> None:
    model = spec("Olmo2")
    first, *others = model.layers
    attention, ffn = first.blocks
    assert isinstance(attention, Attention)
    assert attention.post_norm is not None and attention.k_norm is not None
    changed = replace(attention, post_norm=replace(attention.post_norm, **change))
    with pytest.raises(UnsupportedModelError, match="norms that count differently"):
        replace(model, layers=(replace(first, blocks=(changed, ffn)), *others))
    with pytest.raises(UnsupportedModelError, match="norms of q and k"):
        replace(attention, k_norm=replace(attention.k_norm, **change))


def test_lfm_2_attends_where_its_file_says_so_and_adjusts_its_ffn() -> None:
    model = spec("Lfm2", full_attn_idxs=[1, 4], block_ff_dim=3000, block_ffn_dim_multiplier=1.5)
    assert [layer.attends for layer in model.layers] == [False, True, False, False, True]
    assert model.layer_windows == (None, 0, None, None, 0)
    assert spec("Lfm2", layer_types=["conv", "full_attention", *["conv"] * 3]).layer_windows == (None, 0, *[None] * 3)
    assert spec("Lfm2").layer_windows == (0,) * 5
    shapes = {want.name: want.shape for want in model.wanted_tensors()}
    assert shapes["model.layers.0.feed_forward.w1.weight"] == (3072, 128)  # of 2/3 of 3000 half as much again
    assert shapes["model.layers.0.conv.conv.weight"] == (128, 1, 3)
    assert {"model.layers.1.self_attn.out_proj.weight", "model.layers.1.self_attn.q_layernorm.weight"} <= set(shapes)
    assert {"model.layers.0.operator_norm.weight", "model.embedding_norm.weight"} <= set(shapes)
    assert (model.attention.rotary.base, model.head.norm.eps, model.head.is_tied) == (1e6, 1e-5, True)
    shapes = {want.name: want.shape for want in spec("Lfm2", block_auto_adjust_ff_dim=False).wanted_tensors()}
    assert shapes["model.layers.0.feed_forward.w2.weight"] == (128, 128)


def test_qwen_3_5_attends_in_each_fourth_layer_behind_a_gate() -> None:
    model = spec("Qwen3_5")
    assert [layer.attends for layer in model.layers] == [False, False, False, True, False]
    assert (model.attention.is_gated, model.attention.head_dim, model.attention.rotary.dim) == (True, 256, 64)
    shapes = {want.name: want.shape for want in model.wanted_tensors()}
    assert shapes["model.layers.3.self_attn.q_proj.weight"] == (2 * 2 * 256, 128)
    assert shapes["model.layers.0.linear_attn.in_proj_qkv.weight"] == (2 * 16 * 128 + 32 * 128, 128)
    assert shapes["model.layers.0.linear_attn.conv1d.weight"] == (2 * 16 * 128 + 32 * 128, 1, 4)
    found = spec("Qwen3_5", layer_types=["full_attention", *["linear_attention"] * 4])
    assert found.layer_windows == (0, *[None] * 4)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"attn_output_gate": False}, "attn_output_gate"),
        ({"hidden_act": "gelu_new"}, "hidden_act"),
        ({"linear_conv_kernel_dim": 17}, "linear_conv_kernel_dim: expected 2 to 16, got 17"),
        ({"linear_num_value_heads": 24}, "24 heads of values, no multiple of 16"),
        ({"linear_key_head_dim": 24}, "heads of 24 and 128 elements"),
        ({"num_experts": 8}, "num_experts"),
        ({"layer_types": ["sliding_attention"] * 5}, "layer_types"),
    ],
)
def test_what_qwen_3_5_could_be_otherwise_is_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        spec("Qwen3_5", **keys)


def test_rwkv_7_reads_ranks_or_makes_them_of_the_hidden_size() -> None:
    model = model_spec(
        {"architectures": ["RWKV7ForCausalLM"], "hidden_size": 768, "num_hidden_layers": 2, "vocab_size": 8}
    )
    first, second = (layer.blocks[0] for layer in model.layers)
    assert isinstance(first, TimeMix) and isinstance(second, TimeMix)
    assert (first.ranks, first.shape) == (Ranks(decay=64, rate=64, blend=32, gate=128), TimeMixShape(12, 64))
    assert (first.is_first, second.is_first) == (True, False)
    assert dict(model.layers[0].blocks[1].sizes) == {"intermediate_size": 3072}
    assert (model.carried_size, model.attends, model.layer_windows) == (768, False, (None, None))
    with pytest.raises(UnsupportedModelError, match="has no such tensor"):
        model.check_unused(["model.layers.1.attn.v_lora.lora.3.weight"])
    model.check_unused(["model.layers.0.attn.v_lora.lora.0.weight"])  # as some files have it, and nothing reads it


def test_rwkv_7_s_older_directories_have_one_tensor_of_what_tokens_are_mixed_by() -> None:
    stacked = model_spec(CASES["rwkv7"].config, traits=FileTraits(are_shifts_stacked=True))
    one, other = (model.wanted_tensors() for model in (model_spec(CASES["rwkv7"].config), stacked))
    shifts = {want.name: (want.shape, want.dest) for want in set(other) - set(one)}
    assert shifts["model.layers.1.attn.x_x"] == ((6, 1, 128), "layers.1.mix_shifts")
    assert len(shifts) == stacked.num_layers
    assert {want.row_offset for want in one if want.dest == "layers.1.mix_shifts"} == set(range(0, 768, 128))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"attn": {"layers": [1]}}, "attn: .* is not supported here"),
        ({"hidden_act": "relu"}, "hidden_act: relu is not supported here"),
        ({"norm_first": False}, "norm_first: False is not supported here"),
        ({"norm_bias": False}, "norm_bias: False is not supported here"),
        ({"head_dim": 56}, "hidden_size 128 is no multiple of heads of 56"),
        ({"head_dim": None, "num_heads": 3}, "hidden_size 128 is no multiple of heads of 42"),
        ({"head_dim": 8}, "heads of 8 elements, expected a multiple of 16"),
        ({"value_dim": [128, [64], 128]}, "value_dim: .* is not supported, only the hidden size 128"),
        ({"a_low_rank_dim": 12}, "a_low_rank_dim: expected a multiple of 8, got 12"),
    ],
)
def test_what_rwkv_7_could_be_otherwise_is_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        model_spec({**CASES["rwkv7"].config, **keys})


def test_a_model_without_attention_whose_layers_keep_nothing_is_refused() -> None:
    model = spec("Llama")
    layers = tuple(replace(layer, blocks=layer.blocks[1:]) for layer in model.layers)
    with pytest.raises(UnsupportedModelError, match="a model without attention has layers that keep nothing"):
        replace(model, layers=layers)
