"""Metadata of mixtures of experts in GGUF files: what is read of it, and what is refused by its key."""

from __future__ import annotations

from array import array

import pytest

from unicorn_async.checkpoint.gguf.config import gguf_config, json_config
from unicorn_async.checkpoint.gguf.names import canonical_name
from unicorn_async.checkpoint.source_tensor import TensorEntry
from unicorn_async.errors import UnicornError

SIZES: dict[str, object] = {
    "block_count": 3,
    "context_length": 64,
    "embedding_length": 32,
    "feed_forward_length": 64,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "expert_count": 8,
    "expert_used_count": 2,
    "expert_feed_forward_length": 16,
    "rope.freq_base": 1e4,
}


def config(architecture: str, mixtures: tuple[int, ...] = (0, 1, 2), **changes: object) -> dict[str, object]:
    fields = SIZES | {key.replace("__", "."): value for key, value in changes.items()}
    metadata = {f"{architecture}.{key}": value for key, value in fields.items() if value is not None}
    names = [
        "token_embd.weight",
        *(f"blk.{layer}.ffn_gate_inp.weight" for layer in mixtures),
        "blk.1.ssm_conv1d.weight",
    ]
    tensors = {name: TensorEntry(name, "F32", (100, 32), 0, 0) for name in names}
    return json_config(gguf_config({"general.architecture": architecture, **metadata}, tensors, "m.gguf"), {})  # type: ignore[arg-type]


def test_glm_4_5_s_layers_that_predict_further_tokens_are_not_the_model_s() -> None:
    assert config("glm4moe", nextn_predict_layers=1)["num_hidden_layers"] == 2
    found = config("glm4moe", expert_shared_count=1, leading_dense_block_count=1, expert_weights_scale=2.5)
    assert (found["num_hidden_layers"], found["n_shared_experts"], found["first_k_dense_replace"]) == (3, 1, 1)
    assert (found["routed_scaling_factor"], found["norm_topk_prob"]) == (2.5, True)
    assert config("glm4moe", expert_weights_norm=False)["norm_topk_prob"] is False


def test_the_shared_expert_of_qwen_2_may_have_a_width_of_its_own() -> None:
    assert config("qwen2moe")["shared_expert_intermediate_size"] == 64
    assert config("qwen2moe", expert_shared_feed_forward_length=24)["shared_expert_intermediate_size"] == 24


DELTA_NET: dict[str, object] = {
    "ssm__conv_kernel": 4,
    "ssm__state_size": 16,
    "ssm__group_count": 2,
    "ssm__time_step_rank": 4,
    "ssm__inner_size": 48,
    "rope__dimension_count": 4,
}


def test_qwen_3_5_s_layers_of_linear_attention_are_known_by_their_tensors() -> None:
    found = config("qwen35moe", **DELTA_NET, nextn_predict_layers=1, feed_forward_length=None)
    assert found["layer_types"] == ["full_attention", "linear_attention"]
    assert (found["linear_num_key_heads"], found["linear_num_value_heads"]) == (2, 4)
    assert (found["linear_key_head_dim"], found["linear_value_head_dim"]) == (16, 12)
    assert (found["partial_rotary_factor"], found["intermediate_size"], found["num_experts"]) == (0.25, 16, 8)
    assert found["shared_expert_intermediate_size"] == 16


def test_qwen_3_next_may_have_layers_without_experts_and_has_its_gates_apart() -> None:
    found = config("qwen3next", **DELTA_NET, block_count=4)
    assert (found["architectures"], found["mlp_only_layers"]) == (["Qwen3NextForCausalLM"], [3])
    assert found["layer_types"] == ["full_attention", "linear_attention", "full_attention", "full_attention"]
    names = [canonical_name(f"blk.2.{name}", "qwen3next") for name in ("ssm_a", "ssm_ba.weight", "ssm_in.weight")]
    assert names == [
        f"model.layers.2.linear_attn.{name}" for name in ("A_log", "in_proj_ba.weight", "in_proj_qkvz.weight")
    ]


def test_ernie_4_5_s_layers_of_experts_are_known_by_their_tensors() -> None:
    found = config("ernie4_5-moe", block_count=4)
    assert (found["moe_layer_start_index"], found["moe_layer_end_index"], found["moe_num_shared_experts"]) == (0, 2, 0)
    with pytest.raises(UnicornError, match=r"interleave_moe_layer_step: experts in layers \[0, 2\], not in a row"):
        config("ernie4_5-moe", (0, 2))


def test_gpt_oss_has_windows_by_turns_where_a_file_says_nothing_of_them_and_exact_bounds_of_yarn() -> None:
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 32.0, "rope__scaling__original_context_length": 16}
    found = config("gpt-oss", attention__sliding_window=128, **yarn)
    assert (found["architectures"], found["sliding_window"]) == (["GptOssForCausalLM"], 128)
    assert (found["intermediate_size"], found["num_local_experts"], found["num_experts_per_tok"]) == (16, 8, 2)
    assert found["sliding_window_pattern"] is None
    assert found["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 16,
        "truncate": False,
    }
    names = ("attn_sinks.weight", "ffn_up_exps.bias", "ffn_gate_inp.weight", "attn_output.bias", "ffn_up_exps.scale")
    assert [canonical_name(f"blk.2.{name}", "gpt-oss") for name in names] == [
        "model.layers.2.self_attn.sinks",
        "model.layers.2.mlp.experts.up_proj_bias",
        "model.layers.2.mlp.router.weight",
        "model.layers.2.self_attn.o_proj.bias",
        None,
    ]


