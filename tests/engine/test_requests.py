"""Requests side by side: they come, go, wait and lose their place without changing each other's tokens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.golden.checkpoints import golden
from unicorn_async.config import KVDType
from unicorn_async.errors import QueueFullError, RequestError
from unicorn_async.ops.subgroups import matrix_subgroup_size
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.step_budget import StepBudget

from .answers import PROMPT, answer, prompt_of
from .invariance import Job, margin

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from unicorn_async.engine.engine import Engine
    from unicorn_async.engine.types import Token

    from .conftest import OpenEngine

# Greedy, drawn, and with counts of tokens, which a request that lost its place has to get back.
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.9, "seed": 3, "top_p": 0.9},
    {"temperature": 0.7, "seed": 4, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
    {"presence_penalty": 1.0, "top_logprobs": 2},
)
LLAMA_BLOCK_BYTES = 2 * 3 * 2 * 16 * 32 * 2  # keys and values, layers, heads, tokens, elements, bytes
LATENT_BLOCK_BYTES = 2 * 16 * 128 * 2  # layers, tokens, elements of a latent and the key beside it, bytes


def endless(engine: Engine) -> AsyncGenerator[Token, None]:
    """Begin an answer as long as the context."""
    return engine.stream(PROMPT, SamplingParams(max_tokens=10_000, ignore_eos=True))


async def check_all_freed(engine: Engine) -> None:
    """Let a short answer run, so that every step before it has ended, and look for what is left."""
    await answer(engine, max_tokens=3)
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


async def test_closing_a_stream_frees_its_blocks_and_others_go_on(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        alone = await answer(engine, max_tokens=32)
        stream = endless(engine)
        other = asyncio.create_task(answer(engine, max_tokens=32))
        for _ in range(4):
            await anext(stream)
        assert engine.stats().running == 2
        await stream.aclose()
        assert engine.stats().running == 1
        assert (await other).ids == alone.ids
        await check_all_freed(engine)
        assert engine.stats().tokens_generated < 100


async def test_cancelling_a_consumer_frees_its_blocks_and_others_go_on(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        alone = await answer(engine, max_tokens=32)
        begun = asyncio.Event()

        async def consume() -> None:
            async for _ in endless(engine):
                begun.set()

        consumer = asyncio.create_task(consume())
        other = asyncio.create_task(answer(engine, max_tokens=32))
        await begun.wait()
        consumer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consumer
        assert (await other).ids == alone.ids
        await check_all_freed(engine)


async def test_a_cancelled_evaluation_frees_its_blocks(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        evaluation = asyncio.create_task(engine.logits(prompt_of(300)))
        await answer(engine, max_tokens=2)
        assert engine.stats().running == 1
        evaluation.cancel()
        with pytest.raises(asyncio.CancelledError):
            await evaluation
        await check_all_freed(engine)


async def test_an_evaluation_beside_answers_gives_the_same_logits(open_engine: OpenEngine) -> None:
    """Rows of logits for sampling and for evaluation share steps."""
    async with open_engine() as engine:
        alone = await engine.logits(prompt_of(200))
        expected = [await answer(engine, max_tokens=24, **kind) for kind in KINDS]
        found = [asyncio.create_task(answer(engine, max_tokens=24, **kind)) for kind in KINDS]
        together = await engine.logits(prompt_of(200))
        assert [(await task).ids for task in found] == [one.ids for one in expected]
    assert np.abs(together - alone).max() < 0.01 * alone.std()


async def test_a_request_too_many_is_refused(open_engine: OpenEngine) -> None:
    async with open_engine(max_num_seqs=1, max_waiting=1) as engine:
        running = endless(engine)
        await anext(running)
        waiting = asyncio.create_task(answer(engine))
        await anext(running)
        assert (engine.stats().running, engine.stats().waiting) == (1, 1)
        with pytest.raises(QueueFullError, match="1 requests wait already, at most 1 may"):
            await answer(engine)
        with pytest.raises(QueueFullError):
            await engine.logits(PROMPT)
        await running.aclose()
        assert len((await waiting).ids) == 16
        await check_all_freed(engine)


async def test_a_prompt_that_can_never_fit_the_cache_is_refused(open_engine: OpenEngine) -> None:
    async with open_engine("llama", max_context=None, kv_cache_bytes=4 * LLAMA_BLOCK_BYTES) as engine:
        assert engine.max_context == 64
        with pytest.raises(RequestError, match="64"):
            await answer(engine, prompt_of(65))
        assert len((await answer(engine, prompt_of(40), max_tokens=100)).ids) == 24


@pytest.mark.parametrize(
    ("model", "block_bytes", "kind"),
    [
        ("llama", LLAMA_BLOCK_BYTES, KVDType.F16),
        ("deepseek_v3", LATENT_BLOCK_BYTES, KVDType.F16),
        ("glm4_moe_lite", LATENT_BLOCK_BYTES * 17 // 32, KVDType.INT8),
    ],
)
async def test_requests_that_lose_their_place_give_the_same_tokens(
    model: str, block_bytes: int, kind: KVDType, open_engine: OpenEngine
) -> None:
    """Four requests of six blocks each, in a cache of thirteen."""
    prompts, expected = [prompt_of(30, seed) for seed in range(4)], golden(model)
    async with open_engine(model, max_context=128, kv_cache_bytes=13 * block_bytes, kv_dtype=kind) as engine:
        alone = [await answer(engine, p, max_tokens=64, **kind) for p, kind in zip(prompts, KINDS, strict=True)]
        assert engine.stats().preemptions == 0
        together = await asyncio.gather(
            *(answer(engine, p, max_tokens=64, **kind) for p, kind in zip(prompts, KINDS, strict=True))
        )
        assert engine.stats().preemptions > 0
        await check_all_freed(engine)
        # Tokens that are computed again come from kernels for many tokens, which round otherwise where they use matrix
        # units: a token may then be another one, if the two were as close as the logits are exact.
        error = expected.deviation * max(
            [expected.error(i, await engine.logits(expected.prompts[i])) for i in (1, 2)]  # of 7 and 64 tokens
        )
        for prompt, kind, one, other in zip(prompts, KINDS, alone, together, strict=True):
            if one.ids != other.ids:
                assert matrix_subgroup_size(engine.device) is not None, "kernels that round alike gave other tokens"
                job = Job(prompt, SamplingParams(max_tokens=64, **kind), arrival=0, num_read=64)
                assert await margin(engine, job, one.ids, other.ids) < 2 * error


@pytest.mark.parametrize(("max_mixed_step_s", "num_steps"), [(0.1, 5), (None, 0)])
async def test_a_prompt_beside_an_answer_under_way_comes_in_small_chunks_where_steps_have_a_limit(
    max_mixed_step_s: float | None, num_steps: int, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepBudget, "room_beside", lambda budget, num_decodes: 0)  # as if every step took too long
    async with open_engine(max_mixed_step_s=max_mixed_step_s) as engine:
        await engine.loaded()
        await answer(engine, prompt_of(90), max_tokens=1)
        assert engine.stats().bounded_steps == 0  # nobody else is there
        stream = endless(engine)
        for _ in range(4):
            await anext(stream)
        await answer(engine, prompt_of(90, seed=1), max_tokens=1)
        assert engine.stats().bounded_steps == num_steps
        await stream.aclose()


@pytest.mark.parametrize(
    "options",
    [
        {"num_frames": 1},
        {"num_frames": 3},
        {"submission_budget_s": 1e-9},
        {"max_num_batched_tokens": 8},
        {"max_mixed_step_s": 1e-9},
    ],
    ids=str,
)
async def test_how_steps_are_run_changes_no_token(options: dict[str, Any], open_engine: OpenEngine) -> None:
    """Steps in flight, steps cut into parts, small chunks: against two frames and whole steps."""
    prompts = [prompt_of(length) for length in (3, 40, 90, 7)]

    async def together(engine: Engine) -> list[list[int]]:
        await engine.loaded()
        jobs = (answer(engine, p, max_tokens=24, **kind) for p, kind in zip(prompts, KINDS, strict=True))
        return [found.ids for found in await asyncio.gather(*jobs)]

    async with open_engine() as engine:
        expected = await together(engine)
    async with open_engine(**options) as engine:
        assert await together(engine) == expected
