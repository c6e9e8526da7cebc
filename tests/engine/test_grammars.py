"""Answers that follow a grammar, beside others that don't."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import unicorn_async
from unicorn_async.engine.types import FinishReason
from unicorn_async.errors import ConfigError, GrammarError, GrammarLostError
from unicorn_async.grammar import Grammar
from unicorn_async.guidance.follower import Follower
from unicorn_async.guidance.process import GuidanceProcess
from unicorn_async.ops.subgroups import matrix_subgroup_size
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.tokenizer import ChatMessage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unicorn_async.engine.engine import Engine
    from unicorn_async.engine.types import Token

    from .conftest import OpenEngine

MODEL = Path(unicorn_async.__file__).parent / "demo" / "model"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


async def ask(engine: Engine, question: str = "What is 17 + 25?", **sampling: Any) -> list[Token]:
    prompt = engine.tokenizer.encode_chat([ChatMessage("user", question)])
    return [token async for token in engine.stream(prompt, SamplingParams(**({"max_tokens": 128} | sampling)))]


async def ended(answer: AsyncIterator[Token]) -> None:
    async for _ in answer:
        pass


def text_of(tokens: list[Token]) -> str:
    return "".join(token.text for token in tokens)


async def test_answers_fit_their_grammars_and_end_where_these_do(open_engine: OpenEngine) -> None:
    kinds = {
        "schema": Grammar.json_schema(PERSON),
        "choice": Grammar.choice(["yes", "no", "perhaps"]),
        "regex": Grammar.regex(r"[a-c]{3}-\d{4}"),
        "lark": Grammar.lark('start: "(" sum ")"\nsum: NUMBER ("+" NUMBER){2}\nNUMBER: /[0-9]{1,3}/'),
        "object": Grammar.json_object(),
    }
    async with open_engine(MODEL) as engine:
        for temperature in (0.0, 1.0):
            asked = (ask(engine, grammar=grammar, temperature=temperature, seed=7) for grammar in kinds.values())
            tokens = dict(zip(kinds, await asyncio.gather(*asked), strict=True))
            texts = {kind: text_of(found) for kind, found in tokens.items()}
            assert json.loads(texts["schema"]).keys() == {"name", "age"}
            assert texts["choice"] in ("yes", "no", "perhaps")
            assert re.fullmatch(r"[a-c]{3}-\d{4}", texts["regex"])
            assert re.fullmatch(r"\(\d+\+\d+\+\d+\)", texts["lark"])
            for kind, found in tokens.items():
                if kind != "object":  # which may go on for as long as the model likes
                    assert found[-1].finish_reason is FinishReason.STOP, kind
        assert len(engine._guides) == 0


async def test_others_get_what_they_get_alone(open_engine: OpenEngine) -> None:
    async with open_engine(MODEL) as engine:
        alone = await ask(engine, temperature=0.8, seed=3, ignore_eos=True, max_tokens=60)
        constrained = [ask(engine, grammar=Grammar.json_schema(PERSON), seed=n, temperature=1.0) for n in range(3)]
        beside, *found = await asyncio.gather(
            ask(engine, temperature=0.8, seed=3, ignore_eos=True, max_tokens=60), *constrained
        )
        assert [token.id for token in beside] == [token.id for token in alone]
        again = await asyncio.gather(
            *(ask(engine, grammar=Grammar.json_schema(PERSON), seed=n, temperature=1.0) for n in range(3))
        )
        if matrix_subgroup_size(engine.device) is None:  # else kernels of other sizes round otherwise
            assert [text_of(tokens) for tokens in found] == [text_of(tokens) for tokens in again]


async def test_an_answer_that_gave_up_its_place_goes_on_where_its_grammar_stood(open_engine: OpenEngine) -> None:
    grammar = Grammar.regex(r"([a-z]{4} [0-9]{4}\n){12}")
    async with open_engine(MODEL) as engine:
        alone = [text_of(await ask(engine, grammar=grammar, seed=n, temperature=1.0)) for n in range(4)]
    tight = {"max_num_seqs": 4, "max_context": 256, "kv_cache_bytes": 1 << 20}
    async with open_engine(MODEL, **tight) as engine:
        beside = await asyncio.gather(*(ask(engine, grammar=grammar, seed=n, temperature=1.0) for n in range(4)))
        assert [text_of(tokens) for tokens in beside] == alone
        assert engine.stats().preemptions > 0


async def test_everything_goes_together(open_engine: OpenEngine) -> None:
    """Penalties, filters, a seed, log-probabilities and stop strings: twice the same, and always within the grammar."""
    schema = {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 4, "maxItems": 6}
    sampling: dict[str, Any] = {
        "grammar": Grammar.json_schema(schema),
        "temperature": 1.3,
        "top_p": 0.95,
        "top_k": 50,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "top_logprobs": 20,
    }
    async with open_engine(MODEL) as engine:
        for seed in range(5):
            first, second = [await ask(engine, seed=seed, **sampling) for _ in range(2)]
            for one, again in zip(first, second, strict=True):  # which begins behind what the first one has computed
                assert (one.id, one.text, one.finish_reason) == (again.id, again.text, again.finish_reason)
                assert one.logprob == pytest.approx(again.logprob, abs=1e-2)
            assert 4 <= len(json.loads(text_of(first))) <= 6
            for token in first:
                total = sum(2.718281828**logprob for _, _, logprob in token.top_logprobs)
                assert token.logprob is not None and token.logprob <= 1e-4
                assert total < 1.001
                if len(token.top_logprobs) < 20:  # these are all that might come
                    assert total == pytest.approx(1.0, abs=1e-3)
                    assert token.id in {token_id for token_id, _, _ in token.top_logprobs}
            stopped = await ask(engine, seed=seed, stop=('", "', '","', '" ,'), **sampling)
            assert text_of(stopped).startswith("[") and stopped[-1].finish_reason is FinishReason.STOP
            assert text_of(first).startswith(text_of(stopped))


async def test_a_long_answer_is_cut_off(open_engine: OpenEngine) -> None:
    async with open_engine(MODEL) as engine:
        found = await ask(engine, grammar=Grammar.regex("x{500}"), max_tokens=5)
        assert found[-1].finish_reason is FinishReason.LENGTH
        assert set(text_of(found)) == {"x"}


async def test_what_has_ended_leaves_no_matcher_behind(open_engine: OpenEngine) -> None:
    async with open_engine(MODEL) as engine:
        grammar, guides = Grammar.regex("x{300}"), engine._guides

        async def begin(count: int) -> None:
            prompt = engine.tokenizer.encode_chat([ChatMessage("user", "Hi")])
            stream = engine.stream(prompt, SamplingParams(max_tokens=200, grammar=grammar))
            for _ in range(count):
                await anext(stream)
            await stream.aclose()

        await asyncio.gather(*(begin(count) for count in range(6)))
        await guides.settle(120.0)
        assert (len(guides), guides.is_busy) == (0, False)
        assert engine.stats().running == 0
        tasks = [asyncio.create_task(ask(engine, grammar=grammar)) for _ in range(6)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(guides) == 0
        await ask(engine, max_tokens=2)


async def unanswered(followers: set[Follower]) -> None:
    """Return when one was asked what it does not answer: not even with what it had written before."""
    waiting: set[tuple[Follower, int]] = set()
    while not waiting:
        waiting = {(follower, number) for follower in followers for number in follower._replies}
        for _ in range(5):  # turns of the loop, which reads what is there
            await asyncio.sleep(0.01)
        waiting &= {(follower, number) for follower in followers for number in follower._replies}


async def test_a_process_that_ends_fails_who_needed_it_and_is_started_again(
    open_engine: OpenEngine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[Follower] = set()
    ask_it = Follower.ask
    monkeypatch.setattr(Follower, "ask", lambda follower, request: asked.add(follower) or ask_it(follower, request))
    async with open_engine(MODEL) as engine:
        other = asyncio.create_task(ask(engine, ignore_eos=True, max_tokens=100))
        prompt = engine.tokenizer.encode_chat([ChatMessage("user", "Hi")])
        caught = engine.stream(prompt, SamplingParams(max_tokens=200, grammar=Grammar.regex("x{300}")))
        await anext(caught)
        process = engine._guides.process
        assert process is not None
        os.killpg(process.pid, signal.SIGSTOP)
        rest = asyncio.create_task(ended(caught))
        await unanswered(asked)
        os.killpg(process.pid, signal.SIGKILL)
        with pytest.raises(GrammarLostError, match="has ended"):
            await rest
        assert text_of(await ask(engine, grammar=Grammar.choice(["again"]))) == "again"
        assert len(await other) == 100
    assert "the process that follows a grammar has ended" in caplog.text


async def test_a_grammar_that_finds_the_process_ended_before_anybody_saw_it_has_another_one(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuidanceProcess, "has_ended", property(lambda process: process._is_closed))
    async with open_engine(MODEL) as engine:
        await engine.check_grammar(Grammar.choice(["before"]))
        first = engine._guides.process
        assert first is not None
        os.killpg(first.pid, signal.SIGKILL)
        await asyncio.to_thread(os.waitid, os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
        await engine.check_grammar(Grammar.choice(["again"]))
        assert engine._guides.process is not first
        assert engine.outages == {}


async def test_a_process_that_cannot_be_started_is_an_outage_until_one_is(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    grammar = Grammar.choice(["again"])
    async with open_engine(MODEL) as engine:
        with monkeypatch.context() as patch:
            patch.setattr("unicorn_async.guidance.process.subprocess.Popen", none)
            with pytest.raises(GrammarLostError) as caught:
                await engine.check_grammar(grammar)
        assert engine.outages == {"grammars": str(caught.value)}
        assert len(await ask(engine, max_tokens=2, ignore_eos=True)) == 2
        await engine.check_grammar(grammar)
        assert engine.outages == {}


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (Grammar.json_schema({"type": "strin"}), "strin"),
        (Grammar.json_schema('{"type"'), "not JSON"),
        (Grammar.json_schema(False), "Unsatisfiable"),
        (Grammar.json_schema({"type": "string", "not": {"const": "a"}}), "not"),
        (Grammar.regex("(a"), "regex"),
        (Grammar.lark("start: nothing"), "nothing"),
    ],
)
async def test_a_grammar_that_cant_be_used_is_refused(open_engine: OpenEngine, grammar: Grammar, reason: str) -> None:
    async with open_engine(MODEL) as engine:
        for refused in (engine.check_grammar(grammar), ask(engine, grammar=grammar)):
            with pytest.raises(GrammarError, match=reason):
                await refused
        assert len(engine._guides) == 0


async def test_an_engine_without_a_tokenizer_has_no_grammars(open_engine: OpenEngine) -> None:
    async with open_engine(MODEL, skip_tokenizer=True) as engine:
        with pytest.raises(ConfigError, match="skip_tokenizer"):
            await engine.check_grammar(Grammar.choice(["a"]))
