"""Sequences whose layers keep a state of fixed size: however steps are cut and shared, each gets its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.golden.cases import CASES
from tests.golden.checkpoints import golden
from unicorn_async.config import AttentionKind, AttentionTarget, EngineConfig
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.hybrid.choice import fit_options
from unicorn_async.models.registry import model_spec

from .answers import answer, prompt_of
from .loading_gate import HELD_FROM, LoadingGate, some_layers

if TYPE_CHECKING:
    from unicorn_async.engine.engine import Engine

    from .conftest import OpenEngine

PROMPTS = [prompt_of(length) for length in (3, 40, 90, 1)]
MODELS = ("lfm2", "qwen3_5")
BLOCK_BYTES = 2 * 2 * 2 * 16 * 32 * 2  # keys and values, layers that attend, heads, tokens, elements, bytes


async def alone(engine: Engine) -> list[list[int]]:
    return [(await answer(engine, prompt, max_tokens=24)).ids for prompt in PROMPTS]


async def together(engine: Engine) -> list[list[int]]:
    found = await asyncio.gather(*(answer(engine, prompt, max_tokens=24) for prompt in PROMPTS))
    return [one.ids for one in found]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "options",
    [{"max_num_batched_tokens": 8}, {"num_frames": 1}, {"submission_budget_s": 1e-9}, {"max_num_seqs": 2}],
    ids=str,
)
async def test_how_steps_are_run_changes_no_token(options: dict[str, Any], model: str, open_engine: OpenEngine) -> None:
    async with open_engine(model) as engine:
        expected = await alone(engine)
        assert await together(engine) == expected
    async with open_engine(model, **options) as engine:
        assert await together(engine) == expected
        assert await alone(engine) == expected  # by states that others have used


@pytest.mark.parametrize("model", MODELS)
async def test_a_prompt_in_small_chunks_has_the_logits_of_the_reference(model: str, open_engine: OpenEngine) -> None:
    reference = golden(model)
    async with open_engine(model, max_num_batched_tokens=8) as engine:
        for index, prompt in enumerate(reference.prompts[:3]):
            assert reference.error(index, await engine.logits(prompt)) < 1e-2


@pytest.mark.parametrize(("model", "block_bytes"), [("lfm2", BLOCK_BYTES), ("qwen3_5", 2 * BLOCK_BYTES)])
async def test_requests_that_lose_their_place_give_the_same_tokens(
    model: str, block_bytes: int, open_engine: OpenEngine
) -> None:
    prompts = [prompt_of(30, seed) for seed in range(4)]
    async with open_engine(model, max_context=128, kv_cache_bytes=13 * block_bytes) as engine:
        expected = [(await answer(engine, prompt, max_tokens=64)).ids for prompt in prompts]
        assert engine.stats().preemptions == 0
        found = await asyncio.gather(*(answer(engine, prompt, max_tokens=64) for prompt in prompts))
        assert engine.stats().preemptions > 0
        assert [one.ids for one in found] == expected


async def test_requests_that_follow_the_load_together_give_the_same_tokens(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_engine("lfm2") as engine:
        expected = await alone(engine)
    gate = LoadingGate(monkeypatch, HELD_FROM)
    async with open_engine("lfm2", max_num_batched_tokens=32) as engine:
        early = asyncio.create_task(together(engine))
        await some_layers(engine)
        gate.open()
        assert await early == expected


def test_another_device_for_gated_attention_is_refused() -> None:
    target = AttentionTarget(AttentionKind.VULKAN, "0")
    model = model_spec({**CASES["qwen3_5"].config, "layer_types": ["full_attention"] * 4})
    with pytest.raises(UnsupportedModelError, match="what Qwen3_5ForCausalLM attends to is gated"):
        fit_options(model, EngineConfig(attention=target))


async def test_another_device_for_the_attention_is_refused_by_the_layer_that_has_none(open_engine: OpenEngine) -> None:
    target = AttentionTarget(AttentionKind.VULKAN, "0")
    with pytest.raises(UnsupportedModelError, match="layer 0 of Lfm2ForCausalLM has no attention"):
        async with open_engine("lfm2", attention=target):
            pytest.fail("an engine was opened")


async def test_evaluations_beside_answers_have_states_of_their_own(open_engine: OpenEngine) -> None:
    async with open_engine("lfm2") as engine:
        expected = await engine.logits(PROMPTS[2])
        found, *_ = await asyncio.gather(engine.logits(PROMPTS[2]), together(engine))
        np.testing.assert_array_equal(found, expected)
