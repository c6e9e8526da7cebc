"""Completions of plain text, and several answers to one request, with the official client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from tests.server.conftest import serving
from tests.server.fake_engine import words
from unicorn_async.engine.types import FinishReason, Token
from unicorn_async.errors import DeviceLostError, ParameterError, PromptTooLongError, QueueFullError
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.server import ServerOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.server.conftest import Served
    from tests.server.fake_engine import FakeEngine

MODEL = "fake-model"
CHAT: list[Any] = [{"role": "user", "content": "Hi"}]
TEXT = "Hello there, friend"


@pytest.fixture
async def client(served: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


@pytest.fixture
async def plain(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=served.url) as made:
        yield made


async def test_a_text_is_continued(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    completion = await client.completions.create(
        model=MODEL,
        prompt="Once upon",
        max_tokens=3,
        stop=["END"],
        seed=7,
        logit_bias={"50": -100, "7": 2},
        extra_body={"stop_token_ids": [5], "ignore_eos": True, "top_k": 3, "min_tokens": 2},
    )
    assert (completion.choices[0].text, completion.choices[0].finish_reason) == (TEXT, "length")
    usage = completion.usage
    assert usage is not None and usage.completion_tokens_details is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (2, 3, 5)
    assert (completion.system_fingerprint or "").startswith("fp_")
    assert engine.fake_tokenizer.texts == [("Once upon", True, True)]
    assert engine.calls[0].sampling == SamplingParams(
        max_tokens=3,
        stop=("END",),
        seed=7,
        stop_token_ids=(5,),
        ignore_eos=True,
        top_k=3,
        min_tokens=2,
        logit_bias={50: -100.0, 7: 2.0},
    )


async def test_tokens_that_the_model_lacks_are_refused_by_the_fields_name(
    plain: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.refuse = ParameterError("logit_bias", "expected token ids, 0 to 511, got 512")
    bias = {"logit_bias": {"512": 1}}
    for path, body in (
        ("completions", {"prompt": "a"}),
        ("chat/completions", {"messages": CHAT}),
        ("responses", {"input": "a"}),
    ):
        reply = await plain.post(f"/v1/{path}", json=body | bias)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"], error["code"]) == (400, "logit_bias", "invalid_value")
        assert "got 512" in error["message"]


async def test_a_text_is_streamed_with_its_usage(client: openai.AsyncOpenAI) -> None:
    stream = await client.completions.create(
        model=MODEL, prompt="Hi", stream=True, echo=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == f"Hi{TEXT}"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4
    assert len({chunk.id for chunk in chunks}) == 1


async def test_prompts_are_texts_or_tokens_or_several(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.fake_tokenizer.pieces = {3: b"abc"}
    for prompt, expected in (
        ([3, 3], [[3, 3]]),
        (["one", "two words"], [[0], [0, 1]]),
        ([[3], [3, 4]], [[3], [3, 4]]),
    ):
        engine.calls.clear()
        completion = await client.completions.create(model=MODEL, prompt=prompt)  # type: ignore[arg-type]
        assert [call.prompt for call in engine.calls] == expected
        assert [choice.index for choice in completion.choices] == list(range(len(expected)))
        assert completion.usage is not None
        assert completion.usage.prompt_tokens == sum(map(len, expected))
    echoed = await client.completions.create(model=MODEL, prompt=[3, 3], echo=True, max_tokens=1)
    assert echoed.choices[0].text == "abcabcHello"


async def test_n_answers_have_seeds_of_their_own(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    completion = await client.completions.create(model=MODEL, prompt=["a", "b"], n=2, seed=(1 << 64) - 1)
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    assert [call.sampling.seed for call in engine.calls] == [(1 << 64) - 1, 0] * 2
    assert len({call.request_id for call in engine.calls}) == 4


async def test_the_likeliest_of_several_are_given(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    scripts = iter([[-0.9, -0.9], [-0.1, -0.1, -0.1], [-0.5]])

    def script() -> list[Token]:
        values = next(scripts)
        tokens = [Token(number, f"{value}", value) for number, value in enumerate(values)]
        return [*tokens[:-1], tokens[-1]._replace(finish_reason=FinishReason.STOP)]

    engine.next_script = script
    completion = await client.completions.create(model=MODEL, prompt="a", n=2, best_of=3)
    assert [choice.text for choice in completion.choices] == ["-0.1-0.1-0.1", "-0.5"]
    assert [choice.index for choice in completion.choices] == [0, 1]
    assert completion.choices[0].logprobs is None
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 6  # all that were made


async def test_log_probabilities_of_a_text(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.fake_tokenizer.pieces = {1: b"a\xc3", 2: b"\xa9", 3: b"b", 4: b"c", 5: b"c"}
    engine.script = [
        Token(1, "a", -0.5, ((1, "", -0.5), (3, "b", -1.0)), num_unseen=0),
        Token(2, "é", -0.25, text_offset=1),
        Token(3, "b", -0.75, ((4, "c", -0.5), (5, "c", -1.5)), finish_reason=FinishReason.LENGTH, text_offset=2),
    ]
    whole = (await client.completions.create(model=MODEL, prompt="x", logprobs=2)).choices[0].logprobs
    assert whole is not None
    assert whole.tokens == [r"bytes:\x61\xc3", r"bytes:\xa9", "b"]
    assert (whole.token_logprobs, whole.text_offset) == ([-0.5, -0.25, -0.75], [0, 1, 2])
    assert whole.top_logprobs == [
        {r"bytes:\x61\xc3": -0.5, "b": -1.0},
        {r"bytes:\xa9": -0.25},
        {"c": -0.5, "b": -0.75},
    ]
    offsets: list[int] = []
    async for chunk in await client.completions.create(model=MODEL, prompt="x", logprobs=2, stream=True):
        found = chunk.choices[0].logprobs
        offsets += (found.text_offset or []) if found is not None else []
    assert offsets == [0, 1, 2]


STATS = "stream_options.continuous_usage_stats"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [1, -1]}, "prompt[0]"),
    ({"prompt": [[1], [True]]}, "prompt[1]"),
    ({"prompt": ["a"] * 129}, "prompt"),
    ({"prompt": ["a"] * 65, "n": 2}, "prompt"),
    ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "n": 3, "best_of": 2}, "best_of"),
    ({"prompt": "a", "best_of": 2, "stream": True}, "best_of"),
    ({"prompt": "a", "echo": True, "logprobs": 1}, "logprobs"),
    ({"prompt": "a", "logprobs": 21}, "logprobs"),
    ({"prompt": "a", "logit_bias": {"-1": 5}}, "logit_bias"),
    ({"prompt": "a", "min_tokens": 17}, "min_tokens"),
    ({"prompt": "a", "stop_token_ids": ["a"]}, "stop_token_ids"),
    ({"prompt": "a", "stop_token_ids": [1] * 129}, "stop_token_ids"),
    ({"prompt": "a", "ignore_eos": 1}, "ignore_eos"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
    ({"prompt": "a", "messages": []}, "messages"),
    ({"prompt": "a", "stream": True, "stream_options": {"continuous_usage_stats": True}}, STATS),
]


@pytest.mark.parametrize(("body", "param"), REFUSED)
async def test_refusals_name_the_parameter(
    plain: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any], param: str
) -> None:
    response = await plain.post("/v1/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert engine.calls == []


async def test_the_prompt_alone_comes_without_the_engine(
    client: openai.AsyncOpenAI, plain: httpx.AsyncClient, engine: FakeEngine
) -> None:
    whole = await client.completions.create(model=MODEL, prompt=["Hi you", "Hi"], echo=True, max_tokens=0)
    assert [(choice.text, choice.finish_reason) for choice in whole.choices] == [("Hi you", "length"), ("Hi", "length")]
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (3, 0)
    chunks = [
        chunk
        async for chunk in await client.completions.create(
            model=MODEL, prompt="Hi", echo=True, max_tokens=0, stream=True
        )
    ]
    assert [(chunk.choices[0].text, chunk.choices[0].finish_reason) for chunk in chunks] == [
        ("Hi", None),
        ("", "length"),
    ]
    assert engine.calls == []


async def test_each_chunk_has_the_usage_so_far_where_that_is_wanted(client: openai.AsyncOpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    text = await client.completions.create(model=MODEL, prompt="Hi you", stream=True, stream_options=options)
    chat = await client.chat.completions.create(model=MODEL, messages=CHAT, stream=True, stream_options=options)
    for stream, first in ((text, [1, 2, 3]), (chat, [0, 1, 2, 3])):
        counts = []
        async for chunk in stream:  # type: ignore[attr-defined]
            assert chunk.usage.prompt_tokens == 2
            counts.append(chunk.usage.completion_tokens)
        assert counts == [*first, 4, 4]
        assert chunk.usage.total_tokens == 6


async def test_a_model_without_a_chat_template_completes(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.fake_tokenizer.has_chat_template = False
    assert (await client.completions.create(model=MODEL, prompt="a")).choices[0].text == TEXT


async def test_a_chat_has_several_answers(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    completion = await client.chat.completions.create(model=MODEL, messages=CHAT, n=3)
    assert [choice.message.content for choice in completion.choices] == [TEXT] * 3
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    usage = completion.usage
    assert usage is not None and usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (2, 12)
    assert usage.prompt_tokens_details.cached_tokens == 0
    assert completion.system_fingerprint


async def test_what_was_found_of_prompts_is_in_the_usage(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.script = [Token(1, "a", finish_reason=FinishReason.STOP, num_prompt_found=2)]
    chat = (await client.chat.completions.create(model=MODEL, messages=CHAT, n=2)).usage
    text = (await client.completions.create(model=MODEL, prompt=["a b c", "d e"], n=2)).usage
    response = (await client.responses.create(model=MODEL, input="Hi")).usage
    assert chat is not None and text is not None and response is not None
    found = [usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens for usage in (chat, text)]
    assert (*found, response.input_tokens_details.cached_tokens) == (2, 4, 2)


async def test_a_prediction_goes_to_the_engine_and_what_became_of_it_to_the_usage(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.script = [
        Token(1, "a", num_predicted_right=1),
        Token(2, "b", finish_reason=FinishReason.STOP, num_predicted_right=5, num_predicted_wrong=3),
    ]
    parts: list[Any] = [{"type": "text", "text": "one two "}, {"type": "text", "text": "three"}]
    for content in ("one two three", parts):
        said: Any = {"type": "content", "content": content}
        usage = (await client.chat.completions.create(model=MODEL, messages=CHAT, n=2, prediction=said)).usage
        assert usage is not None and usage.completion_tokens_details is not None
        details = usage.completion_tokens_details
        assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (10, 6)
        assert usage.completion_tokens == 4
        assert [list(call.prediction) for call in engine.calls[-2:]] == [[0, 1, 2]] * 2
    assert engine.fake_tokenizer.texts == [("one two three", False, False)] * 2
    await client.chat.completions.create(model=MODEL, messages=CHAT)
    assert engine.calls[-1].prediction == []


async def test_a_prediction_longer_than_the_context_is_refused_by_its_name(
    plain: httpx.AsyncClient, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*_: object, **options: object) -> list[int]:
        raise PromptTooLongError(f"no room in {options['max_context']}")

    monkeypatch.setattr(engine.fake_tokenizer, "encode", encode)
    body = {"messages": CHAT, "prediction": {"type": "content", "content": "x"}}
    response = await plain.post("/v1/chat/completions", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "prediction.content")
    assert "context of 1000 tokens" in error["message"]
    assert engine.calls == []


async def test_a_chats_answers_are_streamed_side_by_side(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL, messages=CHAT, n=2, stream=True, stream_options={"include_usage": True}
    )
    texts = {0: "", 1: ""}
    ends = []
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends += [choice.index] if choice.finish_reason else []
        usage = chunk.usage
    assert (texts, sorted(ends)) == ({0: TEXT, 1: TEXT}, [0, 1])
    assert usage is not None
    assert usage.completion_tokens == 8


async def test_one_that_is_refused_leaves_none_behind(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.hold[0] = asyncio.Event()
    engine.refuse_after = 2
    engine.refuse = QueueFullError("2 requests wait already")
    with pytest.raises(openai.RateLimitError):
        await client.chat.completions.create(model=MODEL, messages=CHAT, n=3)
    assert [call.closed.is_set() for call in engine.calls] == [True, True]


async def test_one_that_fails_fails_the_request(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.fail[1] = DeviceLostError("gone")
    with pytest.raises(openai.InternalServerError, match="gone"):
        await client.chat.completions.create(model=MODEL, messages=CHAT, n=2)
    assert [call.closed.is_set() for call in engine.calls] == [True, True]


async def test_who_goes_away_cancels_all_answers(served: Served, engine: FakeEngine) -> None:
    engine.hold[1] = asyncio.Event()
    engine.script = words("a b c")
    async with httpx.AsyncClient(base_url=served.url) as client:
        body = {"prompt": "a", "n": 2, "stream": True}
        async with client.stream("POST", "/v1/completions", json=body) as response:
            async for _ in response.aiter_lines():
                break
    async with asyncio.timeout(120):
        for call in engine.calls:
            await call.closed.wait()


@pytest.mark.parametrize("wanted", [True, False])
async def test_what_a_request_leaves_out_is_as_the_model_recommends(engine: FakeEngine, wanted: bool) -> None:
    engine.recommended_sampling = {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1}
    async with (
        serving(engine, ServerOptions(recommended_sampling=wanted)) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        await client.completions.create(model=MODEL, prompt="a", temperature=0)
        await client.chat.completions.create(model=MODEL, messages=CHAT, extra_body={"top_k": 5})
        response = await client.responses.create(model=MODEL, input="a", extra_body={"top_k": 0})
    found = [(call.sampling.temperature, call.sampling.top_k) for call in engine.calls]
    assert found == ([(0, 20), (0.6, 5), (0.6, 0)] if wanted else [(0, 0), (0, 5), (0, 0)])
    assert response.temperature == (0.6 if wanted else 0)