MAMBA: dict[str, object] = {
    "attention__head_count_kv": array("i", (0, 1, 0)),
    "ssm__conv_kernel": 4,
    "ssm__state_size": 16,
    "ssm__group_count": 2,
    "ssm__time_step_rank": 8,
    "ssm__inner_size": 64,
}


def test_granite_4_s_layers_without_keys_are_mamba_s_and_nothing_rotates_unless_the_file_says_so() -> None:
    found = config("granitehybrid", **MAMBA, expert_shared_feed_forward_length=24)
    assert (found["layer_types"], found["position_embedding_type"]) == (["mamba", "attention", "mamba"], "nope")
    assert (found["intermediate_size"], found["shared_intermediate_size"], found["num_local_experts"]) == (64, 24, 8)
    assert [found[f"mamba_{key}"] for key in ("n_heads", "d_head", "expand", "d_state", "n_groups")] == [8, 8, 2, 16, 2]
    assert (found["mamba_conv_bias"], found["mamba_proj_bias"], found["attention_bias"]) == (False, False, False)
    dense = config("granitehybrid", **MAMBA, rope__scaling__finetuned=True, expert_count=0, expert_used_count=None)
    assert (dense["position_embedding_type"], dense["num_local_experts"]) == ("rope", 0)
    assert (dense["shared_intermediate_size"], dense["num_experts_per_tok"]) == (64, 0)


LATENTS: dict[str, object] = {
    "attention__kv_lora_rank": 16,
    "attention__key_length_mla": 24,
    "attention__value_length_mla": 16,
    "rope__dimension_count": 8,
    "rope__scaling__type": "yarn",
    "rope__scaling__factor": 4.0,
    "rope__scaling__original_context_length": 16,
    "rope__scaling__yarn_log_multiplier": 0.1,
}


def test_queries_of_mistral_small_4_grow_where_the_converter_leaves_that_out() -> None:
    """It does for Hugging Face's directories, and calls what it makes of Mistral's own layout DeepSeek's."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    scaling |= {"mscale": 1.0, "mscale_all_dim": 1.0}
    grown = {"attention__temperature_scale": 0.2, "attention__temperature_length": 16, "expert_gating_func": 1}
    for architecture, said, growth in (
        ("mistral4", {}, 0.1),
        ("mistral4", {"attention__temperature_scale": 0.2}, 0.2),
        ("deepseek2", grown, 0.2),
    ):
        found = config(architecture, **LATENTS, **said)
        assert found["architectures"] == ["Mistral4ForCausalLM"]
        assert found["rope_scaling"] == {**scaling, "llama_4_scaling_beta": growth}
    plain = config("deepseek2", **LATENTS)
    assert (plain["architectures"], plain["rope_scaling"]) == (["DeepseekV2ForCausalLM"], scaling)
    for architecture in ("mistral4", "deepseek2"):
        with pytest.raises(UnicornError, match=r"expert_gating_func: 2: sigmoids are not supported here"):
            config(architecture, **LATENTS, **(grown | {"expert_gating_func": 2}))


NO_WIDTHS = {"feed_forward_length": None, "expert_feed_forward_length": None}


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("glm4moe", {"expert_gating_func": 1}, r"glm4moe\.expert_gating_func: 1: only sigmoids, 2, are supported"),
        ("lfm2moe", {"expert_gating_func": 1}, r"lfm2moe\.expert_gating_func: 1: only sigmoids, 2, are supported"),
        ("lfm2moe", {}, r"lfm2moe\.shortconv\.l_cache is missing"),
        ("glm4moe", {"nextn_predict_layers": 3}, r"glm4moe\.nextn_predict_layers: expected less than the 3 layers"),
        ("glm4moe", {"nextn_predict_layers": 0.5}, r"nextn_predict_layers: expected less than the 3 layers, got 0\.5"),
        ("glm4moe", {"rope__dimension_sections": 3}, r"glm4moe\.rope\.dimension_sections: positions of images"),
        ("glm4moe", {"expert_used_count": None}, r"glm4moe\.expert_used_count is missing"),
        (
            "glm4moe",
            {"feed_forward_length": None, "expert_feed_forward_length": None},
            r"feed_forward_length is missing",
        ),
        ("gpt-oss", {}, r"gpt-oss\.attention\.sliding_window is missing"),
        ("qwen35moe", {}, r"qwen35moe\.ssm\.time_step_rank is missing"),
        ("qwen35moe", {**DELTA_NET, "ssm__inner_size": 49}, r"ssm\.inner_size: expected a multiple of the 4 heads"),
        ("qwen35moe", {**DELTA_NET, "block_count": 4}, r"expert_count: a layer without experts is not supported"),
        ("granitehybrid", {**MAMBA, "ssm__inner_size": 60}, r"ssm\.inner_size: expected a multiple of 8 heads and of"),
        ("granitehybrid", {**MAMBA, "ssm__inner_size": 40}, "of embedding_length 32, got 40"),
        ("granitehybrid", {**MAMBA, "ssm__state_size": None}, r"granitehybrid\.ssm\.state_size is missing"),
        ("granitehybrid", {**MAMBA, "expert_used_count": 1.5}, "expert_used_count: expected an integer from 0 on"),
        ("glm4moe", {"leading_dense_block_count": float("nan")}, "block_count: expected an integer from 0 on, got nan"),
        ("qwen35", {**DELTA_NET}, r"qwen35\.expert_count: 8: experts are not supported"),
        ("qwen2moe", {"attention__sliding_window": 32}, "32 is shorter than the context of 64"),
    ],
)
def test_what_is_not_supported_is_refused_by_key(architecture: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(UnicornError, match=message):
        config(architecture, **changes)
