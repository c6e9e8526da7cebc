"""Calls in braces, as Gemma 4 writes them: read in any pieces, forced by grammars, and text where they are none."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from tests.guidance.test_matchers import generated, ids_of, made_vocabulary
from unicorn_async.calls.braced_reader import QUOTE
from unicorn_async.calls.call_format import CallFormat, CallKind, call_format
from unicorn_async.calls.call_grammar import call_grammar
from unicorn_async.calls.call_reader import CallReader
from unicorn_async.calls.events import Arguments, CallBegun, CallEnded, Said
from unicorn_async.calls.tool import Tool, ToolMode, ToolUse
from unicorn_async.errors import GrammarError
from unicorn_async.guidance.matchers import Matchers

from .test_call_reader import read, summed
from .test_tag_grammar import BASE, SCHEMA, is_allowed
from .test_tag_reader import pieces_of

FORM = CallFormat(CallKind.BRACED, takes_tools=True)
TOOLS: dict[str, dict[str, Any]] = {
    "put": {"type": "object", "properties": {"path": {"type": "string"}, "count": {"type": "integer"}}},
    "list-all": {"type": "object", "properties": {}},
}
TEXTS = [
    "a",
    "",
    "two\nlines\n",
    'it\'s "quoted" \\ é\t',
    "{a:1,b:[2]}",
    "5",
    "<|",
    "call:put{}",
    "<tool_call|",
    "\U0001f600",
]


def braced(value: Any) -> str:
    match value:
        case str():
            return f"{QUOTE}{value}{QUOTE}"
        case dict():
            return "{" + ",".join(f"{key}:{braced(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(map(braced, value)) + "]"
        case _:
            return json.dumps(value)


def call(name: str, arguments: dict[str, Any]) -> str:
    return f"<|tool_call>call:{name}{braced(arguments)}<tool_call|>"


def a_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(6 if depth < 3 else 4)
    if kind == 4:
        return [a_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 5:
        return {f"k{number}": a_value(rng, depth + 1) for number in range(rng.randrange(4))}
    return (rng.choice(TEXTS), rng.randrange(-5, 1000), rng.choice([True, False, None]), 2.5)[kind]


def test_calls_are_read_in_any_pieces() -> None:
    rng = random.Random(4)
    for _ in range(120):
        values = {f"a{number}": a_value(rng) for number in range(rng.randrange(5))}
        text = "Well. " + call("put", values) + call("list-all", {})
        said, calls = summed(read(FORM, pieces_of(text, rng), TOOLS))
        assert said == "Well."
        assert [(name, json.loads(arguments)) for name, arguments in calls] == [("put", values), ("list-all", {})]


def test_a_call_comes_as_it_is_written() -> None:
    reader = CallReader(FORM, TOOLS)
    assert reader.feed("<|tool_call>call:put{pa") == [CallBegun("put"), Arguments("{")]
    assert reader.feed('th:<|"|>on') == [Arguments('"path": "on')]
    assert reader.feed('e<|"') == [Arguments("e")]
    assert reader.feed("|>,count:1") == [Arguments('", "count": ')]
    assert reader.feed("2}") == [Arguments("12}"), CallEnded()]
    assert reader.feed("<tool_call|>\nDone") == [Said("\nDone")]
    assert reader.finish() == []


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{ path : <|"|>a<|"|> , count : 3 }', {"path": "a", "count": 3}),
        ('{<|"|>path<|"|>:<|"|>a<|"|>}', {"path": "a"}),
        ("{path:plain text,count:x}", {"path": "plain text", "count": "x"}),
        ("{path:5}", {"path": "5"}),
        ("{count:1,count:[2,3],path:7}", {"count": 1, "path": "7"}),
        ("{count:}", {"count": ""}),
    ],
)
def test_what_is_written_loosely_is_read(written: str, arguments: dict[str, Any]) -> None:
    text = f"<|tool_call>call:put{written}<tool_call|>"
    for pieces in ([text], list(text)):
        said, calls = summed(read(FORM, pieces, TOOLS))
        assert said == "" and [(name, json.loads(found)) for name, found in calls] == [("put", arguments)]


@pytest.mark.parametrize(
    "text", ["<|tool_call>call:other{a:1}<tool_call|>", "<|tool_call>call: put", "a <|tool", "call:put{}"]
)
def test_what_is_no_call_is_text(text: str) -> None:
    for pieces in ([text], list(text)):
        assert summed(read(FORM, pieces, TOOLS)) == (text, [])


@pytest.mark.parametrize(
    ("text", "arguments", "rest"),
    [
        ('{path:<|"|>a<|"|>} more', '{"path": "a"}', "more"),
        ('{path:<|"|>a<|"|> more', '{"path": "a"}', "more"),
        ("{path:a,]more", '{"path": "a"}', "more"),
        ("{count:[1,{x:[" + "[" * 100, None, ""),
        ('{path:<|"|>cut', '{"path": "cut', ""),
        ("{count:12", '{"count": 12', ""),
    ],
)
def test_a_call_ends_where_no_argument_follows(text: str, arguments: str | None, rest: str) -> None:
    said, ((name, found),) = summed(read(FORM, [f"<|tool_call>call:put{text}"], TOOLS))
    assert name == "put" and said.endswith(rest)
    if arguments is None:
        json.loads(found)
    elif arguments.endswith("}"):
        assert json.loads(found) == json.loads(arguments)
    else:
        assert found.startswith('{"') and arguments.rpartition(" ")[2] in found


@pytest.fixture(scope="module")
def matchers() -> Matchers:
    return Matchers(made_vocabulary())


def test_strict_arguments_fit_whatever_is_drawn(matchers: Matchers) -> None:
    tool = Tool("plan", "", SCHEMA, strict=True)
    grammar, num_ended = call_grammar(ToolUse((tool,), ToolMode.REQUIRED, parallel=False), FORM, {}), 0
    for seed in range(16):
        text = generated(matchers, grammar, seed, most=600)
        if text is not None:
            num_ended += 1
            said, calls = summed(read(FORM, [text.decode(errors="replace")], {"plan": SCHEMA}))
            assert said.strip() == "" and len(calls) == 1
            jsonschema.validate(json.loads(calls[0][1]), SCHEMA)
    assert num_ended >= 6


@pytest.mark.parametrize(
    ("arguments", "is_right"),
    [
        (BASE, True),
        ({**BASE, "short": "\n<é|"}, True),
        ({**BASE, "short": "abcde"}, False),
        ({**BASE, "unit": 5}, True),
        ({**BASE, "unit": "5"}, False),
        ({**BASE, "point": {"x": 8}}, False),
        ({**BASE, "flags": [True, False]}, True),
        ({**BASE, "flags": [True, False, True]}, False),
        ({**BASE, "when": None}, True),
        ({"short": "a", "unit": "C"}, False),
    ],
)
def test_a_grammar_allows_what_the_schema_does(matchers: Matchers, arguments: dict[str, Any], is_right: bool) -> None:
    grammar = call_grammar(ToolUse((Tool("plan", "", SCHEMA, strict=True),), ToolMode.REQUIRED), FORM, {})
    ordered = {key: arguments[key] for key in SCHEMA["properties"] if key in arguments}
    assert is_allowed(matchers, grammar, call("plan", ordered)) is is_right


def test_a_call_may_follow_text_or_come_several_times(matchers: Matchers) -> None:
    tools = tuple(Tool(name, "", parameters, strict=True) for name, parameters in TOOLS.items())
    grammar = call_grammar(ToolUse(tools, ToolMode.AUTO), FORM, {})
    both = call("put", {"path": "a", "count": 3}) + call("list-all", {})
    for text in ("just text", f"First: {both}", both):
        assert is_allowed(matchers, grammar, text), text
    assert not is_allowed(matchers, grammar, both.replace("put", "pot"))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "string", "minimum": 3}, "'minimum'"),
        ({"type": "string", "format": "date"}, "'format'"),
        ({"enum": [{"a": 1}]}, "the one value"),
    ],
)
def test_what_a_strict_tool_says_beyond_the_form_is_refused(schema: dict[str, Any], message: str) -> None:
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    with pytest.raises(GrammarError, match=message):
        call_grammar(ToolUse((Tool("t", "", parameters, strict=True),), ToolMode.REQUIRED), FORM, {})


def test_the_form_is_told_by_the_template() -> None:
    template = "{% if tools %}{{ '<|tool>' }}{% endif %}{{ '<|tool_call>call:' + name + '{' }}"
    found = call_format(template)
    assert (found, found.markers) == (FORM, ("<|tool_call>", "<tool_call|>", QUOTE))


def test_control_tokens_stand_around_calls_and_texts_where_the_vocabulary_has_them(matchers: Matchers) -> None:
    control = {"<|tool_call>": 270, QUOTE: 271, "<tool_call|>": 272}
    tool = Tool("t", "", {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
    grammar = call_grammar(ToolUse((tool,), ToolMode.REQUIRED, parallel=False), FORM, control)
    mask = matchers.open(0, grammar)
    try:
        for token in (270, *b"call:t{a:", 271, *b'x"}<|', 271, *b"}", 272):
            assert token in ids_of(mask)
            mask = matchers.advance(0, [token]).mask
        assert 272 not in ids_of(mask)
    finally:
        matchers.close(0)
