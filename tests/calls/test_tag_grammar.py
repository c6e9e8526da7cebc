"""Answers that follow the grammars of calls by tags have arguments that fit, and end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from tests.guidance.test_matchers import generated, ids_of, made_vocabulary
from unicorn_async.calls.call_grammar import call_grammar
from unicorn_async.calls.tool import Tool, ToolMode, ToolUse
from unicorn_async.errors import GrammarError
from unicorn_async.guidance.matchers import Matchers

from .test_call_reader import read, summed
from .test_tag_reader import FORMS, KEYED, SEED, XML, written

if TYPE_CHECKING:
    from unicorn_async.calls.call_format import CallFormat
    from unicorn_async.grammar import Grammar

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "short": {"type": "string", "minLength": 1, "maxLength": 4},
        "mark": {"type": "string", "pattern": "^[a-c/]+$"},
        "unit": {"enum": ["C", "F", 5, None, ""]},
        "when": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
        "point": {"$ref": "#/$defs/Point"},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["short", "unit", "point"],
    "additionalProperties": False,
    "$defs": {
        "Point": {"type": "object", "properties": {"x": {"const": 7}}, "required": ["x"], "additionalProperties": False}
    },
}
TOOL = Tool("plan", "", SCHEMA, strict=True)
BASE = {"short": "a", "unit": "C", "point": {"x": 7}}


@pytest.fixture(scope="module")
def matchers() -> Matchers:
    return Matchers(made_vocabulary())


def is_allowed(matchers: Matchers, grammar: Grammar, text: str, end: bool = True) -> bool:
    """Whether a text, a byte a token, follows a grammar, up to its end or as far as it goes."""
    mask = matchers.open(0, grammar)
    try:
        for byte in text.encode():
            if byte not in ids_of(mask):
                return False
            mask = matchers.advance(0, [byte]).mask
        return not end or max(ids_of(mask)) > 256 + 13
    finally:
        matchers.close(0)


@FORMS
def test_strict_arguments_fit_whatever_is_drawn(matchers: Matchers, form: CallFormat) -> None:
    grammar, num_ended = call_grammar(ToolUse((TOOL,), ToolMode.REQUIRED, parallel=False), form, {}), 0
    for seed in range(24):
        text = generated(matchers, grammar, seed, most=600)
        if text is not None:
            num_ended += 1
            said, calls = summed(read(form, [text.decode(errors="replace")], {"plan": SCHEMA}))
            assert said.strip() == "" and len(calls) == 1
            jsonschema.validate(json.loads(calls[0][1]), SCHEMA)
    assert num_ended >= 8


ALLOWED: list[tuple[dict[str, Any], bool]] = [
    (BASE, True),
    ({**BASE, "short": "\n<é\n"}, True),
    ({**BASE, "short": ""}, False),
    ({**BASE, "short": "abcde"}, False),
    ({**BASE, "unit": ""}, True),
    ({**BASE, "unit": None}, True),
    ({**BASE, "unit": "K"}, False),
    ({**BASE, "point": {"x": 8}}, False),
    ({"short": "a", "unit": "C"}, False),
    ({"short": "a", "mark": "a/b", "unit": "C", "when": None, "point": {"x": 7}, "flags": [True]}, True),
    ({"short": "a", "mark": "ad", "unit": "C", "point": {"x": 7}}, False),
    ({"short": "a", "unit": "C", "when": "word", "point": {"x": 7}}, False),
]


@FORMS
def test_what_fits_may_be_written_as_the_template_writes_it(matchers: Matchers, form: CallFormat) -> None:
    grammar = call_grammar(ToolUse((TOOL,), ToolMode.REQUIRED), form, {})
    for values, fits in ALLOWED:
        assert is_allowed(matchers, grammar, written(form, "plan", values)) is fits, values
    two = "\n".join((written(form, "plan", BASE),) * 2)
    assert is_allowed(matchers, grammar, two)
    one = call_grammar(ToolUse((TOOL,), ToolMode.REQUIRED, parallel=False), form, {})
    assert not is_allowed(matchers, one, two, end=False)


@FORMS
def test_open_parameters_take_names_of_the_models_choice(matchers: Matchers, form: CallFormat) -> None:
    for schema in ({}, {"type": "object", "required": ["a"]}, {"type": "object", "additionalProperties": True}):
        grammar = call_grammar(ToolUse((Tool("any", "", schema),), ToolMode.REQUIRED), form, {})
        assert is_allowed(matchers, grammar, written(form, "any", {"a": "x\ny"})), schema
    closed = Tool("any", "", {"type": "object", "properties": {}, "additionalProperties": False})
    grammar = call_grammar(ToolUse((closed,), ToolMode.REQUIRED), form, {})
    assert is_allowed(matchers, grammar, written(form, "any", {}))
    assert not is_allowed(matchers, grammar, written(form, "any", {"a": "x"}), end=False)


def test_under_strict_tools_text_has_no_call_without_its_mark(matchers: Matchers) -> None:
    grammar = call_grammar(ToolUse((TOOL,)), XML, {})
    assert is_allowed(matchers, grammar, "Look: <function and </b>")
    assert not is_allowed(matchers, grammar, "Look: <function=", end=False)


def test_marks_are_control_tokens_where_the_vocabulary_has_them(matchers: Matchers) -> None:
    tool = Tool("say", "", {"properties": {"a": {"type": "string"}, "b": {"type": "string", "maxLength": 2}}})
    use = ToolUse((tool,), ToolMode.REQUIRED)
    mask = matchers.open(0, call_grammar(use, KEYED, {"<arg_key>": 272}))
    for byte in b"<tool_call>say\n":
        mask = matchers.advance(0, [byte]).mask
    assert ids_of(mask) == [ord("<"), 272]  # the call's end begins with the first
    mask = matchers.advance(0, [272]).mask
    assert {ord("a"), ord("b")} <= set(ids_of(mask))
    matchers.close(0)
    mask = matchers.open(0, call_grammar(use, KEYED, {"</arg_value>": 272}))
    for byte in b"<tool_call>say\n<arg_key>b</arg_key>\n<arg_value>xy":
        mask = matchers.advance(0, [byte]).mask
    assert ids_of(mask) == [272]
    matchers.close(0)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "string", "format": "date"}}},
        {"type": "object", "properties": {"a": {}}, "minProperties": 1},
        {"anyOf": [{"type": "object"}]},
    ],
)
def test_what_a_strict_tool_says_and_the_form_cant_hold_is_refused(matchers: Matchers, schema: dict[str, Any]) -> None:
    with pytest.raises(GrammarError, match=r"date_tool: .* can't hold to '(format|minProperties|anyOf)'"):
        call_grammar(ToolUse((Tool("date_tool", "", schema, strict=True),)), XML, {})
    matchers.compile(call_grammar(ToolUse((Tool("date_tool", "", schema),), ToolMode.REQUIRED), SEED, {}))
