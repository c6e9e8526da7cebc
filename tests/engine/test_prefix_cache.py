"""Requests that begin as others did: their prompts are computed from there on, and their tokens stay what they are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from unicorn_async.errors import RequestError
from unicorn_async.sampling_params import SamplingParams

from .answers import answer, prompt_of

if TYPE_CHECKING:
    from .conftest import OpenEngine

LONG = prompt_of(150)
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.9, "seed": 3, "top_p": 0.9},
    {"presence_penalty": 1.0, "frequency_penalty": 0.3},
    {"repetition_penalty": 1.5},
)


@pytest.mark.parametrize(
    ("family", "kinds"),
    [("llama", KINDS * 2), ("gemma3", KINDS * 2), ("glm4_moe_lite", KINDS)],
    ids=["llama", "gemma3", "latents"],
)
async def test_turns_of_a_conversation_go_on_as_without_the_cache(
    family: str, kinds: tuple[dict[str, Any], ...], open_engine: OpenEngine
) -> None:
    found, tokens = {}, {}
    for wanted in (False, True):
        async with open_engine(family, prefix_cache=wanted) as engine:
            prompt, answers = LONG, []
            for sampling in kinds:
                answers.append(await answer(engine, prompt, **sampling))
                prompt = (*prompt, *answers[-1].ids, *prompt_of(9))
            stats = engine.stats()
            tokens[wanted] = [made.ids for made in answers]
            found[wanted] = [made.tokens[0].num_prompt_found for made in answers]
            assert (stats.prompt_tokens_found, stats.blocks_used) == (sum(found[wanted]), 0)
    assert tokens[True] == tokens[False]
    assert found[False] == [0] * len(kinds)
    lengths = [150 + turn * 25 for turn in range(len(kinds))]
    assert found[True] == [0] + [(length - 9 - 1) // 16 * 16 for length in lengths[1:]]


async def test_prompts_that_come_at_once_are_computed_once(open_engine: OpenEngine) -> None:
    prompts = [(*LONG, 5 + number) for number in range(6)]
    async with open_engine(prefix_cache=False) as engine:
        expected = [(await answer(engine, prompt)).ids for prompt in prompts]
    async with open_engine() as engine:
        answers = await asyncio.gather(*(answer(engine, prompt) for prompt in prompts))
        assert [made.ids for made in answers] == expected
        assert sorted(made.tokens[-1].num_prompt_found for made in answers) == [0] + [144] * 5
        assert engine.stats().prompt_tokens == 6 * 151
        assert engine.stats().tokens_prefilled < 151 + 6 * 10


async def test_a_salt_keeps_requests_apart(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        found = []
        for salt in ("", "", "other", "other"):
            stream = engine.stream(LONG, SamplingParams(max_tokens=2, ignore_eos=True), cache_salt=salt)
            tokens = [token async for token in stream]
            found.append(tokens[0].num_prompt_found)
        assert found == [0, 144, 0, 144]


@pytest.mark.parametrize("salt", ["\ud800", None, 5, b"salt"])
async def test_a_salt_that_is_no_text_is_refused_and_others_go_on(salt: Any, open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        with pytest.raises(RequestError, match="the cache's salt: expected text"):
            await anext(engine.stream(LONG, cache_salt=salt))
        assert len((await answer(engine, max_tokens=2)).ids) == 2


async def test_while_the_model_loads_prompts_share_too(open_engine: OpenEngine) -> None:
    async with open_engine(prefix_cache=False) as engine:
        expected = (await answer(engine, LONG)).ids
    async with open_engine() as engine:
        answers = await asyncio.gather(*(answer(engine, LONG) for _ in range(4)))
        assert [made.ids for made in answers] == [expected] * 4
