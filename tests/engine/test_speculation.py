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
from unicorn_async.errors import RequestError
from unicorn_async.grammar import Grammar
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.step_costs import StepCosts
from unicorn_async.tokenizer import ChatMessage

from .answers import answer, prompt_of
from .invariance import Job, margin, run_job

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


@pytest.mark.parametrize("num_prompts", [50, pytest.param(200, marks=pytest.mark.whole("four times as many prompts"))])
async def test_prompts_have_the_answers_that_they_have_without(
    open_engine: OpenEngine, always: None, num_prompts: int
) -> None:
    async with open_engine(MODEL, speculation="lookup", max_num_seqs=16) as engine:
        reference = demo_answers()[0]
        logits = (await engine.logits(reference.prompt))[-len(reference.logits) :]
        logit_error = float(np.abs(logits - reference.logits).max())
        jobs, speculation = jobs_of(engine, num_prompts), speculation_of(engine)
        found = await in_groups(engine, jobs, 3)
        assert speculation.num_right > num_prompts / 2
        assert speculation.num_proposed - speculation.num_right > num_prompts / 4
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
    {"max_tokens": 40, "presence_penalty": -1.5, "frequency_penalty": -0.3, "repetition_penalty": 0.8},
    {"max_tokens": 60, "frequency_penalty": 0.02, "temperature": 0.4, "seed": 9},
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


@pytest.mark.parametrize("model", ["gemma3", "glm4_moe_lite"])
async def test_whatever_is_asked_for_comes_as_it_comes_without(
    model: str, open_engine: OpenEngine, always: None
) -> None:
    async with open_engine(model, speculation="lookup") as engine:
        found = [await ask(engine, number, asked) for number, asked in enumerate(ASKED)]
        together = await asyncio.gather(*(ask(engine, number, asked) for number, asked in enumerate(ASKED[:4])))
        stats = engine.stats()
        assert stats.proposed_tokens > stats.proposed_tokens_right > 20
    async with open_engine(model) as engine:
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


async def test_penalties_count_what_was_proposed_and_right(open_engine: OpenEngine, always: None) -> None:
    """Answers that repeat until what is counted of them turns them elsewhere: a token counted twice would show."""
    asked = [
        {"max_tokens": 60, "frequency_penalty": penalty, "repetition_penalty": 0.9, **chosen}
        for penalty in (0.05, 0.2)
        for chosen in ({}, {"temperature": 0.5, "seed": 4})
    ]
    async with open_engine(speculation="lookup") as engine:
        found = [(await answer(engine, repeating(number), **one)).ids for number, one in enumerate(asked)]
        speculation = speculation_of(engine)
        assert speculation.num_right > 40
        assert speculation.num_proposed - speculation.num_right > 20
        together = await asyncio.gather(*(answer(engine, repeating(n), **one) for n, one in enumerate(asked)))
    async with open_engine() as engine:
        expected = [(await answer(engine, repeating(number), **one)).ids for number, one in enumerate(asked)]
    assert found == expected
    assert [one.ids for one in together] == expected
    assert sum(len(set(ids)) > 5 for ids in expected) >= 2


