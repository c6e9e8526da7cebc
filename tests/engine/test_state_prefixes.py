"""Requests that begin as others did, of models with states of fixed size: they begin with a copy of the state."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from .answers import answer, prompt_of
from .loading_gate import HELD_FROM, LoadingGate, some_layers

if TYPE_CHECKING:
    from .conftest import OpenEngine

MODELS = ("lfm2", "qwen3_5")
LONG = prompt_of(150)


@pytest.mark.parametrize("model", ["qwen3_5", "rwkv7"])
async def test_turns_of_a_conversation_go_on_as_without_the_cache(model: str, open_engine: OpenEngine) -> None:
    found, tokens = {}, {}
    for wanted in (False, True):
        async with open_engine(model, prefix_cache=wanted) as engine:
            prompt, answers = LONG, []
            for _ in range(4):
                answers.append(await answer(engine, prompt, max_tokens=6))
                prompt = (*prompt, *answers[-1].ids, *prompt_of(9))
            tokens[wanted] = [made.ids for made in answers]
            found[wanted] = [made.tokens[0].num_prompt_found for made in answers]
            assert engine.stats().blocks_used == 0
    assert tokens[True] == tokens[False]
    assert found[False] == [0] * 4
    assert found[True] == [0, 144, 144, 176]


@pytest.mark.parametrize("model", [*MODELS, "granite_hybrid"])
async def test_what_follows_a_copy_is_what_follows_the_prompt_to_the_bit(model: str, open_engine: OpenEngine) -> None:
    prompt = prompt_of(140)  # whose last step has the same tokens, whether there was a step before it or not
    async with open_engine(model) as engine:
        cold, warm = [await answer(engine, prompt, top_logprobs=5, max_tokens=4) for _ in range(2)]
    assert (cold.tokens[0].num_prompt_found, warm.tokens[0].num_prompt_found) == (0, 128)
    assert cold.ids == warm.ids
    assert [token.logprob for token in cold.tokens] == [token.logprob for token in warm.tokens]
    assert [token.top_logprobs for token in cold.tokens] == [token.top_logprobs for token in warm.tokens]


@pytest.mark.parametrize("model", MODELS)
async def test_a_copy_from_within_a_step_is_that_of_its_tokens(model: str, open_engine: OpenEngine) -> None:
    prompt = prompt_of(300)
    async with open_engine(model) as engine:
        cold, warm = [await answer(engine, prompt, top_logprobs=5, max_tokens=4) for _ in range(2)]
        assert engine.stats().steps == 3 + 1 + 2 * 3  # none more for the copy
    assert (cold.tokens[0].num_prompt_found, warm.tokens[0].num_prompt_found) == (0, 288)
    assert cold.ids == warm.ids
    found, expected = ([token.logprob for token in made.tokens] for made in (warm, cold))
    # Behind another number of tokens kernels round otherwise, matrix units' products of halves more than others.
    assert found == pytest.approx(expected, abs=1e-4 if engine.device.is_software else 1e-3)


async def test_prompts_that_come_at_once_are_computed_once(open_engine: OpenEngine) -> None:
    prompts = [(*LONG, 5 + number, *prompt_of(20, number)) for number in range(4)]
    async with open_engine("qwen3_5", prefix_cache=False) as engine:
        expected = [(await answer(engine, prompt, max_tokens=2)).ids for prompt in prompts]
    async with open_engine("qwen3_5", max_num_seqs=3) as engine:
        answers = await asyncio.gather(*(answer(engine, prompt, max_tokens=2) for prompt in prompts))
        assert [made.ids for made in answers] == expected
        assert sorted(made.tokens[-1].num_prompt_found for made in answers) == [0] + [144] * 3


async def test_requests_that_follow_the_load_share_copies_too(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_engine("qwen3_5", prefix_cache=False) as engine:
        expected = (await answer(engine, LONG, max_tokens=2)).ids
    gate = LoadingGate(monkeypatch, HELD_FROM)
    async with open_engine("qwen3_5") as engine:
        early = [asyncio.create_task(answer(engine, LONG, max_tokens=2)) for _ in range(3)]
        await some_layers(engine)
        gate.open()
        late = await answer(engine, LONG, max_tokens=2)
        answers = [*await asyncio.gather(*early), late]
        assert [made.ids for made in answers] == [expected] * 4
        assert sorted(made.tokens[0].num_prompt_found for made in answers) == [0] + [144] * 3
