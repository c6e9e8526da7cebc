"""Options that can't work are refused where they are given, with the value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unicorn_async.config import AttentionKind, AttentionTarget, EngineConfig, ExchangeKind, SpeculationMode, SplitMode
from unicorn_async.errors import ConfigError
from unicorn_async.lora_spec import LoraSpec


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", True),
        ("num_load_steps", 0),
        ("max_context", 0),
        ("staging_bytes", 0),
        ("num_reader_threads", 0),
        ("kv_cache_bytes", -1),
        ("vram_bytes", 0),
        ("gtt_bytes", 1.5),
        ("submission_budget_s", 0.0),
        ("submission_budget_s", float("nan")),
        ("max_mixed_step_s", 0.0),
        ("max_mixed_step_s", float("nan")),
        ("max_mixed_step_s", float("inf")),
        ("block_size", 12),
        ("kv_dtype", "f12"),
        ("weights", "int3"),
        ("speculation", "model"),
        ("pooling", "cls"),
        ("device", 0),
    ],
)
def test_an_engine_option_that_cannot_work_is_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name}: expected"):
        EngineConfig(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), 1001, -1001, "1", None, True])
def test_an_adapter_s_weight_is_a_moderate_number(weight: Any) -> None:
    with pytest.raises(ConfigError, match="adapter poet: weight: expected a number of at most 1000"):
        LoraSpec(Path("poet"), weight)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention_split", SplitMode.ALWAYS),
        ("attention_exchange", ExchangeKind.COPIED),
        ("step_trace", Path("steps.json")),
    ],
)
def test_what_is_for_attention_elsewhere_is_refused_without_it(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name}: it is for attention on another device"):
        EngineConfig(**{name: value})
    EngineConfig(**{name: value}, attention=AttentionTarget(AttentionKind.VULKAN, "1"))
    with pytest.raises(ConfigError, match=f"{name}: .* auto may leave it on the GPU"):
        EngineConfig(**{name: value}, attention="auto")


def test_large_blocks_are_for_the_npu() -> None:
    assert EngineConfig(block_size=256, attention="npu").block_size == 256
    for attention in ("gpu", "auto", "vulkan:1"):
        with pytest.raises(ConfigError, match=f"block_size: 256 is for attention npu, got {attention}"):
            EngineConfig(block_size=256, attention=attention)
    with pytest.raises(ConfigError, match="block_size: expected 8, 16, 32 or 64, or with attention npu 128, 256, 512"):
        EngineConfig(block_size=96, attention="npu")


@pytest.mark.parametrize("text", ["", "gpu:0", "vulkan", "vulkan:", "vulkan: ", "npu:0", "auto:1", "NPU", "cpu"])
def test_a_place_for_the_attention_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="attention: expected gpu, npu, auto, or vulkan:DEVICE"):
        AttentionTarget.parse(text)


def test_a_place_for_the_attention_is_its_own_text() -> None:
    for text in ("gpu", "npu", "auto", "vulkan:1", "vulkan:RTX 4060"):
        assert str(AttentionTarget.parse(text)) == text


def test_adapters_are_a_bounded_tuple() -> None:
    spec = LoraSpec(Path("poet"))
    assert EngineConfig(loras=(spec,) * 32).loras[31] is spec
    with pytest.raises(ConfigError, match="loras: expected at most 32 adapters, got 33"):
        EngineConfig(loras=(spec,) * 33)
    wrong: Any = [spec]
    with pytest.raises(ConfigError, match="loras: expected a tuple of LoraSpec"):
        EngineConfig(loras=wrong)


def test_proposals_want_rows_that_a_step_samples_and_are_not_there_where_another_device_attends() -> None:
    assert (EngineConfig().max_sampled, EngineConfig(max_num_seqs=1).max_sampled) == (32, 16)
    assert EngineConfig(max_num_seqs=1, speculation="off").max_sampled == 1
    assert EngineConfig(max_num_seqs=1, attention="npu").max_sampled == 1
    with pytest.raises(ConfigError, match="speculation: lookup is not there with attention vulkan:1"):
        EngineConfig(attention="vulkan:1", speculation=SpeculationMode.LOOKUP)
