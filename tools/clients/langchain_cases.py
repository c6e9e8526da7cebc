"""The langchain-openai package: ChatOpenAI by chat and by Responses, OpenAI for completions, an agent."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal

import openai
from cases import KEY, MODEL, URL, run
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field, SecretStr

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Verdict(BaseModel):
    """What is thought of it."""

    verdict: Literal["good", "bad"] = Field(description="the verdict")
    sure: bool


@tool
def unit(kind: Literal["metre", "mile"]) -> str:
    """Tells what a unit is."""
    return f"a {kind} is a length"


def model(by_responses: bool, **kwargs: Any) -> ChatOpenAI:
    settings: dict[str, Any] = {"max_tokens": 400, "temperature": 0.7, "max_retries": 0} | kwargs
    return ChatOpenAI(
        model=MODEL, base_url=f"{URL}/v1", api_key=SecretStr(KEY), use_responses_api=by_responses, **settings
    )


async def invoke(by_responses: bool) -> None:
    answer = await model(by_responses).ainvoke([SystemMessage("Be brief."), HumanMessage("Hi")])
    assert isinstance(answer, AIMessage)
    assert answer.usage_metadata is not None and answer.usage_metadata["output_tokens"]


async def conversation(by_responses: bool) -> None:
    chat = model(by_responses)
    first = await chat.ainvoke("I am Ada.")
    second = await chat.ainvoke([HumanMessage("I am Ada."), first, HumanMessage("Who am I?")])
    assert second.response_metadata


async def stream(by_responses: bool) -> None:
    chunks = [chunk async for chunk in model(by_responses, stream_usage=True).astream("Hi")]
    assert len(chunks) > 1
    assert any(chunk.usage_metadata for chunk in chunks)


async def bind_tools(by_responses: bool) -> None:
    chat = model(by_responses).bind_tools([unit], tool_choice="required")
    question = HumanMessage("What is a mile?")
    call = await chat.ainvoke([question])
    assert call.tool_calls[0]["name"] == "unit"
    results = [ToolMessage(unit.invoke(found["args"]), tool_call_id=found["id"]) for found in call.tool_calls]
    last = await model(by_responses).bind_tools([unit]).ainvoke([question, call, *results])
    assert isinstance(last, AIMessage)


async def bind_tools_as_a_stream(by_responses: bool) -> None:
    whole = None
    async for chunk in model(by_responses).bind_tools([unit], tool_choice="unit").astream("What is a mile?"):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert whole.tool_calls[0]["args"]["kind"] in ("metre", "mile")


async def structured_output_by_schema(by_responses: bool) -> None:
    answer = await model(by_responses).with_structured_output(Verdict, method="json_schema").ainvoke("Is tea good?")
    assert isinstance(answer, Verdict)


async def structured_output_by_schema_as_a_stream(by_responses: bool) -> None:
    found = [part async for part in model(by_responses).with_structured_output(Verdict).astream("Is tea good?")]
    assert isinstance(found[-1], Verdict)


async def structured_output_by_a_function(by_responses: bool) -> None:
    chat = model(by_responses).with_structured_output(Verdict, method="function_calling")
    assert isinstance(await chat.ainvoke("Is tea good?"), Verdict)


async def json_mode(by_responses: bool) -> None:
    chat = model(by_responses).with_structured_output(None, method="json_mode", include_raw=True)
    with contextlib.suppress(openai.LengthFinishReasonError):  # a small model may never end an object
        assert (await chat.ainvoke("A JSON object, please."))["raw"]


async def agent(by_responses: bool) -> None:
    found = await create_agent(model(by_responses), [unit], system_prompt="Be brief.").ainvoke(
        {"messages": [HumanMessage("What is a mile?")]}, {"recursion_limit": 6}
    )
    assert found["messages"]


async def logprobs_and_penalties() -> None:
    chat = model(False, logprobs=True, top_logprobs=2, seed=3, n=1, stop=["zzz"])
    assert (await chat.ainvoke("Hi")).response_metadata["logprobs"]["content"]


async def completions() -> None:
    plain = OpenAI(model=MODEL, base_url=f"{URL}/v1", api_key=SecretStr(KEY), max_tokens=8, max_retries=0)
    assert await plain.ainvoke("Once upon")


async def previous_responses() -> None:
    chat = model(True, use_previous_response_id=True)
    first = await chat.ainvoke("I am Ada.")
    assert await chat.ainvoke([HumanMessage("I am Ada."), first, HumanMessage("Who am I?")])


def of(by_responses: bool, kind: Callable[[bool], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    async def case() -> None:
        await kind(by_responses)

    case.__name__ = f"{kind.__name__} by {'Responses' if by_responses else 'chat'}"
    return case


if __name__ == "__main__":
    kinds = (
        invoke,
        conversation,
        stream,
        bind_tools,
        bind_tools_as_a_stream,
        structured_output_by_schema,
        structured_output_by_schema_as_a_stream,
        structured_output_by_a_function,
        json_mode,
        agent,
    )
    both = [of(by_responses, kind) for by_responses in (False, True) for kind in kinds]
    run("langchain-openai", [*both, logprobs_and_penalties, completions, previous_responses])
