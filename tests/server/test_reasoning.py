"""Thoughts of a model, apart from its answer, and how much a request has it think; with the official client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai
import pytest

from unicorn_async.engine.types import FinishReason, Token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.server.conftest import Served
    from tests.server.fake_engine import FakeEngine

MODEL = "fake-model"
CHAT: list[Any] = [{"role": "user", "content": "Hi"}]
PIECES = ["<think>", "\n", "Why", "?", "\n", "</think>", "\n\n", "Yes", "."]


def script(pieces: list[str], reason: FinishReason = FinishReason.STOP) -> list[Token]:
    tokens = [Token(number, piece, -0.1 * number) for number, piece in enumerate(pieces)]
    return [*tokens, Token(99, "", -0.9, finish_reason=reason, num_unseen=1)]


@pytest.fixture
async def client(served: Served, engine: FakeEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    engine.fake_tokenizer.thinks = True
    engine.fake_tokenizer.template_names = frozenset({"enable_thinking"})
    engine.script = script(PIECES)
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


async def test_a_response_has_its_thoughts_as_an_item(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    events = [
        event
        async for event in await client.responses.create(
            model=MODEL, input="Hi", stream=True, reasoning={"effort": "high"}
        )
    ]
    assert [event.type.removeprefix("response.") for event in events[2:]] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    response = last.response
    thoughts, message = response.output
    assert thoughts.type == "reasoning" and message.type == "message"
    assert thoughts.content is not None
    assert (thoughts.content[0].text, thoughts.status, thoughts.summary) == ("Why?", "completed", [])
    assert response.output_text == "Yes."
    usage = response.usage
    assert usage is not None
    assert (usage.output_tokens, usage.output_tokens_details.reasoning_tokens) == (10, 6)
    assert response.reasoning is not None
    assert response.reasoning.effort == "high"
    assert engine.fake_tokenizer.options[-1]["variables"] == {"enable_thinking": True}
    replayed = [event async for event in await client.responses.retrieve(response.id, stream=True)]
    assert [event.type for event in replayed if event.type.endswith("text.delta")] == [
        "response.reasoning_text.delta",
        "response.output_text.delta",
    ]


async def test_an_answer_goes_on_without_its_thoughts(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    first = await client.responses.create(model=MODEL, input="Hi")
    await client.responses.create(model=MODEL, input="More", previous_response_id=first.id)
    said = [message.content for message in engine.fake_tokenizer.conversations[-1]]
    assert said == ["Hi", "Yes.", "More"]


async def test_thoughts_that_are_cut_off_are_incomplete(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.script = script(PIECES[:4], FinishReason.LENGTH)
    response = await client.responses.create(model=MODEL, input="Hi")
    assert [(item.type, item.status) for item in response.output] == [("reasoning", "incomplete")]  # type: ignore[union-attr]
    assert response.status == "incomplete"
    engine.script = script(PIECES[:6])  # nothing is said
    response = await client.responses.create(model=MODEL, input="Hi")
    assert [item.type for item in response.output] == ["reasoning"]
    engine.script = script([])
    response = await client.responses.create(model=MODEL, input="Hi")
    assert [item.type for item in response.output] == ["message"]


async def test_log_probabilities_are_of_the_answer_alone(client: openai.AsyncOpenAI) -> None:
    response = await client.responses.create(model=MODEL, input="Hi", top_logprobs=0)
    message = response.output[-1]
    assert message.type == "message"
    part = message.content[0]
    assert part.type == "output_text"
    assert [entry.token for entry in part.logprobs or ()] == ["<6>", "<7>", "<8>"]
    chat = await client.chat.completions.create(model=MODEL, messages=CHAT, logprobs=True)
    found = chat.choices[0].logprobs
    assert found is not None
    assert [entry.token for entry in found.content or ()] == ["<6>", "<7>", "<8>"]


async def test_a_chat_has_its_thoughts_beside_the_content(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    completion = await client.chat.completions.create(model=MODEL, messages=CHAT, reasoning_effort="none")
    message: Any = completion.choices[0].message
    assert (message.reasoning_content, message.content) == ("Why?", "Yes.")
    usage = completion.usage
    assert usage is not None and usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 6
    assert engine.fake_tokenizer.options[-1]["variables"] == {"enable_thinking": False}
    thought = answer = ""
    async for chunk in await client.chat.completions.create(model=MODEL, messages=CHAT, stream=True):
        delta: Any = chunk.choices[0].delta
        thought += getattr(delta, "reasoning_content", None) or ""
        answer += delta.content or ""
    assert (thought, answer) == ("Why?", "Yes.")


async def test_thoughts_begin_where_the_prompt_has_the_mark(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.fake_tokenizer.pieces = {1: b"<think>\n"}  # the prompt is tokens 0 and 1
    engine.script = script(PIECES[2:])
    response = await client.responses.create(model=MODEL, input="Hi")
    assert (len(response.output), response.output_text) == (2, "Yes.")


async def test_marks_stay_in_the_text_where_that_is_wanted(client: openai.AsyncOpenAI) -> None:
    response = await client.responses.create(model=MODEL, input="Hi", extra_body={"reasoning_format": "none"})
    assert response.output_text == "".join(PIECES)


@pytest.mark.parametrize(
    ("thinks", "names", "effort", "variables"),
    [
        (True, {"thinking"}, "low", {"thinking": True}),
        (True, {"enable_thinking", "reasoning_effort"}, "low", {"enable_thinking": True, "reasoning_effort": "low"}),
        (True, {"enable_thinking", "reasoning_effort"}, "none", {"enable_thinking": False}),
        (False, {"reasoning_effort"}, "high", {"reasoning_effort": "high"}),
        (True, set(), "medium", {}),
        (False, set(), "none", {}),
        (True, set(), "none", None),
        (False, set(), "low", None),
    ],
)
async def test_effort_is_what_the_template_has_of_it(
    client: openai.AsyncOpenAI,
    engine: FakeEngine,
    thinks: bool,
    names: set[str],
    effort: Any,
    variables: dict[str, object] | None,
) -> None:
    engine.fake_tokenizer.thinks = thinks
    engine.fake_tokenizer.template_names = frozenset(names)
    if variables is not None:
        await client.responses.create(model=MODEL, input="Hi", reasoning={"effort": effort})
        assert engine.fake_tokenizer.options[-1]["variables"] == variables
        return
    with pytest.raises(openai.BadRequestError, match="before it answers") as caught:
        await client.responses.create(model=MODEL, input="Hi", reasoning={"effort": effort})
    assert caught.value.param == "reasoning.effort"
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=MODEL, messages=CHAT, reasoning_effort=effort)
    assert caught.value.param == "reasoning_effort"


async def test_what_a_request_says_to_the_template_goes_before_its_effort(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    await client.chat.completions.create(
        model=MODEL,
        messages=CHAT,
        reasoning_effort="high",
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    assert engine.fake_tokenizer.options[-1]["variables"] == {"enable_thinking": False}
