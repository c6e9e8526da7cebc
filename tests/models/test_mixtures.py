"""What config.json files of mixtures leave out is as in transformers, and what is not supported is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.golden.cases import CASES
from unicorn_async.checkpoint.file_traits import FileTraits
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.models.blocks.experts import Experts
from unicorn_async.models.blocks.shared_expert import SharedExpert
from unicorn_async.models.registry import model_spec
from unicorn_async.ops.routing import Routing
from unicorn_async.weights.placement import MemoryGroup

from .test_families import PLAIN, spec

if TYPE_CHECKING:
    from unicorn_async.models.spec import ModelSpec


def experts_of(model: ModelSpec, layer: int = 0) -> Experts:
    block = model.layers[layer].blocks[-1]
    assert isinstance(block, Experts)
    return block


def test_qwen_3_has_experts_in_each_layer_but_those_that_are_named_or_left_out() -> None:
    sizes: dict[str, object] = {"moe_intermediate_size": 48, "num_experts": 16, "num_experts_per_tok": 4}
    model = spec("Qwen3Moe", **sizes, mlp_only_layers=[1], decoder_sparse_step=1)
    kinds = [type(layer.blocks[1]).__name__ for layer in model.layers]
    assert kinds == ["Experts", "GatedFFN", "Experts", "Experts", "Experts"]
    experts = model.layers[0].blocks[1]
    assert experts.summary == "4 of 16 experts of 48 (silu)"
    assert isinstance(experts, Experts) and not experts.routing.normalises
    every_second = spec("Qwen3Moe", **sizes, decoder_sparse_step=2, norm_topk_prob=True)
    assert [isinstance(layer.blocks[1], Experts) for layer in every_second.layers] == [False, True, False, True, False]


def test_experts_go_to_slow_memory_before_all_else_and_routers_do_not() -> None:
    sizes: dict[str, object] = {"moe_intermediate_size": 48, "num_experts": 16, "num_experts_per_tok": 4}
    model = spec("Qwen3Moe", **sizes)
    groups = model.memory_groups()
    assert groups["layers.0.experts_gate_up"] is groups["layers.0.experts_down"] is MemoryGroup.EXPERTS
    assert groups["layers.0.router"] is MemoryGroup.NORMS
    order = list(MemoryGroup)
    assert order.index(MemoryGroup.EXPERTS) > max(
        map(order.index, set(order) - {MemoryGroup.EXPERTS, MemoryGroup.EMBEDDINGS})
    )


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"num_experts_per_tok": 17}, "experts of a token: expected 1 to 16, got 17"),
        ({"num_experts": 2048}, "experts: expected 1 to 1024, got 2048"),
        ({"use_sliding_window": True, "sliding_window": 64}, "windows of Qwen3Moe are not supported"),
        ({"moe_intermediate_size": 44}, "moe_intermediate_size: expected a multiple of 8, got 44"),
    ],
)
def test_mixtures_that_no_kernel_takes_are_refused(keys: dict[str, object], match: str) -> None:
    sizes: dict[str, object] = {"moe_intermediate_size": 48, "num_experts": 16, "num_experts_per_tok": 4}
    with pytest.raises(UnsupportedModelError, match=match):
        spec("Qwen3Moe", **{**sizes, **keys})


def test_olmoe_has_experts_in_all_layers_and_weights_as_the_softmax_has_them() -> None:
    model = spec("Olmoe")
    assert {layer.blocks[1].summary for layer in model.layers} == {"8 of 64 experts of 128 (silu)"}
    experts = model.layers[0].blocks[1]
    assert isinstance(experts, Experts) and not experts.routing.normalises
    assert model.attention.q_norm is not None and model.attention.q_norm.size == 128
    with pytest.raises(UnsupportedModelError, match="clip_qkv"):
        spec("Olmoe", clip_qkv=8.0)


def test_mixtral_has_experts_in_all_layers_whose_weights_add_up_to_one() -> None:
    model = spec("Mixtral", sliding_window=None)
    assert {layer.blocks[1].summary for layer in model.layers} == {"2 of 8 experts of 128 (silu)"}
    experts = model.layers[0].blocks[1]
    assert isinstance(experts, Experts) and experts.routing.normalises
    assert model.attention.rotary.base == 1_000_000.0 and model.attention.window == 0
    assert spec("Mixtral", sliding_window=64).attention.window == 64
    with pytest.raises(UnsupportedModelError, match="experts of a token: expected 1 to 8, got 9"):
        spec("Mixtral", num_experts_per_tok=9)


def test_gpt_oss_has_sinks_biases_and_a_window_in_every_other_layer() -> None:
    model = spec("GptOss", num_local_experts=32, head_dim=64)
    assert model.layer_windows == (128, 0, 128, 0, 128)
    attention, experts = model.attention, experts_of(model)
    assert attention.heads == "2 heads, with sinks" and attention.qkv_bias and attention.output_bias
    assert experts.summary == "4 of 32 experts of 128 (clamped_swiglu)" and experts.routing.normalises
    yarn = attention.rotary
    assert (yarn.base, round(yarn.amplitude, 4), len(yarn.factors)) == (150_000.0, 1.3466, 32)
    assert yarn.factors[8] == 1.0 and 1.0 < yarn.factors[9] < 1.2 and yarn.factors[17] < 32.0 == yarn.factors[18]
    wants = {want.name: want for want in model.wanted_tensors()}
    gates, bias = (wants[f"model.layers.4.mlp.experts.gate_up_proj{ending}"] for ending in ("", "_bias"))
    assert (gates.file_shape, gates.is_transposed, bias.file_shape) == ((32, 256, 128), True, (32, 256))
    assert (wants["model.layers.4.mlp.router.bias"].shape, wants["model.layers.0.self_attn.sinks"].shape) == (
        (32,),
        (2,),
    )
    raw = {**PLAIN, "architectures": ["GptOssForCausalLM"], "num_local_experts": 8}
    apart = {want.name: want for want in model_spec(raw, traits=FileTraits(are_experts_apart=True)).wanted_tensors()}
    up = apart["model.layers.4.mlp.experts.up_proj_bias"]
    assert (up.file_shape, up.row_offset, up.dest) == ((8, 128), 8 * 128, "layers.4.experts_gate_up_bias")
    assert not apart["model.layers.4.mlp.experts.7.down_proj.weight"].is_transposed
    assert spec("GptOss", sliding_window=None).layer_windows == (0,) * 5


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"swiglu_limit": 5.0}, r"swiglu_limit: 5\.0 is not supported, only 7\.0"),
        ({"swiglu_alpha": 1.5}, r"swiglu_alpha: 1\.5 is not supported, only 1\.702"),
        ({"hidden_act": "gelu_new"}, "hidden_act: 'gelu_new' is not supported, only 'silu'"),
        ({"layer_types": ["chunked_attention"] * 5}, r"layer_types \['chunked_attention'\]"),
        ({"num_experts_per_tok": 129}, "experts of a token: expected 1 to 32, got 129"),
    ],
)
def test_what_gpt_oss_could_be_otherwise_is_refused(keys: dict[str, object], match: str) -> None:
    with pytest.raises(UnsupportedModelError, match=match):
        spec("GptOss", **keys)


def test_qwen_2_has_an_expert_for_all_tokens_behind_a_gate() -> None:
    model = spec("Qwen2Moe", mlp_only_layers=[1], num_experts=12)
    experts = experts_of(model)
    assert experts.shared == SharedExpert(5632, "mlp.shared_expert", "mlp.shared_expert_gate.weight")
    assert experts.summary == "4 of 12 experts of 1408 and one of 5632 for all tokens (silu)"
    assert (experts.routing.normalises, model.attention.qkv_bias, model.attention.output_bias) == (False, True, False)
    assert [isinstance(layer.blocks[1], Experts) for layer in model.layers] == [True, False, True, True, True]
    wants = {want.name: want for want in model.wanted_tensors()}
    gate = wants["model.layers.0.mlp.shared_expert_gate.weight"]
    assert (gate.shape, gate.dest, gate.row_offset, gate.as_f32) == ((1, 128), "layers.0.router", 12, True)
    groups = model.memory_groups()
    assert groups["layers.0.shared_gate_up"] is groups["layers.0.shared_down"] is MemoryGroup.FFN
    assert not spec("Qwen2Moe", qkv_bias=False).attention.qkv_bias


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"shared_expert_intermediate_size": 44}, "shared_expert_intermediate_size: expected a multiple of 8, got 44"),
        ({"use_sliding_window": True, "sliding_window": 64}, "use_sliding_window: windows of Qwen2Moe"),
        ({"layer_types": ["sliding_attention"] * 5}, "layer_types: windows of Qwen2Moe are not supported"),
        ({"attention_bias": True}, "attention_bias"),
    ],
)
def test_what_qwen_2_could_be_otherwise_is_refused(keys: dict[str, object], match: str) -> None:
    with pytest.raises(UnsupportedModelError, match=match):
        spec("Qwen2Moe", **keys)


def test_qwen_3_5_has_stacked_experts_in_all_layers_unless_each_has_tensors_of_its_own() -> None:
    model = spec("Qwen3_5Moe", moe_intermediate_size=64, num_experts=16, shared_expert_intermediate_size=96)
    assert [layer.attends for layer in model.layers] == [False, False, False, True, False]
    assert {layer.blocks[1].summary for layer in model.layers} == {
        "8 of 16 experts of 64 and one of 96 for all tokens (silu)"
    }
    experts = experts_of(model)
    assert experts.routing.normalises and experts.norm.plus_one
    wants = {want.name: want for want in model.wanted_tensors()}
    gates, down = (wants[f"model.layers.0.mlp.experts.{part}_proj"] for part in ("gate_up", "down"))
    assert (gates.shape, gates.file_shape) == ((16 * 2 * 64, 128), (16, 2 * 64, 128))
    assert (down.shape, down.file_shape) == ((16 * 128, 64), (16, 128, 64))
    raw = {**PLAIN, "architectures": ["Qwen3_5MoeForCausalLM"], "num_experts": 16}
    apart = model_spec(raw, traits=FileTraits(are_experts_apart=True)).wanted_tensors()
    assert "model.layers.4.mlp.experts.15.down_proj.weight" in {want.name for want in apart}


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"norm_topk_prob": False}, "norm_topk_prob: false"),
        ({"mlp_only_layers": [1]}, r"mlp_only_layers: \[1\] is not supported here"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step: 2 is not supported here"),
        ({"attn_output_gate": False}, "attn_output_gate"),
    ],
)
def test_what_qwen_3_5_could_be_otherwise_is_refused(keys: dict[str, object], match: str) -> None:
    with pytest.raises(UnsupportedModelError, match=match):
        spec("Qwen3_5Moe", **keys)


def test_glm_4_5_has_dense_layers_first_and_routes_by_corrected_sigmoids() -> None:
    keys: dict[str, object] = {"moe_intermediate_size": 64, "n_routed_experts": 16, "head_dim": 64}
    model = spec("Glm4Moe", **keys, first_k_dense_replace=2, n_shared_experts=2)
    assert [isinstance(layer.blocks[1], Experts) for layer in model.layers] == [False, False, True, True, True]
    experts = experts_of(model, 2)
    assert experts.routing == Routing(16, 8, is_sigmoid=True, normalises=True)
    assert experts.shared == SharedExpert(128, "mlp.shared_experts") and experts.is_corrected
    assert (model.attention.rotary.dim, model.attention.q_norm, model.attention.qkv_bias) == (32, None, False)
    wants = {want.name: want for want in model.wanted_tensors()}
    assert wants["model.layers.2.mlp.gate.e_score_correction_bias"].shape == (16,)
    assert wants["model.layers.2.mlp.gate.weight"].shape == (16, 128)
    routing = experts_of(spec("Glm4Moe", **keys, n_group=4, topk_group=3, routed_scaling_factor=2.5), 1).routing
    assert (routing.num_groups, routing.groups_kept, routing.scale) == (4, 3, 2.5)
    assert experts_of(spec("Glm4Moe", **keys, n_shared_experts=0), 1).shared is None
    assert not isinstance(spec("Glm4Moe", **keys, first_k_dense_replace=5).layers[4].blocks[1], Experts)


def test_layers_that_predict_further_tokens_are_passed_over_as_far_as_the_configuration_has_them() -> None:
    model = spec("Glm4Moe", head_dim=64, num_nextn_predict_layers=1)
    model.check_unused(["model.layers.5.eh_proj.weight", "model.layers.5.mlp.experts.0.up_proj.weight"])
    with pytest.raises(UnsupportedModelError, match=r"tensor 'model\.layers\.6\.eh_proj\.weight': Glm4Moe"):
        model.check_unused(["model.layers.6.eh_proj.weight"])
    with pytest.raises(UnsupportedModelError, match=r"tensor 'model\.layers\.5\.eh_proj\.weight': Glm4Moe"):
        spec("Glm4Moe", head_dim=64, num_nextn_predict_layers=0).check_unused(["model.layers.5.eh_proj.weight"])


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"n_group": 5}, "groups of experts: expected 1 to 32 that 128 experts fill, got 5"),
        ({"n_group": 32, "topk_group": 1}, "groups of experts that a token takes: expected 1 to 32 with 8 experts"),
        ({"partial_rotary_factor": 0.3}, "partial_rotary_factor"),
        ({"mlp_bias": True}, "mlp_bias"),
    ],
)
def test_what_glm_4_5_could_be_otherwise_is_refused(keys: dict[str, object], match: str) -> None:
    with pytest.raises(UnsupportedModelError, match=match):
        spec("Glm4Moe", head_dim=64, **keys)


def test_qwen_3_next_has_its_projections_in_groups_and_may_have_layers_without_experts() -> None:
    model = spec("Qwen3Next", mlp_only_layers=[1], num_experts=16)
    assert [layer.attends for layer in model.layers] == [False, False, False, True, False]
    assert [isinstance(layer.blocks[1], Experts) for layer in model.layers] == [True, False, True, True, True]
    experts = experts_of(model)
    assert experts.routing == Routing(16, 10, normalises=True) and not experts.is_stacked
    assert experts.shared == SharedExpert(512, "mlp.shared_expert", "mlp.shared_expert_gate.weight")
    wants = {want.name: want for want in model.wanted_tensors()}
    qkvz, ba = (wants[f"model.layers.0.linear_attn.in_proj_{part}.weight"] for part in ("qkvz", "ba"))
    assert (qkvz.shape, ba.shape) == ((2 * 16 * 128 + 2 * 32 * 128, 128), (64, 128))
    assert [(run.file_row, run.row, run.count) for run in qkvz.runs[4:8]] == [
        *((768, 128, 128), (768 + 128, 2048 + 128, 128)),
        *((768 + 256, 4096 + 256, 256), (768 + 512, 8192 + 256, 256)),
    ]
    assert [(run.file_row, run.row, run.count) for run in ba.runs[2:4]] == [(4, 2, 2), (6, 34, 2)]
    assert not experts_of(spec("Qwen3Next", num_experts=16, norm_topk_prob=False)).routing.normalises


def test_lfm_2_has_experts_behind_its_dense_layers_under_names_of_its_own() -> None:
    kinds = ["conv", "full_attention", "conv", "conv", "conv"]
    model = spec("Lfm2Moe", layer_types=kinds, num_experts=8, moe_intermediate_size=64)
    assert [isinstance(layer.blocks[1], Experts) for layer in model.layers] == [False, False, True, True, True]
    assert [layer.attends for layer in model.layers] == [False, True, False, False, False]
    experts = experts_of(model, 2)
    assert experts.routing == Routing(8, 4, is_sigmoid=True, normalises=True) and experts.is_corrected
    names = {want.name for want in model.wanted_tensors()}
    inner = "model.layers.2.feed_forward."
    assert {f"{inner}gate.weight", f"{inner}expert_bias", f"{inner}experts.7.w3.weight"} <= names
    assert "model.layers.1.feed_forward.w1.weight" in names
    bare = spec("Lfm2Moe", layer_types=kinds, use_expert_bias=False, num_dense_layers=0)
    assert not any(want.name.endswith("expert_bias") for want in bare.wanted_tensors())
    with pytest.raises(UnsupportedModelError, match="conv_L_cache: expected 2 to 16, got 17"):
        spec("Lfm2Moe", layer_types=kinds, conv_L_cache=17)


def test_ernie_4_5_has_experts_in_a_span_of_its_layers_and_corrects_a_softmax() -> None:
    keys: dict[str, object] = {"moe_intermediate_size": 64, "moe_num_experts": 16}
    model = spec("Ernie4_5_Moe", **keys, moe_layer_interval=2)
    assert [isinstance(layer.blocks[1], Experts) for layer in model.layers] == [False, True, False, True, False]
    experts = experts_of(model, 1)
    assert experts.routing == Routing(16, 6, normalises=True) and experts.is_corrected
    assert experts.shared == SharedExpert(128, "mlp.shared_experts")
    assert (model.head_dim, model.attention.is_interleaved, model.head.is_tied) == (64, True, True)
    names = {want.name for want in model.wanted_tensors()}
    assert "model.layers.1.mlp.moe_statics.e_score_correction_bias" in names
    model = spec("Ernie4_5_Moe", **keys, moe_layer_start_index=0, moe_layer_end_index=3, moe_num_shared_experts=0)
    assert [isinstance(layer.blocks[1], Experts) for layer in model.layers] == [True, True, True, True, False]
    assert experts_of(model).shared is None
    with pytest.raises(UnsupportedModelError, match="use_bias"):
        spec("Ernie4_5_Moe", **keys, use_bias=True)
    with pytest.raises(UnsupportedModelError, match=r"moe_norm_min: expected at most 1e-06, got 0\.1"):
        spec("Ernie4_5_Moe", **keys, moe_norm_min=0.1)


def test_qwen_3_s_experts_are_counted_by_the_key_that_transformers_writes_now_too() -> None:
    config = dict(CASES["qwen3_moe"].config)
    renamed = {"num_local_experts" if key == "num_experts" else key: value for key, value in config.items()}
    assert model_spec(renamed) == model_spec(config)
