"""What LFM3's config.json leaves out is as in transformers, and what is not supported is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from unicorn_async.errors import CheckpointError, UnicornError, UnsupportedModelError
from unicorn_async.models.registry import model_spec
from unicorn_async.rotary import RotaryConfig

if TYPE_CHECKING:
    from unicorn_async.models.spec import ModelSpec

RAW: dict[str, object] = {
    "architectures": ["Lfm3ForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
LOCAL: dict[str, object] = {"sliding_attention": {"rope_theta": 5e3}}


def spec(**keys: object) -> ModelSpec:
    return model_spec({**RAW, **keys})


def test_each_second_layer_behind_the_first_attends_with_a_window_and_without_by_turns() -> None:
    model = spec()
    assert model.layer_windows == (None, None, 0, None, 256, None)
    full, local = model.layers[2].attention, model.layers[4].attention
    assert (full.rotary, local.rotary) == (RotaryConfig(1e6, num_pairs=32), RotaryConfig(1e4))
    assert (model.head_dim, full.has_head_gates, full.qkv_bias, model.head.is_tied) == (128, True, False, True)
    shapes = {want.name: want.shape for want in model.wanted_tensors()}
    assert shapes["model.layers.2.self_attn.gate_proj.weight"] == (2, 128)
    assert shapes["model.layers.0.conv.conv.weight"] == (128, 1, 7)
    assert {f"model.layers.{n}.post_{part}_norm.weight" for n in (0, 2) for part in ("operator", "ffn")} <= set(shapes)
    assert {"model.layers.2.self_attn.o_proj.weight", "model.layers.0.feed_forward.w2.weight"} <= set(shapes)


def test_gates_and_norms_behind_blocks_may_be_missing_and_attention_have_biases() -> None:
    names = {want.name for want in spec(use_attention_gate=False, use_sandwich_norm=False).wanted_tensors()}
    assert not any("post_" in name or "self_attn.gate_proj" in name for name in names)
    assert {f"model.layers.2.self_attn.{part}_proj.bias" for part in "qkvo"} <= {
        want.name for want in spec(attention_bias=True).wanted_tensors()
    }


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"rope_parameters": LOCAL}, CheckpointError, "rope_parameters: full_attention is missing"),
        ({"rope_scaling": {"rope_type": "yarn"}}, UnsupportedModelError, "rope_scaling: only rope_parameters"),
        ({"sliding_window": None}, CheckpointError, "sliding_window: expected a positive integer .*, got null"),
        ({"layer_types": ["linear_attention"] * 6}, UnsupportedModelError, "layer_types .'linear_attention'."),
        ({"conv_L_cache": 17}, UnsupportedModelError, "conv_L_cache: expected 2 to 16, got 17"),
        (
            {"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}, **LOCAL}},
            UnsupportedModelError,
            r"full_attention: partial_rotary_factor: 0\.5 of a head",
        ),
    ],
)
def test_what_could_be_otherwise_is_refused(keys: dict[str, object], error: type[UnicornError], message: str) -> None:
    with pytest.raises(error, match=message):
        spec(**keys)
