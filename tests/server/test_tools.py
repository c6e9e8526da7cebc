"""Tools: the official client, unmodified, against scripted answers and the demo model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel

import unicorn_async
from tests.engine.conftest import device_info, model_directory, open_engine
from tests.server.conftest import serving
from unicorn_async.engine.types import FinishReason, Token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.engine.conftest import OpenEngine
    from tests.server.conftest import Served
    from tests.server.fake_engine import FakeEngine

__all__ = ["device_info", "model_directory", "open_engine"]  # fixtures

DEMO = Path(unicorn_async.__file__).parent / "demo" / "model"
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "name": "weather", "description": "Looks out.", "parameters": WEATHER, "strict": True},
    {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}, "strict": False},
]
CHAT_TOOLS: list[Any] = [
    {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}} for tool in TOOLS
]
CHAT: list[Any] = [{"role": "user", "content": "How is the weather?"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern", "days": 2}}\n</tool_call>'
ARGUMENTS = {"city": "Bern", "days": 2}


def script(text: str, size: int = 5) -> list[Token]:
    pieces = [Token(index, text[start : start + size]) for index, start in enumerate(range(0, len(text), size))]
    return [*pieces, Token(99, "", finish_reason=FinishReason.STOP)]


@pytest.fixture
async def client(served: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


@pytest.fixture
async def demo(open_engine: OpenEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        open_engine(DEMO, model_name="demo", max_context=2048) as engine,
        serving(engine) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        yield client


async def test_a_call_is_streamed_as_deltas_of_its_arguments(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.script = script(f"Let me look.\n{CALL}")
    events = [
        event async for event in await client.responses.create(model="fake-model", input="Hi", tools=TOOLS, stream=True)
    ]
    kinds = [event.type for event in events]
    assert [kind for index, kind in enumerate(kinds) if kind != kinds[index - 1]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    added = [event for event in events if event.type == "response.output_item.added"][1]
    assert added.output_index == 1 and added.item.type == "function_call"
    assert (added.item.name, added.item.arguments, added.item.status) == ("weather", "", "in_progress")
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 3 and json.loads("".join(deltas)) == ARGUMENTS
    done = next(event for event in events if event.type == "response.function_call_arguments.done")
    assert done.arguments == "".join(deltas) and done.item_id == added.item.id
    last = events[-1]
    assert last.type == "response.completed"
    message, call = last.response.output
    assert last.response.output_text == "Let me look." and message.type == "message"
    assert call.type == "function_call" and call.status == "completed" and call.arguments == done.arguments
    assert [tool.name for tool in last.response.tools if tool.type == "function"] == ["weather", "now"]


async def test_a_conversation_goes_on_with_what_the_tool_returned(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.script = script(CALL * 2)
    first = await client.responses.create(model="fake-model", input="Hi", tools=TOOLS)
    calls = [item for item in first.output if item.type == "function_call"]
    assert len(calls) == 2 and first.output_text == ""
    engine.script = script("Fine.")
    results: list[Any] = [
        {"type": "function_call_output", "call_id": call.call_id, "output": f"sun {index}"}
        for index, call in enumerate(calls)
    ]
    second = await client.responses.create(
        model="fake-model", previous_response_id=first.id, input=results, tools=TOOLS
    )
    assert second.output_text == "Fine."
    said = [(message.role, message.content) for message in engine.fake_tokenizer.conversations[-1]]
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern", "days": 2}}\n</tool_call>'
    assert [role for role, _ in said] == ["system", "user", "assistant", "user"]
    assert '"name": "weather"' in said[0][1] and said[2][1] == f"{call}\n{call}"
    assert said[3][1] == "\n".join(f"<tool_response>\nsun {index}\n</tool_response>" for index in range(2))
    whole: list[Any] = [{"role": "user", "content": "Hi"}, *(call.model_dump() for call in calls), *results]
    await client.responses.create(model="fake-model", input=whole, tools=TOOLS)
    assert engine.fake_tokenizer.conversations[-1] == engine.fake_tokenizer.conversations[-2]
    with pytest.raises(openai.BadRequestError, match="no call 'call_x'"):
        await client.responses.create(
            model="fake-model", input=[{"type": "function_call_output", "call_id": "call_x", "output": "?"}]
        )


async def test_a_template_with_tools_gets_them_and_its_form_is_read(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.fake_tokenizer.chat_template = "{% if tools %}[AVAILABLE_TOOLS][TOOL_CALLS][{"
    engine.fake_tokenizer.control = {"[TOOL_CALLS]": 500}
    engine.script = [Token(500, ""), *script('[{"name": "weather", "arguments": {"city": "Bern", "days": 2}}]')]
    completion = await client.chat.completions.create(model="fake-model", messages=CHAT, tools=CHAT_TOOLS)
    choice = completion.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert choice.message.tool_calls is not None
    call = choice.message.tool_calls[0]
    assert call.type == "function" and json.loads(call.function.arguments) == ARGUMENTS
    told: Any = engine.fake_tokenizer.options[-1]["tools"]
    assert [tool["function"]["name"] for tool in told] == ["weather", "now"]
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "sun"}]}
    engine.script = script("Fine.")
    again = await client.chat.completions.create(
        model="fake-model", messages=[*CHAT, choice.message.to_dict(), result], tools=CHAT_TOOLS
    )
    assert again.choices[0].finish_reason == "stop" and again.choices[0].message.content == "Fine."
    assistant, tool = engine.fake_tokenizer.conversations[-1][1:]
    assert assistant.tool_calls[0].id == tool.tool_call_id == call.id[-9:]


async def test_a_template_that_writes_calls_and_tells_of_no_tools_has_its_form_told_by_the_system_text(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.fake_tokenizer.chat_template = "{% if message['tool_calls'] is defined %}<｜tool▁calls▁begin｜>"
    written = (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Bern", "days": 2}<｜tool▁call▁end｜>'
    )
    engine.script = script(f"Let me look.{written}<｜tool▁calls▁end｜>")
    completion = await client.chat.completions.create(model="fake-model", messages=CHAT, tools=CHAT_TOOLS)
    message = completion.choices[0].message
    assert message.content == "Let me look." and message.tool_calls is not None
    call = message.tool_calls[0]
    assert call.type == "function" and json.loads(call.function.arguments) == ARGUMENTS
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "sun"}
    engine.script = script("Fine.")
    await client.chat.completions.create(
        model="fake-model", messages=[*CHAT, message.to_dict(), result], tools=CHAT_TOOLS
    )
    assert "tools" not in engine.fake_tokenizer.options[-1]
    system, _, assistant, tool = engine.fake_tokenizer.conversations[-1]
    assert (
        "<｜tool▁call▁begin｜>function_name<｜tool▁sep｜>{" in system.content and '"name": "weather"' in system.content
    )
    assert (assistant.content, assistant.tool_calls[0].name) == ("Let me look.", "weather")
    assert (tool.role, tool.content) == ("tool", "sun")


async def test_chat_chunks_have_calls_by_their_index(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.script = script(f"{CALL}\n{CALL}")
    async with client.chat.completions.stream(model="fake-model", messages=CHAT, tools=CHAT_TOOLS) as stream:
        kinds = [event.type async for event in stream]
        completion = await stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    calls = completion.choices[0].message.tool_calls
    assert calls is not None and len(calls) == 2 and calls[0].id != calls[1].id
    assert all(call.function.parsed_arguments == ARGUMENTS for call in calls)
    assert completion.choices[0].finish_reason == "tool_calls"
    engine.script = script(f"{CALL}\n{CALL}")
    one = await client.chat.completions.create(
        model="fake-model", messages=CHAT, tools=CHAT_TOOLS, parallel_tool_calls=False
    )
    assert len(one.choices[0].message.tool_calls or ()) == 1


async def test_without_tools_nothing_is_a_call(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    for options in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        engine.script = script(CALL)
        response = await client.responses.create(model="fake-model", input="Hi", **options)  # type: ignore[call-overload]
        assert response.output_text == CALL


async def test_a_call_that_is_cut_off_is_incomplete(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.script = [*script(CALL[:-30])[:-1], Token(7, "", finish_reason=FinishReason.LENGTH)]
    response = await client.responses.create(model="fake-model", input="Hi", tools=TOOLS)
    assert response.status == "incomplete"
    assert response.output[0].type == "function_call" and response.output[0].status == "incomplete"


@pytest.mark.parametrize("length", [6, 15, len(CALL) - 30])
async def test_a_forced_call_that_is_cut_off_leaves_no_text(
    client: openai.AsyncOpenAI, engine: FakeEngine, length: int
) -> None:
    engine.script = [*script(CALL[:length])[:-1], Token(7, "", finish_reason=FinishReason.LENGTH)]
    response = await client.responses.create(model="fake-model", input="Hi", tools=TOOLS, tool_choice="required")
    assert response.status == "incomplete"
    kinds = ["function_call"] if length > 30 else []
    assert [item.type for item in response.output] == kinds
    completion = await client.chat.completions.create(
        model="fake-model", messages=CHAT, tools=CHAT_TOOLS, tool_choice="required"
    )
    choice = completion.choices[0]
    assert choice.finish_reason == "length" and not choice.message.content
    assert [call.type for call in choice.message.tool_calls or ()] == (["function"] if kinds else [])


async def test_calls_over_the_websocket(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.script = script(CALL)
    async with client.responses.connect() as connection:
        await connection.response.create(model="fake-model", input="Hi", tools=TOOLS, store=False)
        first = ""
        async for event in connection:
            assert event.type != "error", event
            if event.type == "response.completed":
                first = event.response.id
                call = event.response.output[0]
                break
        assert call.type == "function_call"
        engine.script = script("Fine.")
        await connection.response.create(
            model="fake-model",
            previous_response_id=first,
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sun"}],
            tools=TOOLS,
        )
        async for event in connection:
            assert event.type != "error", event
            if event.type == "response.completed":
                assert event.response.output_text == "Fine."
                break


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"weather", "now"}),
        ({"type": "function", "name": "weather"}, {"weather"}),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}, {"now"}),
    ],
)
async def test_a_forced_call_comes_and_fits(
    demo: openai.AsyncOpenAI, choice: Any, names: set[str], seeds: range
) -> None:
    for seed in seeds:
        response = await demo.responses.create(
            model="demo", input="Hi", tools=TOOLS, tool_choice=choice, temperature=1.0, extra_body={"seed": seed},
            parallel_tool_calls=False, max_output_tokens=300,
        )  # fmt: skip
        if response.status == "incomplete":  # arguments without a schema may go on
            continue
        (call,) = response.output
        assert call.type == "function_call" and call.name in names
        arguments = json.loads(call.arguments)
        if call.name == "weather":
            jsonschema.validate(arguments, WEATHER)


class Weather(BaseModel):
    city: Literal["Bern", "Rome"]
    is_tomorrow: bool


async def test_chat_calls_are_parsed(demo: openai.AsyncOpenAI) -> None:
    completion = await demo.chat.completions.parse(
        model="demo", messages=CHAT, tools=[openai.pydantic_function_tool(Weather)], tool_choice="required",
        temperature=1.0, parallel_tool_calls=False,
    )  # fmt: skip
    calls = completion.choices[0].message.tool_calls
    assert calls is not None
    assert isinstance(calls[0].function.parsed_arguments, Weather)
    assert completion.choices[0].finish_reason == "tool_calls"


async def test_tools_and_a_form_of_the_answer_go_together(demo: openai.AsyncOpenAI, seeds: range) -> None:
    for seed in seeds:
        response = await demo.responses.parse(
            model="demo", input="Hi", tools=TOOLS[:1], text_format=Weather, temperature=1.0, extra_body={"seed": seed}
        )
        item = response.output[0]
        if item.type == "function_call":
            jsonschema.validate(json.loads(item.arguments), WEATHER)
        else:
            assert response.output_parsed is not None


async def test_schemas_of_tools_that_cant_be_used_are_named(demo: openai.AsyncOpenAI) -> None:
    wrong: Any = {"type": "function", "name": "wrong", "parameters": {"type": "strin"}, "strict": True}
    with pytest.raises(openai.BadRequestError, match="strin") as caught:
        await demo.responses.create(model="demo", input="Hi", tools=[TOOLS[1], wrong], tool_choice="required")
    assert (caught.value.code, caught.value.param) == ("invalid_function_parameters", "tools[1].parameters")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [5]}, "tools[0]"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "a", "parameters": []}]}, "tools[0].parameters"),
    ({"tools": [{"type": "function", "name": "a", "parameters": {"type": "string"}}]}, "tools[0].parameters"),
    ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1]"),
    ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
    ({"tools": TOOLS, "tool_choice": {"type": "mcp"}}, "tool_choice.type"),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "x", "tools": []}}, "tool_choice.mode"),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.tools"),
    ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"tools": TOOLS, "structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call", "call_id": "c"}]}, "input[0].name"),
]


@pytest.mark.parametrize(("extra", "param"), REFUSED)
async def test_refusals_name_the_field(served: Served, engine: FakeEngine, extra: dict[str, Any], param: str) -> None:
    async with httpx.AsyncClient(base_url=served.url) as client:
        answer = await client.post("/v1/responses", json={"input": "Hi", **extra})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert not engine.calls
