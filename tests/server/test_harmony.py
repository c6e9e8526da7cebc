"""gpt-oss's channels through the server, with the official client: thoughts, calls, efforts and forms."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import openai
import pytest
from tokenizers import Tokenizer

from tests.engine.checkpoint_files import write_model
from tests.server.conftest import serving
from unicorn_async.engine.types import FinishReason, Token

from .test_tools import (
    CHAT,
    CHAT_TOOLS,
    TOOLS,
    WEATHER,
    client,
    device_info,
    model_directory,
    open_engine,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engine.conftest import OpenEngine
    from tests.server.fake_engine import FakeEngine

__all__ = ["client", "device_info", "model_directory", "open_engine"]  # fixtures

MODEL = "fake-model"
CONTROL = {
    f"<|{name}|>": 500 + index
    for index, name in enumerate(("start", "end", "return", "call", "channel", "constrain", "message"))
}
TEMPLATE = """\
<|start|>system<|message|>Reasoning: {{ reasoning_effort if reasoning_effort is defined else 'medium' }}<|end|>
{%- if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}
{%- for m in messages %}
{%- if m.tool_calls %}<|start|>assistant to=functions.{{ m.tool_calls[0].function.name }}
{{- '<|channel|>commentary json<|message|>' }}
{{- m.tool_calls[0].function.arguments | tojson }}<|call|>
{%- elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>
{%- else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}{# <|channel|>analysis is dropped #}"""
ANSWER = (
    "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>final<|message|>It rains.<|return|>"
)
CALLED = (
    "<|channel|>analysis<|message|>I need it.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
    '<|constrain|>json<|message|>{"city": "Bern", "days": 2}<|call|>'
)


def script(text: str, size: int = 4, reason: FinishReason = FinishReason.STOP) -> list[Token]:
    """Tokens of an answer: marks are control tokens, which have no text."""
    found, rest = [], text
    while rest:
        mark = next((mark for mark in CONTROL if rest.startswith(mark)), None)
        length = len(mark) if mark else min(size, rest.find("<|") if "<|" in rest else len(rest))
        found.append(Token(CONTROL[mark], "") if mark else Token(len(found), rest[:length], -0.5))
        rest = rest[length:]
    return [*found[:-1], found[-1]._replace(finish_reason=reason, num_unseen=1)]


@pytest.fixture
def harmony(engine: FakeEngine) -> FakeEngine:
    engine.fake_tokenizer.thinks = True
    engine.fake_tokenizer.chat_template = TEMPLATE
    engine.fake_tokenizer.control = CONTROL
    engine.fake_tokenizer.template_names = frozenset({"reasoning_effort", "messages", "tools"})
    return engine


async def test_a_response_has_its_thoughts_and_its_answer_and_goes_on_without_them(
    client: openai.AsyncOpenAI, harmony: FakeEngine
) -> None:
    harmony.script = script(ANSWER)
    response = await client.responses.create(model=MODEL, input="Hi", reasoning={"effort": "low"}, top_logprobs=0)
    thoughts, message = response.output
    assert thoughts.type == "reasoning" and thoughts.content is not None and message.type == "message"
    assert (thoughts.content[0].text, response.output_text) == ("Let me see.", "It rains.")
    assert harmony.fake_tokenizer.options[-1]["variables"] == {"reasoning_effort": "low"}
    usage, part = response.usage, message.content[0]
    assert usage is not None and part.type == "output_text"
    assert usage.output_tokens - usage.output_tokens_details.reasoning_tokens == 1 + len(part.logprobs or ()) == 4
    await client.responses.create(model=MODEL, input="More", previous_response_id=response.id)
    assert [message.content for message in harmony.fake_tokenizer.conversations[-1]] == ["Hi", "It rains.", "More"]


async def test_a_chat_s_thoughts_are_streamed_beside_its_text(client: openai.AsyncOpenAI, harmony: FakeEngine) -> None:
    harmony.script = script(ANSWER)
    thoughts, texts = "", ""
    async for chunk in await client.chat.completions.create(model=MODEL, messages=CHAT, stream=True):
        delta: Any = chunk.choices[0].delta
        thoughts += getattr(delta, "reasoning_content", None) or ""
        texts += delta.content or ""
    assert (thoughts, texts) == ("Let me see.", "It rains.")
    extra = {"reasoning_format": "none"}
    completion = await client.chat.completions.create(model=MODEL, messages=CHAT, extra_body=extra)
    assert completion.choices[0].message.content == "<|channel|>analysis<|message|>Let me see.<|end|>\n\nIt rains."


async def test_calls_are_streamed_and_cut_ones_are_incomplete(client: openai.AsyncOpenAI, harmony: FakeEngine) -> None:
    harmony.script = script(CALLED)
    async with client.chat.completions.stream(model=MODEL, messages=CHAT, tools=CHAT_TOOLS) as stream:
        deltas = [
            event.arguments_delta async for event in stream if event.type == "tool_calls.function.arguments.delta"
        ]
        completion = await stream.get_final_completion()
    assert len(deltas) > 3
    choice: Any = completion.choices[0]
    assert choice.finish_reason == "tool_calls" and not choice.message.content
    assert choice.message.reasoning_content == "I need it."
    assert choice.message.tool_calls[0].function.parsed_arguments == {"city": "Bern", "days": 2}
    told: Any = harmony.fake_tokenizer.options[-1]["tools"]
    assert [tool["function"]["name"] for tool in told] == ["weather", "now"]
    response = await client.responses.create(model=MODEL, input="Hi", tools=TOOLS)
    assert [item.type for item in response.output] == ["reasoning", "function_call"]
    harmony.script = script(CALLED.removesuffix(" 2}<|call|>"), reason=FinishReason.LENGTH)
    response = await client.responses.create(model=MODEL, input="Hi", tools=TOOLS)
    call = response.output[-1]
    assert call.type == "function_call"
    assert (call.status, call.arguments) == ("incomplete", '{"city": "Bern", "days":')
    harmony.script = script(CALLED)  # nobody has said that there are tools
    response = await client.responses.create(model=MODEL, input="Hi")
    assert response.output_text == '{"city": "Bern", "days": 2}'


async def test_thoughts_before_a_call_come_back_to_the_template_until_there_is_an_answer(
    client: openai.AsyncOpenAI, harmony: FakeEngine
) -> None:
    harmony.script = script(CALLED)
    first = await client.responses.create(model=MODEL, input="Hi", tools=TOOLS)
    thoughts, call = first.output
    assert thoughts.type == "reasoning" and call.type == "function_call"
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    conversations = harmony.fake_tokenizer.conversations
    await client.responses.create(model=MODEL, input=[result], previous_response_id=first.id, tools=TOOLS)
    given: Any = ["Hi", thoughts.to_dict(), call.to_dict(), result]
    given[0] = {"role": "user", "content": "Hi"}
    await client.responses.create(model=MODEL, input=given, tools=TOOLS)
    chat = await client.chat.completions.create(model=MODEL, messages=CHAT, tools=CHAT_TOOLS)
    message: Any = chat.choices[0].message.to_dict()
    answer: Any = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sun"}
    await client.chat.completions.create(model=MODEL, messages=[*CHAT, message, answer], tools=CHAT_TOOLS)
    for conversation in (conversations[1], conversations[2], conversations[4]):
        _, called, returned = conversation
        assert (called.thoughts, called.content, returned.content) == ("I need it.", "", "sun")
        assert called.tool_calls[0].name == "weather"
    given[1:2] = [{"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "x"}, given[0]]
    await client.responses.create(model=MODEL, input=given, tools=TOOLS)
    assert [message.thoughts for message in conversations[-1]] == [""] * 4
    harmony.script = script(ANSWER)
    await client.chat.completions.create(
        model=MODEL, messages=[*CHAT, {"role": "assistant", "content": "Sun.", "reasoning_content": "Why?"}, *CHAT]
    )  # type: ignore[call-overload]
    assert conversations[-1][1].thoughts == ""


async def test_efforts_are_those_of_the_template(client: openai.AsyncOpenAI, harmony: FakeEngine) -> None:
    for effort in ("none", "minimal", "xhigh"):
        given: Any = effort
        with pytest.raises(openai.BadRequestError, match=f"takes low, medium, high, got '{effort}'") as caught:
            await client.chat.completions.create(model=MODEL, messages=CHAT, reasoning_effort=given)
        assert caught.value.param == "reasoning_effort"
    assert not harmony.calls


def write_harmony_model(directory: Path) -> Path:
    """A small gpt-oss whose vocabulary has the marks in the place of its last pairs of letters."""
    write_model("gpt_oss", "float16", directory)
    path = directory / "tokenizer.json"
    found = json.loads(path.read_text())
    vocab, merges = found["model"]["vocab"], found["model"]["merges"]
    last = sorted(vocab, key=vocab.__getitem__)[-len(CONTROL) :]
    kept = {piece: index for piece, index in vocab.items() if piece not in last}
    found["model"]["vocab"] = kept | {mark: vocab[piece] for mark, piece in zip(CONTROL, last, strict=True)}
    found["model"]["merges"] = merges[: -len(CONTROL)]
    path.write_text(json.dumps(found))
    backend = Tokenizer.from_file(str(path))
    backend.add_special_tokens(list(CONTROL))
    backend.save(str(path))
    settings = {"bos_token": "<bos>", "eos_token": "<|return|>", "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    ends = [backend.token_to_id(mark) for mark in ("<|return|>", "<|call|>")]
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return directory


async def test_a_forced_call_and_a_form_follow_thoughts_of_a_real_model(
    open_engine: OpenEngine, tmp_path: Path
) -> None:
    model = write_harmony_model(tmp_path / "oss")
    end = Tokenizer.from_file(str(model / "tokenizer.json")).token_to_id("<|end|>")
    options: dict[str, Any] = {
        "model": "oss",
        "messages": CHAT,
        "max_tokens": 200,
        "logit_bias": {str(end): 100},  # or thoughts of random weights would not end
        "extra_body": {"min_p": 0.0},
    }
    async with (
        open_engine(model, model_name="oss", max_context=1024) as engine,
        serving(engine) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        named: Any = {"type": "function", "function": {"name": "weather"}}
        called = await client.chat.completions.create(**options, tools=CHAT_TOOLS, tool_choice=named)
        form: Any = {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER, "strict": True}}
        formed = await client.chat.completions.create(**options, response_format=form)
        message: Any = called.choices[0].message
        assert called.choices[0].finish_reason == "tool_calls" and message.content is None
        (call,) = message.tool_calls
        jsonschema.validate(json.loads(call.function.arguments), WEATHER)
        jsonschema.validate(json.loads(formed.choices[0].message.content or ""), WEATHER)
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "sun"}
        plain = await client.chat.completions.create(
            model="oss", messages=[*CHAT, message.to_dict(), result], tools=CHAT_TOOLS, max_tokens=3
        )
        assert plain.usage is not None and plain.usage.completion_tokens == 3
