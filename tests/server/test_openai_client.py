"""The official client, unmodified, against the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import openai
import pytest

from unicorn_async.engine.types import FinishReason, Token
from unicorn_async.errors import PromptTooLongError, QueueFullError
from unicorn_async.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.server.conftest import Served
    from tests.server.fake_engine import FakeEngine

MODEL = "fake-model"


@pytest.fixture
async def client(served: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


async def test_responses_stream_over_http(client: openai.AsyncOpenAI) -> None:
    events = [event async for event in await client.responses.create(model=MODEL, input="Hi", stream=True)]
    assert [event.type for event in events if event.type != "response.output_text.delta"] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert deltas == ["Hello", " there,", " friend"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "Hello there, friend"
    usage = last.response.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (2, 4, 6)


async def test_the_responses_stream_helper_sees_the_final_response(client: openai.AsyncOpenAI) -> None:
    async with client.responses.stream(model=MODEL, input="Hi") as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.output_text == "Hello there, friend"


async def test_a_background_response_is_retrieved_as_a_stream(client: openai.AsyncOpenAI) -> None:
    begun = await client.responses.create(model=MODEL, input="Hi", background=True)
    assert begun.background is True
    whole = [event async for event in await client.responses.retrieve(begun.id, stream=True)]
    rest = [event async for event in await client.responses.retrieve(begun.id, stream=True, starting_after=3)]
    assert [event.sequence_number for event in rest] == list(range(4, len(whole)))
    assert rest[-1].type == "response.completed"
    assert (await client.responses.cancel(begun.id)).status == "completed"


async def test_a_response_that_has_ended_is_retrieved_as_a_stream(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    whole = await client.responses.create(model=MODEL, input="Hi", top_logprobs=0)
    events = [event async for event in await client.responses.retrieve(whole.id, stream=True)]
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(9))
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response == whole
    with pytest.raises(openai.BadRequestError, match="with skip_missing"):  # not with the numbers that they had
        await client.responses.retrieve(whole.id, stream=True, starting_after=3)


async def test_a_model_without_a_chat_template_says_what_it_takes(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.fake_tokenizer.has_chat_template = False
    with pytest.raises(openai.BadRequestError, match="/v1/completions") as caught:
        await client.responses.create(model=MODEL, input="Hi")
    assert caught.value.code == "no_chat_template"
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}])


async def test_responses_without_a_stream(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    response = await client.responses.create(
        model=MODEL,
        instructions="Be brief.",
        input=[{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=20,
        metadata={"a": "b"},
        extra_body={"top_k": 7, "seed": (1 << 64) - 1, "min_p": 0.1, "repetition_penalty": 1.1, "stop": "END"},
    )
    assert response.status == "completed"
    assert response.output_text == "Hello there, friend"
    assert response.metadata == {"a": "b"}
    assert engine.calls[0].request_id == response.id
    assert engine.calls[0].sampling == SamplingParams(
        max_tokens=20,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        repetition_penalty=1.1,
        seed=(1 << 64) - 1,
        stop=("END",),
    )
    roles = [(message.role, message.content) for message in engine.fake_tokenizer.conversations[0]]
    assert roles == [("system", "Be brief."), ("user", "Hi")]


async def test_responses_over_the_websocket(client: openai.AsyncOpenAI) -> None:
    async with client.responses.connect() as connection:
        await connection.response.create(model=MODEL, input="Hi")
        deltas = []
        async for event in connection:
            if event.type == "response.output_text.delta":
                deltas.append(event.delta)
            elif event.type == "response.completed":
                assert event.response.output_text == "".join(deltas) == "Hello there, friend"
                break


async def test_websocket_continues_an_unstored_response(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    async with client.responses.connect() as connection:
        await connection.response.create(model=MODEL, input="Hi", store=False, instructions="Once.")
        first = None
        async for event in connection:
            if event.type == "response.completed":
                first = event.response.id
                break
        assert first is not None
        await connection.response.create(model=MODEL, input="More", previous_response_id=first)
        async for event in connection:
            if event.type == "response.completed":
                break
    said = [(message.role, message.content) for message in engine.fake_tokenizer.conversations[-1]]
    assert said == [("user", "Hi"), ("assistant", "Hello there, friend"), ("user", "More")]


async def test_chat_completion_streams(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "Hello there, friend"
    assert chunks[-2].choices[0].finish_reason == "stop"
    usage = chunks[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (5, 4)


async def test_chat_completion_without_a_stream_ends_by_length(client: openai.AsyncOpenAI) -> None:
    completion = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_completion_tokens=2
    )
    assert completion.choices[0].message.content == "Hello there,"
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 2


async def test_chat_completion_gives_logprobs(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.fake_tokenizer.pieces = {1: b"\xc3", 2: b"\xa9"}
    engine.script = [
        Token(1, "", -0.5, ((1, "\ufffd", -0.5), (3, "<3>", float("-inf")))),  # the first byte shows nothing yet
        Token(2, "é", -0.25, finish_reason=FinishReason.LENGTH),
    ]
    completion = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}], logprobs=True, top_logprobs=2
    )
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [(entry.token, entry.logprob) for entry in logprobs.content] == [("\ufffd", -0.5), ("\ufffd", -0.25)]
    assert b"".join(bytes(entry.bytes or ()) for entry in logprobs.content) == "é".encode()
    top = logprobs.content[0].top_logprobs
    assert [(entry.token, entry.logprob, entry.bytes) for entry in top] == [
        ("\ufffd", -0.5, [0xC3]),
        ("<3>", -9999.0, list(b"<3>")),
    ]
    assert engine.calls[0].sampling.top_logprobs == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_leave_out_what_a_stop_string_cut_off(
    client: openai.AsyncOpenAI, engine: FakeEngine, stream: bool
) -> None:
    """Three tokens "a" and one "b" for the stop string "aab": the first "a" is the answer."""
    engine.script = [
        Token(1, "", -0.1, num_unseen=1),
        Token(2, "", -0.2, num_unseen=2),
        Token(3, "a", -0.3, num_unseen=2),
        Token(4, "", -0.4, finish_reason=FinishReason.STOP, num_unseen=3),
    ]
    if not stream:
        completion = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], stop="aab", logprobs=True
        )
        found = completion.choices[0].logprobs
        assert found is not None
        entries = found.content or []
    else:
        entries = []
        async for event in await client.responses.create(
            model=MODEL, input="Hi", stream=True, include=["message.output_text.logprobs"]
        ):
            if event.type == "response.output_text.done":
                entries = list(event.logprobs)  # type: ignore[arg-type]
    assert [(entry.token, entry.logprob) for entry in entries] == [("<1>", -0.1)]


async def test_responses_give_logprobs_in_deltas_and_in_the_end(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.script = [Token(1, "a", -0.5), Token(2, "", -0.25, finish_reason=FinishReason.STOP, num_unseen=1)]
    stream = await client.responses.create(
        model=MODEL, input="Hi", stream=True, include=["message.output_text.logprobs"]
    )
    events = [event async for event in stream]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [entry.token for entry in deltas[0].logprobs] == ["<1>"]
    done = [event for event in events if event.type == "response.output_text.done"]
    assert [entry.token for entry in done[0].logprobs] == ["<1>"]


async def test_models_are_listed(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError, match="not served here"):
        await client.models.retrieve("other")


async def test_a_stored_response_can_be_read_continued_and_deleted(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    first = await client.responses.create(model=MODEL, input="Hi")
    assert (await client.responses.retrieve(first.id)).output_text == "Hello there, friend"
    await client.responses.create(model=MODEL, input="More", previous_response_id=first.id)
    assert [message.role for message in engine.fake_tokenizer.conversations[-1]] == ["user", "assistant", "user"]
    await client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model=MODEL, input="More", previous_response_id=first.id)
    assert caught.value.code == "previous_response_not_found"


async def test_refusals_are_http_errors_before_a_stream_begins(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.refuse = QueueFullError("256 requests wait already")
    with pytest.raises(openai.RateLimitError, match="256 requests"):
        await client.responses.create(model=MODEL, input="Hi", stream=True)
    engine.refuse = PromptTooLongError("too long")
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}])
    assert caught.value.code == "context_length_exceeded"


async def test_a_prompt_longer_than_the_context_never_reaches_the_engine(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.max_context = 3
    with pytest.raises(openai.BadRequestError, match="a context of 3"):
        await client.responses.create(model=MODEL, input="one two three")
    assert engine.calls == []


async def test_another_model_is_refused_by_name(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="fake-model"):
        await client.responses.create(model="gpt-9", input="Hi")


async def test_cancelling_over_http_ends_the_stream(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    import asyncio

    engine.hold[2] = asyncio.Event()
    kinds = []
    async for event in await client.responses.create(model=MODEL, input="Hi", stream=True):
        kinds.append(event.type)
        if event.type == "response.output_text.delta" and event.delta == " there,":
            cancelled = await client.responses.cancel(engine.calls[0].request_id or "")
            assert cancelled.status == "cancelled"
            assert cancelled.output_text == "Hello there,"
    assert kinds[-1] == "response.incomplete"
    assert engine.calls[0].closed.is_set()


async def test_what_shows_nothing_is_in_no_delta_and_not_in_the_end(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.script = [Token(1, "a", -0.5), Token(2, "", -0.25, finish_reason=FinishReason.LENGTH)]
    stream = await client.responses.create(model=MODEL, input="Hi", stream=True, top_logprobs=0)
    events = [event async for event in stream]
    deltas = [entry.token for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    done = next(event for event in events if event.type == "response.output_text.done")
    assert deltas == [entry.token for entry in done.logprobs] == ["<1>"]
