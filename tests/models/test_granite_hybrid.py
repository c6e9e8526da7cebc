"""What config.json files of Granite 4 leave out is as in transformers, and what is not supported is refused."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.models.blocks.attention import Attention
from unicorn_async.models.blocks.experts import Experts
from unicorn_async.models.blocks.gated_ffn import GatedFFN
from unicorn_async.models.blocks.mamba2 import Mamba2
from unicorn_async.models.registry import model_spec
from unicorn_async.ops.state_space import MOST_STEP, SsmShape

from .test_families import PLAIN

if TYPE_CHECKING:
    from unicorn_async.models.spec import ModelSpec

KINDS = ["mamba", "mamba", "attention", "mamba", "attention"]
SHAPE = SsmShape(num_groups=1, num_heads=8, state_dim=256, head_dim=32, num_taps=4)


def granite(**keys: object) -> ModelSpec:
    given = {"layer_types": KINDS, "mamba_n_heads": 8, **keys}
    return model_spec({**PLAIN, "architectures": ["GraniteMoeHybridForCausalLM"], **given})


def test_what_a_file_leaves_out_is_as_in_transformers() -> None:
    model = granite()
    assert [isinstance(layer.blocks[0], Attention) for layer in model.layers] == [kind == "attention" for kind in KINDS]
    mamba, experts = model.layers[0].blocks
    assert isinstance(mamba, Mamba2) and isinstance(experts, Experts)
    assert (mamba.shape, mamba.conv_bias, mamba.has_bias, mamba.residual_scale) == (SHAPE, True, False, 1.0)
    assert experts.summary == "2 of 8 experts of 128 and one of 1024 for all tokens (silu)"
    assert experts.routing.normalises and model.attention.rotary.is_still
    assert (model.attention.softmax_scale, model.embedding.scale, model.head.scale) == (1.0, 1.0, 1.0)


def test_granite_4_s_factors_count_in_blocks_of_each_kind() -> None:
    model = granite(residual_multiplier=0.25, attention_multiplier=0.5, embedding_multiplier=12, logits_scaling=8)
    assert {block.residue.scale for block in model.unique_blocks} == {0.25}
    assert (model.attention.softmax_scale, model.embedding.scale, model.head.scale) == (0.5, 12.0, 0.125)


def test_without_mamba_and_experts_it_is_a_dense_model_of_attention_alone() -> None:
    keys = {"num_local_experts": 0, "position_embedding_type": "rope", "shared_intermediate_size": 192}
    model = granite(layer_types=["full_attention"] * 5, mamba_n_heads=7, **keys)
    assert not model.has_fixed_state and not model.attention.rotary.is_still
    assert {block.intermediate_size for block in model.unique_blocks if isinstance(block, GatedFFN)} == {192}
    wants = {want.name: want.shape for want in model.wanted_tensors()}
    assert wants["model.layers.4.shared_mlp.input_linear.weight"] == (384, 128)
    assert wants["model.layers.4.shared_mlp.output_linear.weight"] == (128, 192)


@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        (None, (0.0, MOST_STEP)),
        ([0.01, 0.2], (0.01, 0.2)),
        ([0, math.inf], (0.0, MOST_STEP)),
        ([0.5, {"__float__": "Infinity"}], (0.5, MOST_STEP)),
    ],
    ids=str,
)
def test_steps_have_the_bounds_of_the_file(given: object, bounds: tuple[float, float]) -> None:
    mamba = granite(time_step_limit=given).layers[0].blocks[0]
    assert isinstance(mamba, Mamba2) and (mamba.shape.least_step, mamba.shape.most_step) == bounds


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"position_embedding_type": "alibi"}, "position_embedding_type: 'alibi' is not supported"),
        ({"normalization_function": "layernorm"}, "normalization_function: 'layernorm' is not supported"),
        ({"hidden_act": "gelu_new"}, "hidden_act: only silu"),
        ({"layer_types": ["mamba"] * 5}, "models without attention"),
        ({"layer_types": ["mamba", "sliding_attention"] * 2}, r"layer_types \['sliding_attention'\]"),
        ({"mamba_n_heads": 16, "mamba_n_groups": 3}, "Mamba-2: 16 heads"),
        ({"mamba_n_heads": 4}, "mamba_n_heads: expected a multiple of 8, got 4"),
        ({"mamba_d_state": 512}, "Mamba-2: states of 512"),
        ({"time_step_limit": [2.0, 1.0]}, "Mamba-2: steps from 2.0 to 1.0"),
    ],
)
def test_what_granite_4_could_be_otherwise_is_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        granite(**keys)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"mamba_d_head": 16}, "8 heads of 16 are not mamba_expand \\* hidden_size = 256"),
        ({"mamba_n_heads": 512, "mamba_d_head": "auto"}, "512 heads of 1 are not"),
        ({"time_step_limit": [0.0, "much"]}, "time_step_limit: expected two numbers"),
        ({"time_step_limit": 3}, "time_step_limit: expected two numbers, got 3"),
        ({"time_step_limit": [1, 10**400]}, "time_step_limit: expected two numbers, got"),
    ],
)
def test_a_wrong_value_of_granite_4_is_named(keys: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        granite(**keys)