PEOPLE = Grammar.json_schema(
    {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"name": {"enum": ["Ada", "Grace"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["name", "age"],
            "additionalProperties": False,
        },
        "minItems": 2,
        "maxItems": 2,
    }
)
GUIDED: list[dict[str, Any]] = [
    {"grammar": PEOPLE},
    {"grammar": PEOPLE, "temperature": 1.0, "seed": 3},
    {"grammar": PEOPLE, "temperature": 1.0, "seed": 4, "top_logprobs": 3, "frequency_penalty": 0.5},
    {"grammar": Grammar.regex("(the same words, ){4}end"), "temperature": 0.8, "seed": 5},
    {"temperature": 0.7, "seed": 6, "max_tokens": 20, "ignore_eos": True},
]


async def ask_guided(engine: Engine, asked: dict[str, Any]) -> list[Token]:
    prompt = engine.tokenizer.encode_chat([ChatMessage("user", "Who is there?")])
    return [token async for token in engine.stream(prompt, SamplingParams(**({"max_tokens": 128} | asked)))]


async def test_answers_with_a_grammar_are_the_same_in_fewer_steps(open_engine: OpenEngine, always: None) -> None:
    async with open_engine(MODEL, speculation="lookup") as engine:
        found = [await ask_guided(engine, asked) for asked in GUIDED]
        steps, stats = engine.stats().steps, engine.stats()
        assert stats.proposed_tokens_right > 30
        together = await asyncio.gather(*(ask_guided(engine, asked) for asked in GUIDED[1:]))
        assert len(engine._guides) == 0
        assert engine.stats().blocks_used == 0
    async with open_engine(MODEL) as engine:
        expected = [await ask_guided(engine, asked) for asked in GUIDED]
        assert steps < 0.75 * engine.stats().steps
    for one, other in zip((*found, *together), (*expected, *expected[1:]), strict=True):
        assert [token.id for token in one] == [token.id for token in other]
        assert one[-1].finish_reason == other[-1].finish_reason


async def test_an_answer_with_a_grammar_that_lost_its_place_goes_on_as_without(
    open_engine: OpenEngine, always: None
) -> None:
    tight = {"max_num_seqs": 3, "max_context": 128, "kv_cache_bytes": 1 << 19}
    grammar = Grammar.regex(r"([a-z]{4} [0-9]{4}, and so on\n){4}")
    asked = [{"grammar": grammar, "temperature": 1.0, "seed": number} for number in range(3)]
    async with open_engine(MODEL) as engine:
        together = await asyncio.gather(*(ask_guided(engine, one) for one in asked))
        expected = [[token.id for token in tokens] for tokens in together]
    async with open_engine(MODEL, speculation="lookup", **tight) as engine:
        found = await asyncio.gather(*(ask_guided(engine, one) for one in asked))
        assert [[token.id for token in tokens] for tokens in found] == expected
        assert engine.stats().preemptions > 0
        assert engine.stats().proposed_tokens_right > 0


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


STATEFUL: list[dict[str, Any]] = [
    {"max_tokens": 70},
    {"max_tokens": 90, "temperature": 1.0, "seed": 3},
    {"max_tokens": 50, "temperature": 0.7, "seed": 4, "top_k": 20, "frequency_penalty": 0.3},
    {"max_tokens": 30, "top_logprobs": 3},
]


def edited(ids: list[int]) -> list[int]:
    """An answer with a token more, or another one, every now and then."""
    found: list[int] = []
    for at, token in enumerate(ids):
        found += [500, token] if at % 13 == 7 else [501] if at % 17 == 11 else [token]
    return found


@pytest.mark.parametrize("model", ["lfm2", "qwen3_5"])
async def test_states_of_fixed_size_go_back_behind_wrong_tokens(
    model: str, open_engine: OpenEngine, always: None
) -> None:
    """One after the other and side by side, where places are lost; then a turn that goes on behind an answer."""
    tight = {"max_context": 256, "max_num_seqs": 4, "kv_cache_bytes": 1 << 19}

    async def ask_one(engine: Engine, number: int, prediction: list[int]) -> list[int]:
        params = SamplingParams(ignore_eos=True, **STATEFUL[number])
        return [token.id async for token in engine.stream(prompt_of(40, number), params, prediction=prediction)]

    numbers = range(len(STATEFUL))
    async with open_engine(model, **tight) as engine:
        expected = [await ask_one(engine, number, []) for number in numbers]
        turn = (*prompt_of(40, 1), *expected[1], 5, 6)
        behind = await answer(engine, turn, max_tokens=20)
    async with open_engine(model, speculation="auto", **tight) as engine:
        assert [await ask_one(engine, number, edited(expected[number])) for number in numbers] == expected
        speculation = speculation_of(engine)
        assert speculation.num_right > 100
        assert speculation.num_proposed - speculation.num_right > 50
        assert (await answer(engine, turn, max_tokens=20)).ids == behind.ids
        together = await asyncio.gather(*(ask_one(engine, number, edited(expected[number])) for number in numbers))
        assert together == expected
        assert (engine.stats().running, engine.stats().blocks_used) == (0, 0)


async def test_nothing_is_proposed_where_no_memory_is_left_to_take_it_back(
    open_engine: OpenEngine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unicorn_async.memory.states._SPARE_SHARE", 0.0)
    async with open_engine("lfm2", speculation="auto") as engine:
        assert engine._scheduler.speculation is None
        assert (await answer(engine, repeating(1), max_tokens=4)).ids
    assert "no tokens are proposed: a step that checks them needs 2 states of" in caplog.text
