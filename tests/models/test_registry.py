"""config.json is read as transformers reads it, and refused with the key and the value where it can't be."""

from __future__ import annotations

import pytest

from unicorn_async.config import Activation
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.models.blocks.gated_ffn import GatedFFN
from unicorn_async.models.registry import ARCHITECTURES, model_spec
from unicorn_async.rotary import RotaryConfig, RotaryScaling

LLAMA: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 256,
}
GEMMA: dict[str, object] = {"architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 7, "sliding_window": 32}
LLAMA3_SCALING: dict[str, object] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def test_llama_without_optional_keys_has_the_defaults_of_transformers() -> None:
    config = model_spec(LLAMA)
    assert config.num_kv_heads == 2
    assert config.head_dim == 32
    assert isinstance(config.layers[0].blocks[1], GatedFFN)
    assert config.layers[0].blocks[1].activation is Activation.SILU
    assert config.layer_windows == (0, 0)
    assert not config.head.is_tied
    assert config.attention.softmax_scale == pytest.approx(32**-0.5)


@pytest.mark.parametrize("layout", ["rope_scaling", "rope_parameters"])
def test_llama3_rotary_scaling_is_read_in_both_layouts(layout: str) -> None:
    section = {**LLAMA3_SCALING, "rope_theta": 5e5}
    config = model_spec({**LLAMA, layout: section, "rope_theta": 5e5})
    assert config.attention.rotary == RotaryConfig(5e5, RotaryScaling.LLAMA3, 8.0, 1.0, 4.0, 64)


def test_gemma_has_one_global_layer_in_six_with_its_own_rotary_base() -> None:
    config = model_spec({**GEMMA, "rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    assert config.layer_windows == (32, 32, 32, 32, 32, 0, 32)
    assert config.attention.rotary == RotaryConfig(1e4)
    assert config.layers[5].attention.rotary == RotaryConfig(1e6, RotaryScaling.LINEAR, 8.0)
    for layer in config.layers:
        assert layer.attention.norm.plus_one
        assert layer.attention.q_norm is not None
        assert [block.residue.norm for block in layer.blocks] == ["post_attention_norm", "post_ffn_norm"]
    assert config.head.is_tied


def test_gemma_in_the_newer_layout_is_the_same_model() -> None:
    kinds = ["full_attention" if layer == 5 else "sliding_attention" for layer in range(7)]
    parameters = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    newer = model_spec({**GEMMA, "layer_types": kinds, "rope_parameters": parameters})
    assert newer == model_spec({**GEMMA, "rope_scaling": {"rope_type": "linear", "factor": 8.0}})


def test_multimodal_gemma_takes_its_text_part() -> None:
    text = {key: value for key, value in GEMMA.items() if key != "architectures"}
    config = model_spec({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text})
    assert config.num_layers == 7


def test_mistral_with_a_window_has_it_on_every_layer() -> None:
    config = model_spec({**LLAMA, "architectures": ["MistralForCausalLM"], "sliding_window": 16, "head_dim": 64})
    assert config.layer_windows == (16, 16)
    assert config.head_dim == 64


def test_qwen_has_its_biases_and_norms() -> None:
    qwen2 = model_spec({**LLAMA, "architectures": ["Qwen2ForCausalLM"]})
    qwen3 = model_spec({**LLAMA, "architectures": ["Qwen3ForCausalLM"], "head_dim": 64})
    assert (qwen2.attention.qkv_bias, qwen2.attention.q_norm) == (True, None)
    assert not qwen3.attention.qkv_bias
    assert qwen3.attention.q_norm is not None
    assert qwen3.attention.q_norm.size == qwen3.head_dim == 64


def test_qwen_with_windows_has_them_from_max_window_layers_on() -> None:
    window = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
    assert model_spec({**LLAMA, "architectures": ["Qwen2ForCausalLM"], **window}).layer_windows == (0, 16)
    window["max_window_layers"] = 0
    assert model_spec({**LLAMA, "architectures": ["Qwen2ForCausalLM"], **window}).layer_windows == (16, 16)


@pytest.mark.parametrize("name", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_qwen_s_first_28_layers_have_no_window_where_the_file_does_not_say_how_many(name: str) -> None:
    window = {"use_sliding_window": True, "sliding_window": 16, "num_hidden_layers": 30}
    assert model_spec({**LLAMA, "architectures": [name], **window}).layer_windows == (0,) * 28 + (16,) * 2


@pytest.mark.parametrize("value", [-1, 1.5, True, "1"])
def test_layers_without_a_window_that_are_no_number_of_layers_are_refused(value: object) -> None:
    window = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": value}
    with pytest.raises(CheckpointError, match="max_window_layers: expected an integer from 0 to"):
        model_spec({**LLAMA, "architectures": ["Qwen2ForCausalLM"], **window})


def test_an_unknown_architecture_is_refused_with_the_supported_ones() -> None:
    with pytest.raises(UnsupportedModelError, match=r"MambaForCausalLM.*Gemma3ForCausalLM"):
        model_spec({"architectures": ["MambaForCausalLM"]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": "wide"}, "hidden_size: expected a positive integer, at most 16777216, got 'wide'"),
        ({"hidden_size": True}, "hidden_size: expected a positive integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: expected a positive integer, at most 4096, got '0'"),
        ({"vocab_size": 1 << 60}, "vocab_size: expected a positive integer"),
        ({"num_key_value_heads": 3}, "num_attention_heads 2 is not a multiple of num_key_value_heads 3"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: expected a positive number"),
        ({**GEMMA, "num_key_value_heads": 1, "layer_types": ["full_attention"]}, "expected 7 entries, got 1"),
        ({"rope_scaling": 7}, "rope_scaling: expected an object, got '7'"),
        ({"rope_theta": 0.5}, "rope_theta of layer 0: expected more than 1, got 0.5"),
        ({"eos_token_id": ["</s>"]}, "eos_token_id: expected token ids"),
    ],
)
def test_a_wrong_value_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        model_spec({**LLAMA, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "relu"}, "'relu' is not supported; known are gelu"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "rope_type 'dynamic' is not supported"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_size": 100, "head_dim": 64}, "hidden_size: expected a multiple of 8, got 100"),
        ({"intermediate_size": 100}, "intermediate_size: expected a multiple of 8, got 100"),
        ({"head_dim": 36}, "head_dim: expected a multiple of 8, got 36"),
        ({"head_dim": 520}, "head_dim: expected 32 to 512, got 520"),
    ],
)
def test_an_option_that_is_not_supported_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        model_spec({**LLAMA, **change})


@pytest.mark.parametrize("missing", ["hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size"])
def test_a_missing_key_is_named(missing: str) -> None:
    with pytest.raises(CheckpointError, match=f"{missing} is missing"):
        model_spec({key: value for key, value in LLAMA.items() if key != missing})


def test_every_architecture_reads_a_complete_configuration() -> None:
    heads = {**LLAMA, "num_key_value_heads": 1, "full_attention_interval": 1, "hidden_size_per_layer_input": 0}
    heads["num_hidden_layers"] = 3  # the first of LFM3's layers that attends
    attending = {"layer_types": ["full_attention"] * 3}
    for name in ARCHITECTURES:
        own = attending if name == "GraniteMoeHybridForCausalLM" else {}  # else all its layers are Mamba-2's
        raw: dict[str, object] = {**heads, **own, "architectures": [name], "text_config": heads}
        assert model_spec(raw).architecture == name


@pytest.mark.parametrize("layout", ["rope_scaling", "rope_parameters"])
def test_yarn_reaches_as_far_as_it_scales(layout: str) -> None:
    """Qwen's files keep the original context, others have the scaled one."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    assert model_spec({**LLAMA, layout: yarn}).max_position == 1024
    assert model_spec({**LLAMA, layout: yarn, "max_position_embeddings": 2000}).max_position == 2000
    del yarn["original_max_position_embeddings"]
    assert model_spec({**LLAMA, layout: yarn}).max_position == 1024
    assert model_spec({**LLAMA, layout: LLAMA3_SCALING}).max_position == 256


def test_a_vision_language_model_s_decoder_is_read_from_either_layout_of_its_file() -> None:
    axes: dict[str, object] = {"type": "mrope", "mrope_section": [4, 6, 6]}
    flat = {**LLAMA, "architectures": ["Qwen2_5_VLForConditionalGeneration"], "rope_scaling": axes}
    nested = {"architectures": flat["architectures"], "text_config": {**LLAMA, "rope_scaling": axes}}
    plain = model_spec({**LLAMA, "architectures": ["Qwen2ForCausalLM"], "rope_theta": 1e6})
    for raw in (flat, nested):
        spec = model_spec(raw)
        assert spec.layers == plain.layers
        assert not spec.head.is_tied
    for tied in ({**nested, "tie_word_embeddings": True}, {**flat, "tie_word_embeddings": True}):
        assert model_spec(tied).head.is_tied
    with pytest.raises(UnsupportedModelError, match="rope_type 'dynamic' is not supported"):
        model_spec({**flat, "rope_scaling": {"type": "dynamic", "factor": 2.0}})
