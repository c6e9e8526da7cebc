"""Answers with proposals are the answers without, token for token, whatever is asked for."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import unicorn_async
from tests.golden.demo import demo_answers
from unicorn_async.config import SamplingParams
from unicorn_async.errors import RequestError, UnsupportedModelError
from unicorn_async.scheduler.step_costs import StepCosts

from .answers import answer, prompt_of
from .test_batch_invariance import Job, margin, run_job

if TYPE_CHECKING:
    from unicorn_async.engine.engine import Engine
    from unicorn_async.engine.types import Token
    from unicorn_async.scheduler.speculation import Speculation

    from .conftest import OpenEngine

MODEL = Path(unicorn_async.__file__).parent / "demo" / "model"


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have up to five tokens proposed wherever something can be, whatever steps cost on this machine."""

    def worth(costs: StepCosts, num_tokens: int, expected: float, rate: float, most: int, **_: object) -> int:
        return min(most, 5) if rate else 0

    monkeypatch.setattr(StepCosts, "worth", worth)


def speculation_of(engine: Engine) -> Speculation:
    found = engine._scheduler.speculation
    assert found is not None
    return found


def jobs_of(engine: Engine, number: int) -> list[Job]:
    """Conversations that the bundled model goes on with after it has seen them already; a third is drawn."""
    rng, jobs = random.Random(11), []
    conversations = demo_answers()
    for index in range(number):
        one = rng.choice(conversations)
        begun = one.continuation[: rng.randrange(len(one.continuation))]
        prompt = (*one.prompt, *one.continuation, *one.prompt, *begun)
        chosen: dict[str, Any] = {"temperature": 0.7, "seed": index, "top_k": 20} if index % 3 == 0 else {}
        max_tokens = rng.randrange(1, 8)
        num_read = rng.randrange(1, max_tokens + 1) if rng.random() < 0.1 else max_tokens
        jobs.append(Job(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True, **chosen), 0, num_read))
    return jobs


async def in_groups(engine: Engine, jobs: list[Job], size: int) -> list[list[int]]:
    """Run jobs, so many side by side, the next as soon as one has ended."""
    places = asyncio.Semaphore(size)

    async def run(job: Job) -> list[int]:
        async with places:
            return await run_job(engine, job)

    return await asyncio.gather(*(run(job) for job in jobs))


async def test_200_prompts_have_the_answers_that_they_have_without(open_engine: OpenEngine, always: None) -> None:
    async with open_engine(MODEL, speculation="lookup", max_num_seqs=16) as engine:
        reference = demo_answers()[0]
        logits = (await engine.logits(reference.prompt))[-len(reference.logits) :]
        logit_error = float(np.abs(logits - reference.logits).max())
        jobs, speculation = jobs_of(engine, 200), speculation_of(engine)
        found = await in_groups(engine, jobs, 3)
        assert speculation.num_right > 100
        assert speculation.num_proposed - speculation.num_right > 50
        engine._scheduler.speculation = None
        expected = await in_groups(engine, jobs, 16)
        for job, with_it, without in zip(jobs, found, expected, strict=True):
            if with_it != without:
                assert await margin(engine, job, without, with_it) < 2 * logit_error
        assert sum(one != other for one, other in zip(found, expected, strict=True)) <= 2
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
        assert stats.proposed_tokens == 0  # nothing proposes now


ASKED: list[dict[str, Any]] = [
    {"max_tokens": 40},
    {"max_tokens": 40, "temperature": 0.6, "seed": 3, "top_p": 0.9},
    {"max_tokens": 40, "temperature": 0.6, "seed": 4, "top_k": 3, "min_p": 0.1},
    {"max_tokens": 40, "top_logprobs": 3},
    {"max_tokens": 40, "repetition_penalty": 1.3},
    {"max_tokens": 40, "presence_penalty": 0.4, "frequency_penalty": 0.2, "temperature": 0.6, "seed": 5},
    {"max_tokens": 40, "logit_bias": {7: 3.0, 9: -100.0}, "min_tokens": 20, "ignore_eos": False},
    {"max_tokens": 40, "stop": ("e",)},
    {"max_tokens": 40, "ignore_eos": False, "temperature": 1.0, "seed": 6},
    {"max_tokens": 2},
]


def repeating(number: int) -> tuple[int, ...]:
    """A prompt of which every part stands in it again, for what comes to be proposed."""
    return (*prompt_of(12, number), *prompt_of(9, number)[1:], *prompt_of(12, number)[1:])


async def ask(engine: Engine, number: int, asked: dict[str, Any]) -> tuple[list[int], str, str, list[Any]]:
    found = await answer(engine, repeating(number), **asked)
    probabilities = [(token.logprob, *(value for _, _, value in token.top_logprobs)) for token in found.tokens]
    return found.ids, found.text, str(found.finish_reason), probabilities


