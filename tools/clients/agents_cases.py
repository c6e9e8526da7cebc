"""The openai-agents package: tools, handoffs, output types and streams, by Responses and by chat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    handoff,
    set_tracing_disabled,
)
from cases import KEY, MODEL, URL, run
from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agents import Model

CLIENT = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
MODELS: dict[str, Model] = {
    "Responses": OpenAIResponsesModel(MODEL, CLIENT),
    "chat": OpenAIChatCompletionsModel(MODEL, CLIENT),
}
CALLED: list[str] = []


class Verdict(BaseModel):
    verdict: Literal["good", "bad"]
    sure: bool


@function_tool
def unit(kind: Literal["metre", "mile"]) -> str:
    """Tells what a unit is."""
    CALLED.append(kind)
    return f"a {kind} is a length"


async def plain(model: Model) -> None:
    result = await Runner.run(Agent("plain", model=model, model_settings=ModelSettings(max_tokens=400)), "Hi")
    assert isinstance(result.final_output, str)


async def output_types(model: Model) -> None:
    agent = Agent("judge", "Judge.", model=model, output_type=Verdict, model_settings=ModelSettings(max_tokens=400))
    assert isinstance((await Runner.run(agent, "Is tea good?")).final_output, Verdict)


async def tools(model: Model) -> None:
    CALLED.clear()
    settings = ModelSettings(max_tokens=400, tool_choice="required", parallel_tool_calls=False)
    agent = Agent("tools", "Use the tool.", model=model, tools=[unit], model_settings=settings)
    result = await Runner.run(agent, "What is a mile?", max_turns=4)
    assert CALLED
    assert [item.type for item in result.new_items][:2] == ["tool_call_item", "tool_call_output_item"]


async def handoffs(model: Model) -> None:
    other = Agent("other", "Answer.", model=model, model_settings=ModelSettings(max_tokens=400))
    settings = ModelSettings(max_tokens=400, tool_choice="transfer_to_other", parallel_tool_calls=False)
    first = Agent("first", "Hand over.", model=model, handoffs=[handoff(other)], model_settings=settings)
    assert (await Runner.run(first, "Hi", max_turns=4)).last_agent is other


async def streams(model: Model) -> None:
    settings = ModelSettings(max_tokens=400, tool_choice="required")
    agent = Agent("stream", model=model, tools=[unit], model_settings=settings)
    result = Runner.run_streamed(agent, "What is a mile?", max_turns=4)
    kinds = {event.type async for event in result.stream_events()}
    assert {"raw_response_event", "run_item_stream_event"} <= kinds


async def sessions(model: Model) -> None:
    session = SQLiteSession("one")
    agent = Agent("memory", model=model, model_settings=ModelSettings(max_tokens=400))
    for text in ("I am Ada.", "Who am I?"):
        await Runner.run(agent, text, session=session)
    assert len(await session.get_items()) == 4


async def previous_responses() -> None:
    agent = Agent("chain", model=MODELS["Responses"], model_settings=ModelSettings(max_tokens=400))
    first = await Runner.run(agent, "I am Ada.")
    second = await Runner.run(agent, "Who am I?", previous_response_id=first.last_response_id)
    assert second.last_response_id != first.last_response_id


def of(name: str, kind: Callable[[Model], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    async def case() -> None:
        await kind(MODELS[name])

    case.__name__ = f"{kind.__name__} by {name}"
    return case


if __name__ == "__main__":
    set_tracing_disabled(True)
    kinds = (plain, output_types, tools, handoffs, streams, sessions)
    run("openai-agents", [*(of(name, kind) for name in MODELS for kind in kinds), previous_responses])
