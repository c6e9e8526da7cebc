"""Answers made by the grammars of calls are read back, and their arguments fit the tools' schemas."""

from __future__ import annotations

import json

import jsonschema
import pytest

from tests.guidance.test_matchers import generated, made_vocabulary
from unicorn_async.calls.call_format import CallFormat, CallKind
from unicorn_async.calls.call_grammar import call_grammar
from unicorn_async.calls.call_text import calls_text
from unicorn_async.calls.tool import Tool, ToolMode, ToolUse
from unicorn_async.guidance.matchers import Matchers

from .test_call_reader import read, summed

POINT = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["x"],
         "additionalProperties": False}  # fmt: skip
TOOLS = (
    Tool("add", "Adds.", POINT, strict=True),
    Tool(
        "find", "", {"properties": {"text": {"enum": ["a", "b"]}}, "required": ["text"], "additionalProperties": False}
    ),
    Tool("now", "", {"type": "object", "properties": {}, "additionalProperties": False}),
)
BY_NAME = {tool.name: tool.parameters for tool in TOOLS}
SEED = CallFormat(CallKind.XML, takes_tools=True, marks=("<seed:tool_call>", "</seed:tool_call>"))
FORMS = [
    *(
        CallFormat(kind, takes_tools=True, is_lined=kind is CallKind.XML)
        for kind in CallKind
        if kind is not CallKind.HARMONY
    ),
    SEED,
    CallFormat(CallKind.SEPARATED, takes_tools=True, is_lined=True),
]


@pytest.fixture(scope="module")
def matchers() -> Matchers:
    return Matchers(made_vocabulary())


def answers(matchers: Matchers, use: ToolUse, form: CallFormat, answer: dict[str, object] | None = None) -> list[str]:
    grammar = call_grammar(use, form, {}, answer)
    found = [generated(matchers, grammar, seed, most=1200) for seed in range(8)]
    return [text.decode(errors="replace") for text in found if text is not None]


def check(form: CallFormat, text: str) -> list[str]:
    said, calls = summed(read(form, [text], BY_NAME))
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), BY_NAME[name])
    assert said.strip() == ""
    return [name for name, _ in calls]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.kind.value + ("-seed" if form is SEED else ""))
def test_required_calls_are_read_back(matchers: Matchers, form: CallFormat) -> None:
    texts = answers(matchers, ToolUse(TOOLS, ToolMode.REQUIRED), form)
    assert len(texts) >= 4
    assert all(1 <= len(check(form, text)) <= 16 for text in texts)
    for text in answers(matchers, ToolUse(TOOLS, ToolMode.REQUIRED, parallel=False), form):
        assert len(check(form, text)) == 1
    for text in answers(matchers, ToolUse(TOOLS, ToolMode.REQUIRED, names=frozenset({"find"})), form):
        assert set(check(form, text)) == {"find"}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.kind.value + ("-seed" if form is SEED else ""))
def test_an_answer_may_be_json_where_no_call_is_required(matchers: Matchers, form: CallFormat) -> None:
    schema: dict[str, object] = {"type": "object", "properties": {"ok": {"const": 5}}, "required": ["ok"],
                                 "additionalProperties": False}  # fmt: skip
    for text in answers(matchers, ToolUse(TOOLS), form, schema):
        said, calls = summed(read(form, [text], BY_NAME))
        if calls:
            check(form, text)
        else:
            jsonschema.validate(json.loads(said), schema)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.kind.value + ("-seed" if form is SEED else ""))
def test_strict_tools_leave_text_free_until_a_call(matchers: Matchers, form: CallFormat) -> None:
    grammar = call_grammar(ToolUse(TOOLS), form, {})
    tokens = made_vocabulary().tokens()
    call = {
        CallKind.TAGGED: 'Hi <b>\n<tool_call>\n{"name": "add", "arguments": {"x": 5}}\n</tool_call>',
        CallKind.BARE: '{"name": "add", "parameters": {"x": 5}}',
        CallKind.LISTED: 'Hi [TOOL_CALLS][{"name": "add", "arguments": {"x": 5}}]',
        CallKind.NAMED: 'Hi [TOOL_CALLS]add[ARGS]{"x": 5}',
        CallKind.XML: "Hi <tool_call>\n<function=add>\n<parameter=x>\n5\n</parameter>\n</function>\n</tool_call>",
        CallKind.KEYED: "Hi <tool_call>add\n<arg_key>x</arg_key>\n<arg_value>5</arg_value>\n</tool_call>",
        CallKind.BRACED: "Hi <|tool_call>call:add{x:5}<tool_call|>",
        CallKind.SEPARATED: "Hi " + calls_text(form, [("add", '{"x": 5}')]),
        CallKind.PYTHON: "[add(x=5)]",
    }[form.kind]
    if form is SEED:
        call = call.replace("tool_call", "seed:tool_call").replace(">\n5\n<", ">5<")
    for text, is_right in ((call, True), (call.replace("5", "z"), False), ("Hi <tool { there", True)):
        mask, is_allowed = matchers.open(0, grammar), True
        for byte in text.encode():
            if not mask[byte // 8] >> (byte % 8) & 1:
                is_allowed = False
                break
            mask = matchers.advance(0, [byte]).mask
        ends = bool(mask[(len(tokens) and 256 + 14) // 8] >> ((256 + 14) % 8) & 1)
        matchers.close(0)
        assert is_allowed is is_right, text
        assert ends is is_right, text


def test_control_tokens_mark_calls_where_the_vocabulary_has_them(matchers: Matchers) -> None:
    form = CallFormat(CallKind.NAMED, takes_tools=True)
    grammar = call_grammar(ToolUse(TOOLS, ToolMode.REQUIRED), form, {"[TOOL_CALLS]": 272})
    mask = matchers.open(0, grammar)
    assert [index for index in range(300) if mask[index // 8] >> (index % 8) & 1] == [272]
    matchers.close(0)


__all__ = ["read"]


def test_arguments_that_a_tool_does_not_name_do_not_come(matchers: Matchers) -> None:
    tool = Tool("find", "", {"properties": {"text": {"enum": ["a", "b"]}}, "required": ["text"]})
    form = CallFormat(CallKind.TAGGED, takes_tools=True)
    for text in answers(matchers, ToolUse((tool,), ToolMode.REQUIRED), form):
        _, calls = summed(read(form, [text], {"find": tool.parameters}))
        assert all(json.loads(arguments) in ({"text": "a"}, {"text": "b"}) for _, arguments in calls)
