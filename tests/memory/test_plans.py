"""Sizes that the engine chooses before it allocates or submits anything."""

from __future__ import annotations

import pytest

from unicorn_async.config import EngineConfig
from unicorn_async.errors import ConfigError, OutOfMemoryError
from unicorn_async.memory.kv_plan import kv_cache_bytes, plan_kv_cache
from unicorn_async.models.registry import model_spec
from unicorn_async.step.buckets import bucket_for, bucket_sizes

GIB = 1 << 30
LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
GEMMA_27B = model_spec(
    {
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_size": 5376,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "intermediate_size": 21504,
        "sliding_window": 1024,
    }
)


def test_buckets_hold_every_count_up_to_the_largest() -> None:
    sizes = bucket_sizes(100)
    assert sizes == (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 100)
    for count in range(1, 101):
        assert bucket_for(count, sizes) >= count
    assert bucket_sizes(1) == (1,)
    assert bucket_sizes(3) == (1, 2, 3)


def test_a_sliding_window_keeps_a_full_context_small() -> None:
    plan = plan_kv_cache(GEMMA_27B, EngineConfig(max_num_seqs=1), 100 * GIB)
    assert plan.max_context == 131_072
    assert plan.nbytes < 13e9  # all layers in full would take 66 GB
    windows = {group.window: group.num_blocks for group in plan.groups}
    assert 131_072 // 16 <= windows[0] < 131_072 // 16 + plan.pieces[0].count
    assert windows[1024] < 300


@pytest.mark.parametrize(("max_num_seqs", "wanted"), [(1, 65 + 65), (3, 3 * 65 + 65), (32, 32 * 65 + 65)])
def test_a_window_has_room_for_all_sequences_and_two_steps_however_many_a_load_has(
    max_num_seqs: int, wanted: int
) -> None:
    """1,024 positions touch 65 blocks at most, as do the tokens of two steps; a load's prompts go on through these."""
    for frames in (2, 8, 64):
        options = EngineConfig(max_num_seqs=max_num_seqs, num_load_steps=frames)
        plan = plan_kv_cache(GEMMA_27B, options, 2000 * GIB)
        ((in_window, pieces),) = (
            (group.num_blocks, pieces.count)
            for group, pieces in zip(plan.groups, plan.pieces, strict=True)
            if group.window == 1024
        )
        assert wanted <= in_window < wanted + pieces  # all of which are of one size


def test_a_cache_never_takes_more_than_what_is_available() -> None:
    for available in (1 * GIB, 3 * GIB, 20 * GIB):
        plan = plan_kv_cache(GEMMA_27B, EngineConfig(), available)
        assert plan.nbytes <= available
        assert plan.max_context >= 16


def test_a_context_that_does_not_fit_is_refused_with_both_sizes() -> None:
    with pytest.raises(OutOfMemoryError, match=r"131072 tokens needs [\d,]+ bytes, 1,073,741,824 are available"):
        plan_kv_cache(GEMMA_27B, EngineConfig(max_context=131_072), GIB)


def test_a_context_that_fits_to_the_byte_is_never_refused() -> None:
    """How a cache is cut makes some smaller than those of fewer tokens."""
    model = model_spec(LLAMA_70B)
    for wanted in range(600, 9000, 37):
        options = EngineConfig(max_context=wanted, max_num_seqs=1, block_size=32)
        available = kv_cache_bytes(model, options, wanted)
        plan = plan_kv_cache(model, options, available)
        assert (plan.max_context, plan.nbytes) == (wanted, available)


def test_a_context_beyond_the_models_is_refused_with_both_lengths() -> None:
    with pytest.raises(ConfigError, match="131072 positions, 131073 are asked for"):
        plan_kv_cache(GEMMA_27B, EngineConfig(max_context=131_073), 100 * GIB)


def test_no_room_for_a_single_block_is_refused() -> None:
    with pytest.raises(OutOfMemoryError):
        plan_kv_cache(GEMMA_27B, EngineConfig(), 1000)
