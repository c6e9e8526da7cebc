"""What a Gemma 4's config.json says, and what of it is not supported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from unicorn_async.config import AttentionTarget, EngineConfig
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.hybrid.choice import fit_options
from unicorn_async.models.blocks.declarations import Paged
from unicorn_async.models.registry import model_spec
from unicorn_async.rotary import RotaryConfig

if TYPE_CHECKING:
    from unicorn_async.models.spec import ModelSpec

# As the 31B has it, with fewer layers.
LARGE: dict[str, object] = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "text_config": {
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_hidden_layers": 12,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_global_key_value_heads": 4,
        "global_head_dim": 512,
        "head_dim": 256,
        "attention_k_eq_v": True,
        "sliding_window": 1024,
        "hidden_size_per_layer_input": 0,
        "final_logit_softcapping": 30.0,
        "use_bidirectional_attention": "vision",
    },
}

MIXTURE: dict[str, object] = {
    "enable_moe_block": True,
    "num_experts": 128,
    "top_k_experts": 8,
    "moe_intermediate_size": 704,
}


def spec(**keys: object) -> ModelSpec:
    text = LARGE["text_config"]
    assert isinstance(text, dict)
    return model_spec({**LARGE, "text_config": {**text, **keys}})


def test_global_layers_have_heads_of_their_own_whose_values_are_their_keys() -> None:
    model = spec()
    assert model.layer_windows == (*[1024] * 5, 0) * 2
    assert model.paged_states == (Paged(0, 4, 512), Paged(1024, 16, 256))
    local, whole = model.layers[0].attention, model.layers[5].attention
    assert (local.v_from_k, whole.v_from_k) == (False, True)
    assert local.v_norm and whole.v_norm and local.softmax_scale == whole.softmax_scale == 1.0
    assert (local.rotary, whole.rotary) == (RotaryConfig(1e4), RotaryConfig(1e6, num_pairs=64))
    shapes = {want.name: want.shape for want in model.wanted_tensors()}
    assert shapes["model.layers.5.self_attn.k_proj.weight"] == (4 * 512, 5376)
    assert shapes["model.layers.0.self_attn.v_proj.weight"] == (16 * 256, 5376)
    assert "model.layers.5.self_attn.v_proj.weight" not in shapes
    assert shapes["model.layers.5.layer_scalar"] == (1,)
    assert (model.head.soft_cap, model.head.is_tied, model.embedding.scale) == (30.0, True, 5376**0.5)


def test_values_of_their_own_have_as_many_heads_as_local_layers() -> None:
    model = spec(attention_k_eq_v=False)
    assert model.paged_states == (Paged(0, 16, 512), Paged(1024, 16, 256))
    assert not model.layers[5].attention.v_from_k


def test_heads_may_be_said_of_each_layer_and_the_last_one_sees_everything() -> None:
    kinds = ["sliding_attention"] * 12
    model = spec(layer_types=kinds, per_layer_config={"11": {"head_dim": 128, "num_key_value_heads": 8}})
    assert model.layer_windows == (*[1024] * 11, 0)
    assert model.layers[11].paged == Paged(0, 8, 128)
    assert model.layers[11].attention.rotary == RotaryConfig(1e6, num_pairs=16)


@pytest.mark.parametrize(
    ("section", "rotary"),
    [
        ({"rope_type": "proportional", "rope_theta": 5e5}, RotaryConfig(5e5)),
        ({"rope_type": "proportional", "partial_rotary_factor": 0.5}, RotaryConfig(1e6, num_pairs=128)),
        ({"rope_type": "default"}, RotaryConfig(1e6)),
    ],
)
def test_a_share_of_the_pairs_of_global_heads_rotates(section: dict[str, object], rotary: RotaryConfig) -> None:
    model = spec(rope_parameters={"full_attention": section, "sliding_attention": {"rope_theta": 1e3}})
    assert model.layers[5].attention.rotary == rotary
    assert model.layers[0].attention.rotary == RotaryConfig(1e3)


def test_experts_stand_beside_the_dense_network() -> None:
    model = spec(**MIXTURE)
    shapes = {want.name: want.shape for want in model.wanted_tensors()}
    layer = "model.layers.3."
    assert shapes[f"{layer}mlp.down_proj.weight"] == (5376, 21504)
    assert shapes[f"{layer}experts.gate_up_proj"] == (128 * 2 * 704, 5376)
    assert shapes[f"{layer}router.proj.weight"] == (128, 5376)
    assert shapes[f"{layer}router.per_expert_scale"] == (128,)
    assert shapes[f"{layer}router.scale"] == shapes[f"{layer}pre_feedforward_layernorm_2.weight"] == (5376,)
    assert shapes[f"{layer}layer_scalar"] == (1,)
    with pytest.raises(CheckpointError, match="top_k_experts is missing"):
        spec(**{**MIXTURE, "top_k_experts": None})


def test_later_layers_read_the_keys_of_the_last_one_of_their_kind() -> None:
    model = spec(num_kv_shared_layers=6, use_double_wide_mlp=True, attention_k_eq_v=False)
    assert [model.kv_layer(layer) for layer in range(12)] == [0, 1, 2, 3, 4, 5, 4, 4, 4, 4, 4, 5]
    assert model.shares_keys and not spec().shares_keys
    assert [layer.paged is None for layer in model.layers] == [False] * 6 + [True] * 6
    shapes = {want.name: want.shape for want in model.wanted_tensors()}
    assert shapes["model.layers.5.mlp.up_proj.weight"] == (21504, 5376)
    assert shapes["model.layers.6.mlp.up_proj.weight"] == (2 * 21504, 5376)
    assert "model.layers.6.self_attn.q_norm.weight" in shapes
    unread = [f"model.layers.6.self_attn.{part}.weight" for part in ("k_proj", "v_proj", "k_norm")]
    assert not set(unread) & set(shapes)
    model.check_unused(unread)
    with pytest.raises(UnsupportedModelError, match=r"layers\.5\.self_attn\.k_proj\.bias"):
        model.check_unused(["model.layers.5.self_attn.k_proj.bias"])
    with pytest.raises(CheckpointError, match=r"no layer before 5 is of the kind of layer 5"):
        spec(num_kv_shared_layers=7)


def test_layers_get_columns_of_a_table_of_all_of_them() -> None:
    model = spec(hidden_size_per_layer_input=256)
    shapes = {want.name: want.shape for want in model.wanted_tensors()}
    assert shapes["model.embed_tokens_per_layer.weight"] == (262_144, 12 * 256)
    assert shapes["model.per_layer_projection_norm.weight"] == (256,)
    assert shapes["model.layers.3.per_layer_model_projection.weight"] == (256, 5376)
    assert shapes["model.layers.3.per_layer_projection.weight"] == (5376, 256)
    assert [name for name in shapes if name.endswith("layer_scalar")] == [
        f"model.layers.{n}.layer_scalar" for n in range(12)
    ]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 9}, "vocab_size_per_layer_input: 9"),
        ({"hidden_size_per_layer_input": 256, **MIXTURE}, "hidden_size_per_layer_input beside enable_moe_block"),
        ({"num_kv_shared_layers": 4, "use_double_wide_mlp": True, **MIXTURE}, "use_double_wide_mlp beside"),
        ({"num_kv_shared_layers": 1, "per_layer_config": {"11": {"head_dim": 128}}}, "other heads than 5"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention: 'all'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, "rope_scaling"),
        ({"per_layer_config": {"3": {"intermediate_size": 8}}}, "3: intermediate_size"),
        ({"per_layer_config": {"3": {"head_dim": 1024}}}, "head_dim: expected 32 to 512, got 1024"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 1.5}}}
            | {"layer_types": ["full_attention"] * 12},
            r"partial_rotary_factor: 1\.5",
        ),
    ],
)
def test_what_no_block_does_is_refused_by_its_key(keys: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        spec(**{"rope_parameters": None, **keys})


def test_heads_that_do_not_divide_those_of_queries_are_named() -> None:
    with pytest.raises(CheckpointError, match="num_attention_heads 32 is not a multiple of the 5 heads"):
        spec(num_global_key_value_heads=5)


def test_no_other_device_takes_heads_of_several_kinds() -> None:
    options = EngineConfig(attention=AttentionTarget.parse("vulkan:0"))
    with pytest.raises(UnsupportedModelError, match=r"different heads .*\(4, 512\), \(16, 256\)"):
        fit_options(spec(), options)
    with pytest.raises(UnsupportedModelError, match="keys and values of others"):
        fit_options(spec(num_kv_shared_layers=6), options)
