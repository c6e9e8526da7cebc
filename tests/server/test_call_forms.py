"""Calls as templates of Qwen3-Coder, GLM 4.5 and Olmo 3 have them, through the server with the official client."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import jsonschema
import openai
import pytest

from tests.server.conftest import serving
from unicorn_async.engine.types import FinishReason, Token

from .test_tools import CHAT, DEMO, client, device_info, model_directory, open_engine, script

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engine.conftest import OpenEngine
    from tests.server.fake_engine import FakeEngine

__all__ = ["client", "device_info", "model_directory", "open_engine"]  # fixtures

NOTE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["title", "days"],
    "additionalProperties": False,
}
CHAT_TOOLS: list[Any] = [{"type": "function", "function": {"name": "note", "parameters": NOTE, "strict": True}}]
TOOLS: list[Any] = [{"type": "function", "name": "note", "parameters": NOTE, "strict": True}]
XML = (
    '<tool_call>\n<function=note>\n<parameter=title>\na "b"\nc\n</parameter>\n'
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
)
KEYED = (
    '<tool_call>note\n<arg_key>title</arg_key>\n<arg_value>a "b"\nc</arg_value>\n'
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
)
PYTHON = """<function_calls>\nnote(title='a "b"\\nc', days=2)\n</function_calls>"""
FORMS = {"xml": XML, "keyed": KEYED, "python": PYTHON}
MARKS = ("<tool_call>", "<function_calls>")
ARGUMENTS = {"title": 'a "b"\nc', "days": 2}


def template(form: str) -> str:
    """A template that tells of tools, and of calls by an example."""
    return (
        "{% if tools %}{{ tools | tojson }}"
        + FORMS[form]
        + "{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    )


@pytest.mark.parametrize("form", FORMS)
async def test_calls_are_streamed_and_go_on_as_the_template_takes_them(
    client: openai.AsyncOpenAI, engine: FakeEngine, form: str
) -> None:
    engine.fake_tokenizer.chat_template = template(form)
    engine.script = script(f"Let me note.\n{FORMS[form]}\n{FORMS[form]}", size=3)
    async with client.chat.completions.stream(
        model="fake-model", messages=CHAT, tools=CHAT_TOOLS, logprobs=True
    ) as stream:
        deltas = [
            event.arguments_delta async for event in stream if event.type == "tool_calls.function.arguments.delta"
        ]
        completion = await stream.get_final_completion()
    assert len(deltas) > 6
    choice = completion.choices[0]
    assert choice.message.content == "Let me note." and choice.finish_reason == "tool_calls"
    calls = choice.message.tool_calls or []
    assert [call.function.parsed_arguments for call in calls] == [ARGUMENTS, ARGUMENTS]
    told: Any = engine.fake_tokenizer.options[-1]["tools"]
    assert told[0]["function"]["name"] == "note"
    result: Any = {"role": "tool", "tool_call_id": calls[0].id, "content": "noted"}
    message: Any = {"role": "assistant", "tool_calls": [calls[0].to_dict()]}
    engine.script = script("Fine.")
    await client.chat.completions.create(model="fake-model", messages=[*CHAT, message, result], tools=CHAT_TOOLS)
    assistant, tool = engine.fake_tokenizer.conversations[-1][1:]
    assert json.loads(assistant.tool_calls[0].arguments) == ARGUMENTS and tool.tool_call_id == calls[0].id


async def test_a_template_that_leaves_calls_out_has_them_in_the_messages(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.fake_tokenizer.chat_template = "{% if tools %}List of tools: [{% endif %}"
    call = '<|tool_call_start|>[note(title="a", days=2)]<|tool_call_end|>'
    engine.script = script(f"Well.\n{call}")
    completion = await client.chat.completions.create(model="fake-model", messages=CHAT, tools=CHAT_TOOLS)
    message = completion.choices[0].message
    assert message.tool_calls is not None
    result: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "noted"}
    engine.script = script("Fine.")
    await client.chat.completions.create(
        model="fake-model", messages=[*CHAT, message.to_dict(), result], tools=CHAT_TOOLS
    )
    said = [(one.role, one.content) for one in engine.fake_tokenizer.conversations[-1]]
    assert said[1:] == [("assistant", f"Well.\n{call}"), ("tool", "noted")]


async def test_control_tokens_stand_for_tags_and_a_cut_call_is_incomplete(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.fake_tokenizer.chat_template = template("keyed")
    tags = ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
    engine.fake_tokenizer.control = {tag: 500 + index for index, tag in enumerate(tags)}
    tokens = [Token(500, ""), *script("note\n")[:-1], Token(502, ""), *script("title")[:-1], Token(503, "")]
    tokens += [Token(504, ""), *script("a b")[:-1]]
    engine.script = [*tokens, Token(7, "", finish_reason=FinishReason.LENGTH)]
    response = await client.responses.create(model="fake-model", input="Hi", tools=TOOLS)
    call = response.output[0]
    assert call.type == "function_call" and (call.status, call.arguments) == ("incomplete", '{"title": "a b')
    engine.script = [*tokens, Token(505, ""), Token(501, ""), *script("")]
    response = await client.responses.create(model="fake-model", input="Hi", tools=TOOLS)
    call = response.output[0]
    assert call.type == "function_call" and (call.status, call.arguments) == ("completed", '{"title": "a b"}')


@pytest.mark.parametrize("form", ["xml", pytest.param("python", marks=pytest.mark.whole("the other form"))])
async def test_a_forced_call_fits_with_speculation_and_log_probabilities(
    open_engine: OpenEngine, tmp_path: Path, form: str
) -> None:
    shutil.copytree(DEMO, tmp_path / "model")
    path = tmp_path / "model" / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "chat_template": template(form)}))
    async with (
        open_engine(tmp_path / "model", model_name="demo", max_context=2048, speculation="lookup") as engine,
        serving(engine) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        completion = await client.chat.completions.create(
            model="demo", messages=CHAT, tools=CHAT_TOOLS, tool_choice="required", temperature=1.0, logprobs=True,
            top_logprobs=2, parallel_tool_calls=False, max_tokens=300,
        )  # fmt: skip
    choice = completion.choices[0]
    (call,) = choice.message.tool_calls or ()
    assert choice.finish_reason == "tool_calls" and call.type == "function" and call.function.name == "note"
    jsonschema.validate(json.loads(call.function.arguments), NOTE)
    assert choice.logprobs is not None and choice.logprobs.content
    assert "".join(token.token for token in choice.logprobs.content).startswith(MARKS)


async def test_what_the_form_cant_hold_a_strict_tool_to_is_refused_by_name(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.fake_tokenizer.chat_template = template("xml")
    dated: Any = {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}}
    tool: Any = {"type": "function", "name": "dated", "parameters": dated, "strict": True}
    with pytest.raises(openai.BadRequestError, match=r"dated: .* 'format'") as caught:
        await client.responses.create(model="fake-model", input="Hi", tools=[*TOOLS, tool])
    assert (caught.value.code, caught.value.param) == ("invalid_function_parameters", "tools")
    assert not engine.calls
