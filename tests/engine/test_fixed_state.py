"""Sequences whose layers keep a state of fixed size: however steps are cut and shared, each gets its own."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.golden.cases import CASES
from tests.golden.checkpoints import encode, golden, safetensors_bytes, weights
from tests.golden.rwkv7 import published
from unicorn_async.config import AttentionKind, AttentionTarget, EngineConfig, KVDType
from unicorn_async.errors import ConfigError, UnsupportedModelError
from unicorn_async.hybrid.choice import fit_options
from unicorn_async.models.registry import model_spec
from unicorn_async.sampling_params import SamplingParams

from .answers import answer, prompt_of
from .invariance import Job, margin
from .loading_gate import HELD_FROM, LoadingGate, some_layers

if TYPE_CHECKING:
    from pathlib import Path

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


async def check_same(engine: Engine, model: str, prompt: list[int], ids: list[int], right: list[int]) -> None:
    """Check that answers are the same, up to a tie that steps of other sizes round the other way."""
    if ids != right:
        job = Job(prompt, SamplingParams(max_tokens=len(right)), 0, len(right))
        assert await margin(engine, job, right, ids) < 2e-2 * golden(model).deviation


@pytest.mark.combinations("a way to run steps that one kind of state alone has no place in")
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


@pytest.mark.parametrize("model", [*MODELS, "rwkv7", "granite_hybrid_moe"])
async def test_a_prompt_in_small_chunks_has_the_logits_of_the_reference(model: str, open_engine: OpenEngine) -> None:
    reference = golden(model)
    async with open_engine(model, max_num_batched_tokens=8) as engine:
        for index, prompt in enumerate(reference.prompts[:3]):
            assert reference.error(index, await engine.logits(prompt)) < 1e-2


@pytest.mark.parametrize(
    ("model", "block_bytes"),
    [("lfm2", BLOCK_BYTES), ("qwen3_5", 2 * BLOCK_BYTES), ("granite_hybrid", BLOCK_BYTES // 2)],
)
async def test_requests_that_lose_their_place_give_the_same_tokens(
    model: str, block_bytes: int, open_engine: OpenEngine
) -> None:
    prompts = [prompt_of(30, seed) for seed in range(4)]
    async with open_engine(model, max_context=128, kv_cache_bytes=13 * block_bytes) as engine:
        expected = [(await answer(engine, prompt, max_tokens=64)).ids for prompt in prompts]
        assert engine.stats().preemptions == 0
        found = await asyncio.gather(*(answer(engine, prompt, max_tokens=64) for prompt in prompts))
        assert engine.stats().preemptions > 0
        for prompt, one, right in zip(prompts, found, expected, strict=True):
            await check_same(engine, model, prompt, one.ids, right)


async def test_without_keys_and_values_who_has_more_than_its_share_gives_up_its_place(open_engine: OpenEngine) -> None:
    prompts = [prompt_of(30, seed) for seed in range(3)]
    async with open_engine("rwkv7", max_num_seqs=2) as engine:
        assert engine.kv_cache_bytes == 0
        expected = [(await answer(engine, prompt, max_tokens=24)).ids for prompt in prompts]
        assert engine.stats().preemptions == 0
        params = SamplingParams(max_tokens=24, ignore_eos=True)
        first = [engine.stream(prompt, params, client="one") for prompt in prompts[:2]]
        begun = [[(await anext(stream)).id] for stream in first]
        other = [token.id async for token in engine.stream(prompts[2], params, client="other")]
        found = [[*ids, *[token.id async for token in stream]] for ids, stream in zip(begun, first, strict=True)]
        assert engine.stats().preemptions == 1
        assert [*found, other] == expected


@pytest.mark.parametrize("are_turned", [True, False])
async def test_rwkv_7_loads_as_its_authors_publish_it(
    are_turned: bool, tmp_path: Path, open_engine: OpenEngine
) -> None:
    """Without a config.json; small networks have rows for columns, but where a converter has turned them."""
    tensors = {name: encode(value, "float16") for name, value in published(weights(CASES["rwkv7"]))}
    if not are_turned:
        given = {
            name: value for name, value in published(weights(CASES["rwkv7"])) if re.search(r"att\.[wavg][12]$", name)
        }
        tensors |= {name: encode(value.T, "float16") for name, value in given.items()}
    content = safetensors_bytes([(name, *tensor) for name, tensor in tensors.items()])
    (tmp_path / "model.safetensors").write_bytes(content)
    reference = golden("rwkv7")
    async with open_engine(tmp_path, skip_tokenizer=True) as engine:
        assert reference.error(2, await engine.logits(reference.prompts[2])) < 1e-2


@pytest.mark.parametrize("model", ["lfm2", "rwkv7"])
async def test_requests_that_follow_the_load_together_give_the_same_tokens(
    model: str, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_engine(model) as engine:
        expected = await alone(engine)
    gate = LoadingGate(monkeypatch, HELD_FROM)
    async with open_engine(model, max_num_batched_tokens=32) as engine:
        early = asyncio.create_task(together(engine))
        await some_layers(engine)
        gate.open()
        for prompt, ids, right in zip(PROMPTS, await early, expected, strict=True):
            await check_same(engine, model, prompt, ids, right)


def test_another_device_for_gated_attention_is_refused() -> None:
    target = AttentionTarget(AttentionKind.VULKAN, "0")
    model = model_spec({**CASES["qwen3_5"].config, "layer_types": ["full_attention"] * 4})
    with pytest.raises(UnsupportedModelError, match="what Qwen3_5ForCausalLM attends to is gated"):
        fit_options(model, EngineConfig(attention=target))


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            "lfm2",
            {"attention": AttentionTarget(AttentionKind.VULKAN, "0")},
            "layer 0 of Lfm2ForCausalLM has no attention",
        ),
        ("rwkv7", {"attention": AttentionTarget(AttentionKind.NPU)}, "layer 0 of RWKV7ForCausalLM has no attention"),
        ("rwkv7", {"loras": ("some/adapter",)}, "some/adapter: adapters of RWKV7ForCausalLM are not supported"),
        ("rwkv7", {"kv_cache_bytes": 1 << 20}, "KV cache of 1,048,576 bytes in f16: RWKV7ForCausalLM has no keys"),
        ("rwkv7", {"kv_dtype": KVDType.INT8}, "KV cache in int8: RWKV7ForCausalLM has no keys and values"),
    ],
)
async def test_what_is_asked_of_attention_that_is_not_there_is_refused_by_name(
    model: str, options: dict[str, Any], message: str, open_engine: OpenEngine
) -> None:
    with pytest.raises((ConfigError, UnsupportedModelError), match=message):
        async with open_engine(model, **options):
            pytest.fail("an engine was opened")


async def test_evaluations_beside_answers_have_states_of_their_own(open_engine: OpenEngine) -> None:
    async with open_engine("lfm2") as engine:
        expected = await engine.logits(PROMPTS[2])
        found, *_ = await asyncio.gather(engine.logits(PROMPTS[2]), together(engine))
        np.testing.assert_array_equal(found, expected)
