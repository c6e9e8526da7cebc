"""The openai package: Responses over SSE and the websocket, chat, completions, tools, parsed answers."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import TYPE_CHECKING, Annotated, Any, Literal

import openai
from cases import KEY, MODEL, URL, run
from pydantic import BaseModel, Field

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENT = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["c", "f"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": PARAMETERS,
    "strict": True,
}
CHAT_TOOL: Any = {"type": "function", "function": {key: value for key, value in TOOL.items() if key != "type"}}
USER: Any = [{"role": "user", "content": "How is the weather in Oslo?"}]


class Step(BaseModel):
    name: Literal["first", "second"]
    done: bool


class Plan(BaseModel):
    title: Literal["short", "long"]
    steps: Annotated[list[Step], Field(max_length=2)]
    best: Step | None


def running() -> bool:
    """Whether the server answers a request; one that nobody else asks."""
    with urllib.request.urlopen(f"{URL}/health") as answer:
        return bool(json.load(answer)["stats"]["running"])


def idle() -> bool:
    return not running()


async def until(condition: Callable[[], bool]) -> None:
    """Ask until it is so; a case has a limit of time."""
    while not await asyncio.to_thread(condition):
        pass


async def models_are_listed_and_retrieved() -> None:
    listed = [model.id async for model in CLIENT.models.list()]
    assert MODEL in listed
    assert (await CLIENT.models.retrieve(MODEL)).id == MODEL


async def responses_whole() -> None:
    response = await CLIENT.responses.create(model=MODEL, input="Hi", max_output_tokens=8, instructions="Be brief.")
    assert response.status in ("completed", "incomplete")
    assert response.usage is not None
    assert response.usage.output_tokens <= 8


async def responses_stream() -> None:
    text = ""
    async for event in await CLIENT.responses.create(model=MODEL, input="Hi", max_output_tokens=8, stream=True):
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type in ("response.completed", "response.incomplete"):
            assert event.response.output_text == text
            return
    raise AssertionError("no last event")


async def responses_stream_helper() -> None:
    async with CLIENT.responses.stream(model=MODEL, input="Hi", max_output_tokens=8) as stream:
        kinds = [event.type async for event in stream]
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")


async def responses_over_the_websocket() -> None:
    async with CLIENT.responses.connect() as connection:
        for _ in range(2):
            await connection.response.create(model=MODEL, input="Hi", max_output_tokens=8)
            text = ""
            async for event in connection:
                assert event.type != "error", event
                if event.type == "response.output_text.delta":
                    text += event.delta
                if event.type in ("response.completed", "response.incomplete"):
                    assert event.response.output_text == text
                    break


async def responses_are_compacted() -> None:
    first = await CLIENT.responses.create(model=MODEL, input="I am Ada.", max_output_tokens=8)
    compacted = await CLIENT.responses.compact(model=MODEL, input="Who am I?", previous_response_id=first.id)
    assert [item.type for item in compacted.output] == ["message", "message", "compaction"]
    assert 0 < compacted.usage.output_tokens <= 1024
    following: Any = [*compacted.output, {"role": "user", "content": "Go on."}]
    response = await CLIENT.responses.create(model=MODEL, input=following, max_output_tokens=8)
    assert response.status in ("completed", "incomplete")
    try:
        forged: Any = [{"type": "compaction", "encrypted_content": "gAAAAAB"}]
        await CLIENT.responses.create(model=MODEL, input=forged)
    except openai.BadRequestError as exc:
        assert exc.param == "input[0].encrypted_content"
    else:
        raise AssertionError("a compaction of another server was taken")


async def responses_go_on_with_previous_response_id() -> None:
    first = await CLIENT.responses.create(model=MODEL, input="I am Ada.", max_output_tokens=8)
    second = await CLIENT.responses.create(
        model=MODEL, input="Who am I?", previous_response_id=first.id, max_output_tokens=8
    )
    assert second.previous_response_id == first.id
    assert first.usage is not None and second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    items = [item async for item in await CLIENT.responses.input_items.list(second.id)]
    assert len(items) == 3
    await CLIENT.responses.delete(first.id)
    try:
        await CLIENT.responses.retrieve(first.id)
    except openai.NotFoundError:
        return
    raise AssertionError("a deleted response is there")


async def a_stored_response_is_retrieved_whole_and_as_a_stream() -> None:
    made = await CLIENT.responses.create(model=MODEL, input="Hi", max_output_tokens=8)
    assert (await CLIENT.responses.retrieve(made.id)).output_text == made.output_text
    events = [event async for event in await CLIENT.responses.retrieve(made.id, stream=True)]
    assert events[-1].response.output_text == made.output_text


async def a_background_response_is_taken_up_again_and_cancelled() -> None:
    made = await CLIENT.responses.create(
        model=MODEL, input="Hi", max_output_tokens=200, background=True, extra_body={"ignore_eos": False}
    )
    async for event in await CLIENT.responses.retrieve(made.id, stream=True):
        if event.sequence_number == 4:
            break
    await CLIENT.responses.cancel(made.id)
    last = await CLIENT.responses.retrieve(made.id)
    assert last.status in ("cancelled", "completed"), last.status


async def a_stream_that_is_left_ends() -> None:
    stream = await CLIENT.responses.create(model=MODEL, input="Hi", max_output_tokens=500, stream=True)
    async for _ in stream:
        break
    await stream.close()
    endless = {"ignore_eos": True}
    whole = CLIENT.chat.completions.create(model=MODEL, messages=USER, max_tokens=1500, extra_body=endless)
    task = asyncio.create_task(whole)
    await until(running)
    task.cancel()
    await until(idle)


async def responses_parse() -> None:
    response = await CLIENT.responses.parse(model=MODEL, input="Plan.", text_format=Plan, max_output_tokens=400)
    assert isinstance(response.output_parsed, Plan)


async def responses_parse_as_a_stream() -> None:
    async with CLIENT.responses.stream(model=MODEL, input="Plan.", text_format=Plan, max_output_tokens=400) as stream:
        async for _ in stream:
            pass
        assert isinstance((await stream.get_final_response()).output_parsed, Plan)


async def responses_tools_there_and_back() -> None:
    first = await CLIENT.responses.create(
        model=MODEL, input=USER, tools=[TOOL], tool_choice="required", max_output_tokens=200, parallel_tool_calls=False
    )
    call = first.output[-1]
    assert call.type == "function_call"
    assert set(json.loads(call.arguments)) == {"city", "unit"}
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    conversation: Any = [*USER, *first.output, result]
    for kwargs in ({"input": [result], "previous_response_id": first.id}, {"input": conversation}):
        second = await CLIENT.responses.create(model=MODEL, tools=[TOOL], max_output_tokens=8, **kwargs)
        assert second.error is None


async def responses_tools_as_a_stream() -> None:
    arguments = ""
    async with CLIENT.responses.stream(
        model=MODEL,
        input=USER,
        tools=[TOOL],
        tool_choice={"type": "function", "name": "weather"},
        max_output_tokens=200,
    ) as stream:
        async for event in stream:
            if event.type == "response.function_call_arguments.delta":
                arguments += event.delta
            if event.type == "response.function_call_arguments.done":
                assert event.arguments == arguments
    assert json.loads(arguments)


async def responses_logprobs() -> None:
    response = await CLIENT.responses.create(
        model=MODEL, input="Hi", max_output_tokens=4, include=["message.output_text.logprobs"], top_logprobs=3
    )
    content: Any = response.output[0]
    assert content.content[0].logprobs[0].top_logprobs


async def responses_input_tokens_are_counted() -> None:
    counted = await CLIENT.responses.input_tokens.count(model=MODEL, input="Hi")
    made = await CLIENT.responses.create(model=MODEL, input="Hi", max_output_tokens=1)
    assert made.usage is not None
    assert counted.input_tokens == made.usage.input_tokens


async def chat_whole_and_n() -> None:
    answer = await CLIENT.chat.completions.create(
        model=MODEL, messages=USER, max_completion_tokens=8, n=2, seed=1, temperature=1.0, stop=["zzz"], user="someone"
    )
    assert [choice.index for choice in answer.choices] == [0, 1]


async def chat_stream_with_usage() -> None:
    text, usage = "", None
    stream = await CLIENT.chat.completions.create(
        model=MODEL, messages=USER, max_tokens=8, stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        usage = chunk.usage or usage
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert text
    assert usage is not None and 0 < usage.completion_tokens <= 8


async def chat_parse() -> None:
    answer = await CLIENT.chat.completions.parse(model=MODEL, messages=USER, response_format=Plan, max_tokens=400)
    assert isinstance(answer.choices[0].message.parsed, Plan)


async def chat_stream_helper_parses() -> None:
    async with CLIENT.chat.completions.stream(
        model=MODEL, messages=USER, response_format=Plan, max_tokens=400
    ) as stream:
        async for _ in stream:
            pass
        assert isinstance((await stream.get_final_completion()).choices[0].message.parsed, Plan)


async def chat_tools_there_and_back() -> None:
    first = await CLIENT.chat.completions.create(
        model=MODEL, messages=USER, tools=[CHAT_TOOL], tool_choice="required", max_tokens=200
    )
    assert first.choices[0].finish_reason == "tool_calls"
    message = first.choices[0].message
    assert message.tool_calls
    call: Any = message.tool_calls[0]
    assert json.loads(call.function.arguments)
    messages: Any = [
        *USER,
        message.model_dump(exclude_none=True),
        *({"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls),
    ]
    second = await CLIENT.chat.completions.create(model=MODEL, messages=messages, tools=[CHAT_TOOL], max_tokens=8)
    assert second.choices[0].finish_reason


async def chat_tools_are_parsed_from_a_stream() -> None:
    tool: Any = openai.pydantic_function_tool(Step, name="step")
    named: Any = {"type": "function", "function": {"name": "step"}}
    async with CLIENT.chat.completions.stream(
        model=MODEL, messages=USER, tools=[tool], tool_choice=named, max_tokens=200
    ) as stream:
        async for _ in stream:
            pass
        completion = await stream.get_final_completion()
    calls = completion.choices[0].message.tool_calls
    assert calls and isinstance(calls[0].function.parsed_arguments, Step)


async def chat_logprobs() -> None:
    answer = await CLIENT.chat.completions.create(
        model=MODEL, messages=USER, max_tokens=4, logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content and len(logprobs.content[0].top_logprobs) == 2


async def completions_whole_and_stream() -> None:
    answer = await CLIENT.completions.create(model=MODEL, prompt="Once upon", max_tokens=8, echo=True)
    assert answer.choices[0].text.startswith("Once upon")
    stream = await CLIENT.completions.create(model=MODEL, prompt=["A", "B"], max_tokens=4, stream=True)
    assert {choice.index async for chunk in stream for choice in chunk.choices} == {0, 1}


async def errors_are_the_clients_own() -> None:
    for call, kind in (
        (CLIENT.responses.create(model="nobody", input="Hi"), openai.NotFoundError),
        (CLIENT.chat.completions.create(model=MODEL, messages=[]), openai.BadRequestError),
        (CLIENT.responses.retrieve("resp_none"), openai.NotFoundError),
        (CLIENT.responses.create(model=MODEL, input="Hi", temperature=-1), openai.BadRequestError),
    ):
        try:
            await call
        except kind:
            continue
        raise AssertionError(kind.__name__)


def the_synchronous_client() -> Any:
    with openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY) as client:
        stream = client.responses.create(model=MODEL, input="Hi", max_output_tokens=4, stream=True)
        assert [event.type for event in stream][-1] in ("response.completed", "response.incomplete")
        with client.chat.completions.with_streaming_response.create(
            model=MODEL, messages=USER, max_tokens=4
        ) as response:
            assert response.headers["x-request-id"]
            assert response.parse().choices
    return asyncio.sleep(0)


if __name__ == "__main__":
    run(
        "openai",
        [
            models_are_listed_and_retrieved,
            responses_whole,
            responses_stream,
            responses_stream_helper,
            responses_over_the_websocket,
            responses_are_compacted,
            responses_go_on_with_previous_response_id,
            a_stored_response_is_retrieved_whole_and_as_a_stream,
            a_background_response_is_taken_up_again_and_cancelled,
            a_stream_that_is_left_ends,
            responses_parse,
            responses_parse_as_a_stream,
            responses_tools_there_and_back,
            responses_tools_as_a_stream,
            responses_logprobs,
            responses_input_tokens_are_counted,
            chat_whole_and_n,
            chat_stream_with_usage,
            chat_parse,
            chat_stream_helper_parses,
            chat_tools_there_and_back,
            chat_tools_are_parsed_from_a_stream,
            chat_logprobs,
            completions_whole_and_stream,
            errors_are_the_clients_own,
            the_synchronous_client,
        ],
    )