async def test_whatever_is_asked_for_comes_as_it_comes_without(open_engine: OpenEngine, always: None) -> None:
    async with open_engine(speculation="lookup") as engine:
        found = [await ask(engine, number, asked) for number, asked in enumerate(ASKED)]
        together = await asyncio.gather(*(ask(engine, number, asked) for number, asked in enumerate(ASKED[:4])))
        stats = engine.stats()
        assert stats.proposed_tokens > stats.proposed_tokens_right > 20
    async with open_engine() as engine:
        expected = [await ask(engine, number, asked) for number, asked in enumerate(ASKED)]
    for one, other in zip((*found, *together), (*expected, *expected[:4]), strict=True):
        assert one[:3] == other[:3]
        for values, others in zip(one[3], other[3], strict=True):
            assert values == (None,) or np.allclose(values, others, atol=2e-3)


DRAWN: dict[str, Any] = {"max_tokens": 24, "temperature": 1.0, "seed": 8}  # an answer that repeats little


async def predicted(engine: Engine, prediction: list[int]) -> list[Token]:
    params = SamplingParams(ignore_eos=True, **DRAWN)
    return [token async for token in engine.stream(prompt_of(12), params, prediction=prediction)]


async def test_a_prediction_right_or_wrong_changes_no_token_and_is_counted(
    open_engine: OpenEngine, always: None
) -> None:
    async with open_engine(speculation="lookup") as engine:
        expected = (await answer(engine, prompt_of(12), **DRAWN)).ids
        assert len(set(expected)) > 8
        before = engine.stats()
        right = await predicted(engine, expected)
        after = engine.stats()
        edited = await predicted(engine, [*expected[:8], 500, 501, *expected[8:]])
        useless = await predicted(engine, [500] * 24)
        with pytest.raises(RequestError, match="token 100000"):
            await predicted(engine, [100_000])
    for tokens in (right, edited, useless):
        assert [token.id for token in tokens] == expected
    counts = [(tokens[-1].num_predicted_right, tokens[-1].num_predicted_wrong) for tokens in (right, edited, useless)]
    assert counts[0][0] > 12
    assert counts[0][0] <= after.proposed_tokens_right - before.proposed_tokens_right
    assert counts[1][0] > 8 and counts[1][1] > 0  # behind the edit too
    assert counts[2][0] == 0 and counts[2][1] > 0
    async with open_engine() as engine:
        off = await predicted(engine, expected)
    assert [token.id for token in off] == expected
    assert (off[-1].num_predicted_right, off[-1].num_predicted_wrong) == (0, 0)


async def test_sequences_that_lose_their_place_or_leave_change_nothing(open_engine: OpenEngine, always: None) -> None:
    tight = {"max_context": 128, "kv_cache_bytes": 1 << 19, "max_num_seqs": 4}

    async def ask_all(engine: Engine) -> list[list[int]]:
        jobs = [
            Job(repeating(number), SamplingParams(max_tokens=80, ignore_eos=True), 0, 80 if number % 3 else 9)
            for number in range(6)
        ]
        return await in_groups(engine, jobs, 4)

    async with open_engine(speculation="lookup", **tight) as engine:
        found = await ask_all(engine)
        speculation, stats = speculation_of(engine), engine.stats()
        assert speculation.num_right > 50
        assert stats.preemptions > 0
        assert (stats.running, stats.blocks_used) == (0, 0)
    async with open_engine(**tight) as engine:
        assert await ask_all(engine) == found


async def test_blocks_that_later_requests_share_have_no_wrong_tokens(open_engine: OpenEngine, always: None) -> None:
    async with open_engine(speculation="lookup") as engine:
        speculation = speculation_of(engine)
        for number in range(1, 9):  # how many are proposed depends on times, until some were wrong
            first = repeating(number)
            begun = await answer(engine, first, max_tokens=60)
            if speculation.num_proposed > speculation.num_right:
                break
        assert speculation.num_proposed > speculation.num_right > 10
        again = await answer(engine, [*first, *begun.ids], max_tokens=20)
        assert again.tokens[0].num_prompt_found > len(first) + 32
    async with open_engine(prefix_cache=False) as engine:
        assert (await answer(engine, [*first, *begun.ids], max_tokens=20)).ids == again.ids


async def test_nothing_is_proposed_to_models_whose_state_can_not_go_back(open_engine: OpenEngine) -> None:
    async with open_engine("lfm2", speculation="auto") as engine:
        assert engine._scheduler.speculation is None
    with pytest.raises(UnsupportedModelError, match=r"speculation lookup: a layer of .* keeps a state"):
        async with open_engine("lfm2", speculation="lookup"):
            pass
