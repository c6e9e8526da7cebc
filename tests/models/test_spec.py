"""What a checkpoint has beyond the wanted tensors is harmless, or refused."""

from __future__ import annotations

import pytest

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.models.registry import model_spec
from unicorn_async.weights.placement import MemoryGroup

from .test_registry import GEMMA, LLAMA


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.2.mlp.up_proj.weight",  # one layer more than config.json says
        "adapter.weight",
        "lm_head.weight",
    ],
)
def test_a_tensor_that_would_matter_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=name):
        model_spec(LLAMA).check_unused([name])


def test_what_follows_from_the_configuration_may_be_there() -> None:
    model_spec(LLAMA).check_unused(["model.layers.0.self_attn.rotary_emb.inv_freq"])
    model_spec(GEMMA).check_unused(["lm_head.weight"])


def test_every_tensor_has_one_place() -> None:
    wanted = model_spec({**LLAMA, "attention_bias": True}).wanted_tensors()
    places = [(want.dest, want.row_offset) for want in wanted]
    assert len(set(places)) == len(places)
    assert {"layers.0.qkv_bias", "layers.1.o_bias", "head"} <= {want.dest for want in wanted}


def test_every_destination_has_its_group() -> None:
    spec = model_spec(LLAMA)
    groups = spec.memory_groups()
    assert groups.keys() == {want.dest for want in spec.wanted_tensors()}
    assert groups["embed"] is (MemoryGroup.HEAD if spec.head.is_tied else MemoryGroup.EMBEDDINGS)
    assert groups["layers.0.qkv"] is groups["layers.1.o"] is MemoryGroup.ATTENTION
    assert groups["layers.0.gate_up"] is groups["layers.1.down"] is MemoryGroup.FFN
    assert groups["layers.0.input_norm"] is groups["norm"] is MemoryGroup.NORMS
    assert model_spec(GEMMA).memory_groups()["embed"] is MemoryGroup.HEAD
    assert model_spec({**LLAMA, "tie_word_embeddings": False}).memory_groups()["head"] is MemoryGroup.HEAD


def test_embeddings_and_head_that_are_one_table_are_named() -> None:
    assert model_spec(GEMMA).tied_tensors == ("model.embed_tokens.weight", "lm_head.weight")
    assert model_spec(LLAMA).tied_tensors == ()
