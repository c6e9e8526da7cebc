"""What a stream yields: which tokens, with which text, and why it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.ops import sampling_reference as reference
from unicorn_async.engine.types import FinishReason
from unicorn_async.errors import PromptTooLongError, RequestError
from unicorn_async.sampling_params import SamplingParams

from .answers import PROMPT, Answer, answer, logits_behind, prompt_of

if TYPE_CHECKING:
    from unicorn_async.engine.engine import Engine

    from .conftest import OpenEngine

LOGIT_ERROR = 0.02  # of logits with a standard deviation of about 1, computed in batches of different sizes


async def test_greedy_tokens_are_the_most_probable(open_engine: OpenEngine) -> None:
    """Beyond the sliding window, in chunks and token by token."""
    prompt = prompt_of(150)
    async with open_engine() as engine:
        found = await answer(engine, prompt, max_tokens=24)
        logits = await logits_behind(engine, prompt, found.ids)
    assert len(found.ids) == 24
    assert found.finish_reason is FinishReason.LENGTH
    chosen = np.take_along_axis(logits, np.array(found.ids)[:, None], axis=1)[:, 0]
    assert (chosen >= logits.max(axis=1) - LOGIT_ERROR).all()


async def test_text_is_encoded_and_the_texts_of_the_tokens_make_up_the_answer(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        ids = engine.tokenizer.encode("a few words")
        by_text, by_ids = await answer(engine, "a few words"), await answer(engine, ids)
        assert ids[0] == 2
        assert by_text.ids == by_ids.ids
        assert by_text.text == engine.tokenizer.decode(by_text.ids)


async def test_a_seed_decides_the_draws(open_engine: OpenEngine) -> None:
    """Token for token what the definition of the sampler gives with the same logits."""
    sampling: dict[str, Any] = {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.01}
    async with open_engine() as engine:
        first, again = [await answer(engine, seed=7, **sampling) for _ in range(2)]
        other = await answer(engine, seed=8, **sampling)
        unseeded = [await answer(engine, max_tokens=32, temperature=2.0) for _ in range(2)]
        logits = await logits_behind(engine, PROMPT, first.ids)
    params = SamplingParams(**sampling)
    drawn = [
        reference.drawn(row, params, seed=7, position=position)
        for position, row in enumerate(logits, start=len(PROMPT))
    ]
    assert first.ids == again.ids == drawn
    assert first.ids != other.ids
    assert unseeded[0].ids != unseeded[1].ids


@pytest.mark.parametrize("num_top", [0, 5, 20])
async def test_log_probabilities_are_of_the_model_s_distribution(num_top: int, open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        found = await answer(engine, temperature=0.8, seed=1, repetition_penalty=1.3, top_logprobs=num_top)
        logits = await logits_behind(engine, PROMPT, found.ids)
    for token, row in zip(found.tokens, logits, strict=True):
        expected = reference.log_softmax(row)
        assert token.logprob == pytest.approx(expected[token.id], abs=LOGIT_ERROR)
        ids, texts, values = zip(*token.top_logprobs, strict=True) if num_top else ((), (), ())
        assert len(set(ids)) == num_top
        assert texts == tuple(engine.tokenizer.token_text(token_id) for token_id in ids)
        assert values == pytest.approx(expected[list(ids)], abs=LOGIT_ERROR)
        assert values == pytest.approx(np.sort(expected)[::-1][:num_top], abs=LOGIT_ERROR)


async def test_log_probabilities_are_given_to_who_asks_alone(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        found = await answer(engine)
    assert all(token.logprob is None and token.top_logprobs == () for token in found.tokens)


@pytest.mark.parametrize(
    "sampling",
    [
        {"repetition_penalty": 1.8},
        {"presence_penalty": 1.5, "frequency_penalty": 0.7},
        {"repetition_penalty": 0.8, "presence_penalty": -0.5, "frequency_penalty": 2.0},
    ],
    ids=str,
)
async def test_penalties_count_what_the_definition_says(sampling: dict[str, Any], open_engine: OpenEngine) -> None:
    """A prompt in chunks, with tokens that occur more than once."""
    prompt = [*prompt_of(150), *PROMPT, *PROMPT]
    params = SamplingParams(**sampling)
    async with open_engine() as engine:
        found = await answer(engine, prompt, **sampling)
        logits = await logits_behind(engine, prompt, found.ids)
        plain = await answer(engine, prompt)
    for index, row in enumerate(logits):
        values = reference.penalised(row, params, prompt, found.ids[:index])
        assert values[found.ids[index]] >= values.max() - 4 * LOGIT_ERROR
    assert found.ids != plain.ids


def border(found: Answer) -> int:
    """Return a token's index: it and the next one both have whole characters as their texts."""
    return next(
        index
        for index in range(3, len(found.tokens) - 1)
        if all(token.text and "\ufffd" not in token.text for token in found.tokens[index : index + 2])
    )


async def test_a_stop_string_across_tokens_ends_the_answer(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        whole = await answer(engine, max_tokens=48)
        index = border(whole)
        stop = whole.tokens[index].text[-1] + whole.tokens[index + 1].text[0]
        found = await answer(engine, max_tokens=48, stop=("never there", stop))
    assert found.text == whole.text[: whole.text.index(stop)]
    assert found.finish_reason is FinishReason.STOP
    assert found.ids == whole.ids[: len(found.ids)]


async def test_a_stop_token_ends_the_answer_without_a_text(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        whole = await answer(engine)
        found = await answer(engine, stop_token_ids=(whole.ids[5],))
    stop = whole.ids.index(whole.ids[5])
    assert found.ids == whole.ids[: stop + 1]
    assert found.tokens[-1].text == ""
    assert found.finish_reason is FinishReason.STOP


async def test_an_answer_ends_with_the_context(open_engine: OpenEngine) -> None:
    async with open_engine(max_context=64) as engine:
        assert engine.max_context == 64
        found = await answer(engine, prompt_of(60), max_tokens=100)
        last = await answer(engine, prompt_of(63), max_tokens=100)
        rows = await engine.logits(prompt_of(64))
    assert (len(found.ids), found.finish_reason) == (4, FinishReason.LENGTH)
    assert (len(last.ids), last.finish_reason) == (1, FinishReason.LENGTH)
    assert rows.shape == (64, 512)


async def test_refused_requests_say_why_and_harm_nobody(open_engine: OpenEngine) -> None:
    async with open_engine(max_context=64) as engine:
        with pytest.raises(PromptTooLongError, match=r"64 tokens .* context of 64"):
            await answer(engine, prompt_of(64))
        with pytest.raises(PromptTooLongError, match=r"65 tokens .* context of 64"):
            await engine.logits(prompt_of(65))
        for wrong in (512, -1, 1.5, True):
            with pytest.raises(RequestError, match=f"token {wrong}: expected a whole number, 0 to 511"):
                await answer(engine, [2, wrong])
            with pytest.raises(RequestError, match=f"token {wrong}: expected a whole number, 0 to 511"):
                await engine.logits([2, wrong])
        with pytest.raises(RequestError, match="empty"):
            await answer(engine, [])
        with pytest.raises(RequestError, match="not valid Unicode"):
            await answer(engine, "\ud800")
        await check_idle(engine)
        assert len((await answer(engine)).ids) == 16


async def check_idle(engine: Engine) -> None:
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
