"""Metadata of mixtures of experts in GGUF files: what is read of it, and what is refused by its key."""

from __future__ import annotations

import pytest

from unicorn_async.checkpoint.gguf.config import gguf_config, json_config
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


def config(architecture: str, **changes: object) -> dict[str, object]:
    fields = SIZES | {key.replace("__", "."): value for key, value in changes.items()}
    metadata = {f"{architecture}.{key}": value for key, value in fields.items() if value is not None}
    names = ["token_embd.weight", *(f"blk.{layer}.ffn_gate_inp.weight" for layer in range(3))]
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


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("glm4moe", {"expert_gating_func": 1}, r"glm4moe\.expert_gating_func: 1: only sigmoids, 2, are supported"),
        ("glm4moe", {"nextn_predict_layers": 3}, r"glm4moe\.nextn_predict_layers: expected less than the 3 layers"),
        ("glm4moe", {"nextn_predict_layers": 0.5}, r"nextn_predict_layers: expected less than the 3 layers, got 0\.5"),
        ("glm4moe", {"rope__dimension_sections": 3}, r"glm4moe\.rope\.dimension_sections: positions of images"),
        ("glm4moe", {"expert_used_count": None}, r"glm4moe\.expert_used_count is missing"),
        ("qwen2moe", {"attention__sliding_window": 32}, "32 is shorter than the context of 64"),
    ],
)
def test_what_is_not_supported_is_refused_by_key(architecture: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(UnicornError, match=message):
        config(architecture, **changes)
