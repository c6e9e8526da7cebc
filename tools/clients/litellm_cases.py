"""The litellm package: its provider for OpenAI-compatible servers, whole and streamed, tools, forms, Responses."""

from __future__ import annotations

import json
from typing import Any, Literal

import litellm
from cases import KEY, MODEL, URL, run
from pydantic import BaseModel

TO: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": KEY, "num_retries": 0}
MESSAGES: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a mile?"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "unit",
        "description": "Tells what a unit is.",
        "parameters": {
            "type": "object",
            "properties": {"kind": {"type": "string", "enum": ["metre", "mile"]}},
            "required": ["kind"],
        },
    },
}


class Verdict(BaseModel):
    verdict: Literal["good", "bad"]
    sure: bool


async def whole() -> None:
    answer = await litellm.acompletion(messages=MESSAGES, max_tokens=8, temperature=0.5, top_p=0.9, user="one", **TO)
    assert answer.choices[0].message.content
    assert 0 < answer.usage.completion_tokens <= 8


async def stream() -> None:
    answer = await litellm.acompletion(
        messages=MESSAGES, max_tokens=8, stream=True, stream_options={"include_usage": True}, **TO
    )
    chunks = [chunk async for chunk in answer]
    built: Any = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert built.choices[0].message.content
    assert built.usage.completion_tokens


async def tools_there_and_back() -> None:
    first = await litellm.acompletion(messages=MESSAGES, max_tokens=400, tools=[TOOL], tool_choice="required", **TO)
    message = first.choices[0].message
    result = {"role": "tool", "name": "unit", "content": "1.6 km"}
    results = [result | {"tool_call_id": call.id} for call in message.tool_calls]
    assert json.loads(message.tool_calls[0].function.arguments)["kind"] in ("metre", "mile")
    messages = [*MESSAGES, message.model_dump(), *results]
    assert (await litellm.acompletion(messages=messages, max_tokens=8, tools=[TOOL], **TO)).choices


async def tools_as_a_stream() -> None:
    arguments = ""
    async for chunk in await litellm.acompletion(
        messages=MESSAGES, max_tokens=400, tools=[TOOL], tool_choice="required", stream=True, **TO
    ):
        for call in chunk.choices[0].delta.tool_calls or ():
            if call.index == 0:
                arguments += call.function.arguments or ""
    assert json.loads(arguments)


async def response_format_of_a_class() -> None:
    answer = await litellm.acompletion(messages=MESSAGES, max_tokens=400, response_format=Verdict, **TO)
    Verdict.model_validate_json(answer.choices[0].message.content)


async def logprobs_and_n() -> None:
    answer = await litellm.acompletion(messages=MESSAGES, max_tokens=4, n=2, logprobs=True, top_logprobs=2, **TO)
    assert len(answer.choices) == 2
    assert answer.choices[0].logprobs.content


async def text_completion() -> None:
    to = TO | {"model": f"text-completion-openai/{MODEL}"}
    assert (await litellm.atext_completion(prompt="Once upon", max_tokens=8, **to)).choices[0].text


async def responses() -> None:
    answer: Any = await litellm.aresponses(input="Hi", max_output_tokens=8, **TO)
    assert answer.output
    kinds = [event.type async for event in await litellm.aresponses(input="Hi", max_output_tokens=8, stream=True, **TO)]
    assert kinds[-1] in ("response.completed", "response.incomplete")


async def errors_are_the_clients_own() -> None:
    try:
        await litellm.acompletion(messages=MESSAGES, **(TO | {"model": "openai/nobody"}))
    except litellm.NotFoundError:
        return
    raise AssertionError("a model that nobody has")


if __name__ == "__main__":
    run(
        "litellm",
        [
            whole,
            stream,
            tools_there_and_back,
            tools_as_a_stream,
            response_format_of_a_class,
            logprobs_and_n,
            text_completion,
            responses,
            errors_are_the_clients_own,
        ],
    )
