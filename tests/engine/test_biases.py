"""Biases of single tokens, and answers that don't end too early, beside others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import unicorn_async
from tests.ops.sampling_reference import biased, log_softmax
from tests.scheduler.made_scheduler import add, make_scheduler
from unicorn_async.engine.types import FinishReason
from unicorn_async.errors import ParameterError, RequestError
from unicorn_async.grammar import Grammar
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.tokenizer import ChatMessage

from .answers import PROMPT, answer, logits_behind, prompt_of

if TYPE_CHECKING:
    from .conftest import OpenEngine

DEMO = Path(unicorn_async.__file__).parent / "demo" / "model"


async def test_biases_ban_and_force_tokens_and_logprobs_are_those_after_them(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        plain = await answer(engine)
        bias = {plain.ids[0]: -100.0, 7: 3.5, 300: -2.25}
        found = await answer(engine, logit_bias=bias, top_logprobs=3)
        rows = await logits_behind(engine, PROMPT, found.ids)
        forced = await answer(engine, logit_bias={9: 100}, temperature=1.0, top_p=0.5, seed=1)
    params = SamplingParams(logit_bias=bias)
    assert plain.ids[0] not in found.ids
    assert set(forced.ids) == {9}
    for token, row in zip(found.tokens, rows, strict=True):
        exact = log_softmax(biased(row, params))
        assert token.id == int(np.argmax(exact))
        assert token.logprob == pytest.approx(exact[token.id], abs=1e-3)  # a step of more tokens rounds otherwise


async def test_rows_with_biases_leave_others_alone(open_engine: OpenEngine) -> None:
    """Whatever comes and goes beside them: answers of different lengths, and a request that is cancelled."""
    kinds: list[dict[str, Any]] = [
        {},
        {"logit_bias": {9: 100}},
        {"temperature": 0.9, "seed": 4, "top_logprobs": 2},
        {"ignore_eos": False, "stop_token_ids": tuple(range(0, 512, 2)), "min_tokens": 9, "max_tokens": 30},
        {"logit_bias": {token: -100 for token in range(0, 512, 3)}, "presence_penalty": 1.0},
    ]
    async with open_engine() as engine:
        alone = [await answer(engine, prompt_of(20 + n), **kind) for n, kind in enumerate(kinds)]
        cancelled = asyncio.create_task(answer(engine, logit_bias={3: 100}, max_tokens=300))
        together = await asyncio.gather(*(answer(engine, prompt_of(20 + n), **kind) for n, kind in enumerate(kinds)))
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
    assert [found.ids for found in together] == [found.ids for found in alone]
    assert len(alone[3].ids) > 9 and not any(token % 2 == 0 for token in alone[3].ids[:9])
    assert not any(token % 3 == 0 for token in alone[4].ids)


async def test_an_answer_has_its_least_length_also_where_it_gave_up_its_place(open_engine: OpenEngine) -> None:
    stops = tuple(token for token in range(512) if token % 5)
    wanted = {"stop_token_ids": stops, "min_tokens": 60, "max_tokens": 90, "temperature": 1.0, "seed": 5}
    async with open_engine() as engine:
        alone = [await answer(engine, prompt_of(40, n), **wanted) for n in range(4)]
    async with open_engine(max_context=256, kv_cache_bytes=400 << 10, max_num_seqs=4) as engine:
        beside = await asyncio.gather(*(answer(engine, prompt_of(40, n), **wanted) for n in range(4)))
        assert engine.stats().preemptions > 0
    assert [found.ids for found in beside] == [found.ids for found in alone]
    for found in alone:
        assert len(found.ids) > 60 and not any(token in stops for token in found.ids[:60])
        assert found.finish_reason is FinishReason.STOP


async def test_stop_strings_are_searched_for_behind_the_least_length(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        whole = await answer(engine, max_tokens=48)
        stop = next(token.text for token in whole.tokens[2:] if token.text and "\ufffd" not in token.text)
        early = await answer(engine, max_tokens=48, stop=(stop,))
        late = await answer(engine, max_tokens=48, stop=(stop,), min_tokens=20)
        never = await answer(engine, max_tokens=20, stop=(stop,), min_tokens=48)
    assert len(early.ids) < 20 <= len(late.ids)
    assert late.text.startswith("".join(token.text for token in whole.tokens[:20]))
    assert (never.text, never.finish_reason) == (whole.text[: len(never.text)], FinishReason.LENGTH)


async def test_a_grammar_goes_before_biases_and_the_least_length(open_engine: OpenEngine) -> None:
    async with open_engine(DEMO) as engine:
        prompt = engine.tokenizer.encode_chat([ChatMessage("user", "Hi")])
        banned = {token: -100 for token in range(1000)}
        for sampling in ({}, {"temperature": 1.0, "seed": 3, "top_k": 4}):
            found = await answer(
                engine,
                prompt,
                grammar=Grammar.choice(["yes"]),
                logit_bias=banned,
                min_tokens=30,
                max_tokens=40,
                ignore_eos=False,
                **sampling,
            )
            assert (found.text, found.finish_reason) == ("yes", FinishReason.STOP)
        digits = await answer(
            engine, prompt, grammar=Grammar.regex("[0-9]{1,30}"), min_tokens=12, max_tokens=40, ignore_eos=False
        )
        assert len(digits.ids) > 12 and digits.text.isdigit()


async def test_tokens_beyond_the_vocabulary_and_too_many_are_refused_by_name(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        for name, value in (("logit_bias", {5: 1, 512: 1}), ("stop_token_ids", (3, 512))):
            with pytest.raises(ParameterError, match=f"{name}: expected token ids, 0 to 511, got 512") as caught:
                await answer(engine, **{name: value})
            assert caught.value.parameter == name
        many = {"stop_token_ids": tuple(range(512)) * 4, "logit_bias": dict.fromkeys(range(500), 1.0)}
        assert len((await answer(engine, min_tokens=1, **many)).ids) > 0  # each counts once


def test_more_banned_tokens_than_a_row_has_room_for_are_refused() -> None:
    with pytest.raises(RequestError, match=r"1537 tokens end the answer, .* at most 1536 together, got 1537"):
        add(make_scheduler(), 2, min_tokens=1, stop_token_ids=tuple(range(1537)))
