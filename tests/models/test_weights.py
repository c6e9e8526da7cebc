"""What a checkpoint has beyond the wanted tensors is harmless, or refused."""

from __future__ import annotations

import pytest

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.models.registry import model_config
from unicorn_async.models.weights import check_unused, memory_group, wanted_tensors
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
        check_unused([name], model_config(LLAMA))


def test_what_follows_from_the_configuration_may_be_there() -> None:
    check_unused(["model.layers.0.self_attn.rotary_emb.inv_freq"], model_config(LLAMA))
    check_unused(["lm_head.weight"], model_config(GEMMA))


def test_every_tensor_has_one_place() -> None:
    wanted = wanted_tensors(model_config({**LLAMA, "attention_bias": True}))
    places = [(want.dest, want.row_offset) for want in wanted]
    assert len(set(places)) == len(places)
    assert {"layers.0.qkv_bias", "layers.1.o_bias", "head"} <= {want.dest for want in wanted}


def test_every_destination_has_its_group() -> None:
    config = model_config(LLAMA)
    groups = {want.dest.rpartition(".")[2]: memory_group(want.dest, config) for want in wanted_tensors(config)}
    assert groups["embed"] is (MemoryGroup.HEAD if config.tie_embeddings else MemoryGroup.EMBEDDINGS)
    assert groups["qkv"] is groups["o"] is MemoryGroup.ATTENTION
    assert groups["gate_up"] is groups["down"] is MemoryGroup.FFN
    assert groups["input_norm"] is groups["norm"] is MemoryGroup.NORMS
    assert memory_group("embed", model_config(GEMMA)) is MemoryGroup.HEAD
    assert memory_group("head", model_config({**LLAMA, "tie_word_embeddings": False})) is MemoryGroup.HEAD
