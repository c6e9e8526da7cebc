"""Calls that are written as Python does: read in any pieces, forced by grammars, and text where they are none."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from tests.guidance.test_matchers import generated, made_vocabulary
from unicorn_async.calls.call_format import CallFormat, CallKind, call_format
from unicorn_async.calls.call_grammar import call_grammar
from unicorn_async.calls.call_reader import CallReader
from unicorn_async.calls.call_text import calls_text
from unicorn_async.calls.events import Arguments, CallBegun, CallEnded, Said
from unicorn_async.calls.tool import Tool, ToolMode, ToolUse
from unicorn_async.errors import GrammarError
from unicorn_async.guidance.matchers import Matchers

from .test_call_reader import GRANITE, read, summed
from .test_tag_grammar import SCHEMA, is_allowed
from .test_tag_reader import TOOLS, Call, pieces_of

LIST = CallFormat(CallKind.PYTHON, takes_tools=True)
OLMO = CallFormat(CallKind.PYTHON, takes_tools=True, marks=("<function_calls>", "</function_calls>"), is_lined=True)
LFM2 = CallFormat(CallKind.PYTHON, takes_tools=True, marks=("<|tool_call_start|>", "<|tool_call_end|>"))
FORMS = pytest.mark.parametrize("form", [LIST, OLMO, LFM2], ids=["list", "olmo", "lfm2"])
TEXTS = [
    "a",
    "",
    "two\nlines\n",
    'it\'s "quoted" \\ é\t\0',
    "a, b) = [c]",
    "5",
    "None",
    "</function_calls>",
    "\U0001f600",
]


def one(name: str, values: dict[str, Any], write: Any = repr) -> str:
    return f"{name}({', '.join(f'{key}={write(value)}' for key, value in values.items())})"


def around(form: CallFormat, calls: list[str]) -> str:
    if form.is_lined:
        return "\n".join((form.opening, *calls, form.closing))
    return f"{form.opening}[{', '.join(calls)}]{form.closing}"


@FORMS
def test_calls_are_read_as_python_and_json_write_them_in_any_pieces(form: CallFormat) -> None:
    rng = random.Random(str(form))
    for number in range(80):
        values: dict[str, Any] = {
            "path": rng.choice(TEXTS),
            "text": rng.choice(TEXTS),
            "mode": rng.choice([5, -1, None]),
            "tags": rng.choice([[], ["a)", "it's", "\n"], ["\\"]]),
            "force": rng.random() < 0.5,
            "note": rng.choice(["a\nb", "5", None, '"']),
            "any": rng.choice([1.5, {"a": [1, None]}, "word"]),
        }
        some = dict(rng.sample(sorted(values.items()), rng.randint(0, len(values))))
        calls: list[Call] = [("write", some), ("now", {})] if rng.random() < 0.5 else [("write", some)]
        write = repr if number % 2 else json.dumps
        before = "Let me see (1).\n\n" if form.opening else ""
        answer = before + around(form, [one(*call, write) for call in calls])
        text, found = summed(read(form, [answer], TOOLS))
        assert text == before.rstrip(), answer
        assert [(name, json.loads(arguments)) for name, arguments in found] == calls, answer
        assert summed(read(form, pieces_of(answer, rng), TOOLS)) == (text, found)
        assert summed(read(form, list(answer), TOOLS)) == (text, found)


def halves(answer: str, rng: random.Random) -> list[str]:
    at = rng.randint(0, len(answer))
    return [answer[:at], answer[at:]]


def test_text_arguments_come_as_they_are_written() -> None:
    reader = CallReader(LIST, TOOLS)
    assert reader.feed("[write(pa") == []
    assert reader.feed("th='a\"") == [CallBegun("write"), Arguments('{"path": "a\\"')]
    assert reader.feed("b\\") == [Arguments("b")]
    assert reader.feed("n'") == [Arguments("\\n")]
    assert reader.feed(", mode=1") == [Arguments('"')]
    assert reader.feed("2)") == [Arguments(', "mode": 12}'), CallEnded()]
    assert reader.feed("]") == []


@pytest.mark.parametrize("form", [LIST, LFM2, GRANITE, CallFormat(CallKind.TAGGED, takes_tools=False)])
def test_calls_as_text_are_those_that_the_model_writes(form: CallFormat) -> None:
    calls = [("write", '{"path": "a\\n\\"é", "tags": ["x"], "mode": null, "force": true}'), ("now", "{}")]
    said, found = summed(read(form, [calls_text(form, calls)], TOOLS))
    assert said == "" and [(name, json.loads(text)) for name, text in found] == [
        (name, json.loads(text)) for name, text in calls
    ]
    assert "now([1)" in calls_text(LFM2, [("now", "[1")])


OTHERS: list[tuple[CallFormat, str, str, list[tuple[str, str]]]] = [
    (LIST, "[text](url)", "[text](url)", []),
    (LIST, "[1, 2]", "[1, 2]", []),
    (LIST, "See [now()]", "See [now()]", []),
    (LIST, "[other(a=1)]", "[other(a=1)]", []),
    (LIST, '[write("a.txt")]', '[write("a.txt")]', []),
    (LIST, "[write(mode==1)]", "[write(mode==1)]", []),
    (LIST, "<|python_tag|>[now()]", "", [("now", "{}")]),
    (LIST, '[write(path="say "hi" to it", mode="5")]', "", [("write", '{"path": "say \\"hi\\" to it", "mode": 5}')]),
    (LIST, '[write(path="""a "b"\n""", text=r\'x\')]', "", [("write", '{"path": "a \\"b\\"\\n", "text": "r\'x\'"}')]),
    (LIST, "[write(mode=none, force=true, tags=('a',), note=word,)]", "",
     [("write", '{"mode": "none", "force": true, "tags": ["a"], "note": "word"}')]),
    (LIST, "[free(a=1, a=2, b='\\u00e9\\ud83d\\ude00\\ud800\\x41\\xzz\\/')]", "",
     [("free", '{"a": 1, "b": "é\\ud83d\\ude00\\ud800A\\\\xzz/"}')]),
    (LIST, "[write(path='a', oops)]", "oops)]", [("write", '{"path": "a"}')]),
    (LIST, "[write(path='a", "", [("write", '{"path": "a')]),
    (LIST, "[write(path='a'", "", [("write", '{"path": "a"')]),
    (LIST, "[write(mode=1", "", [("write", '{"mode": 1')]),
    (LIST, "[write(mode='1", "", [("write", '{"mode": "1')]),
    (LIST, "[wri", "[wri", []),
    (OLMO, "a <function_calls> is", "a <function_calls> is", []),
    (OLMO, "<function_calls>now()</function_calls> end", " end", [("now", "{}")]),
    (LFM2, '<|tool_call_start|>[{"name": "now", "arguments": {}}]<|tool_call_end|>', "", [("now", "{}")]),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_what_is_cut_or_no_call_stays_as_it_is(number: int) -> None:
    form, answer, text, calls = OTHERS[number]
    for pieces in ([answer], list(answer), *(pieces_of(answer, random.Random(seed)) for seed in range(5))):
        assert summed(read(form, pieces, TOOLS)) == (text, calls)


def test_noise_never_fails_and_is_read_alike_in_any_pieces() -> None:
    rng = random.Random(9)
    parts = [
        "<function_calls>",
        "</function_calls>",
        "[",
        "]",
        "write",
        "now",
        "(",
        ")",
        "path",
        "mode",
        "=",
        "'",
        '"',
        '"""',
    ]
    parts += ["\\", "u00", "x4", ",", " ", "\n", "5", "{", "}", "é", "<|python_tag|>"]
    for _ in range(300):
        pieces = rng.choices(parts, k=rng.randint(1, 24))
        answer = rng.choice(["", "[write(path=", "[now(", "<function_calls>\nwrite(mode="]) + "".join(pieces)
        for form in (LIST, OLMO, LFM2):
            found = summed(read(form, [answer], TOOLS))
            assert found == summed(read(form, list(answer), TOOLS)) == summed(read(form, halves(answer, rng), TOOLS))
            for _, arguments in found[1][:-1]:
                json.loads(arguments)


def test_hostile_answers_are_neither_held_back_nor_slow() -> None:
    reader = CallReader(LIST, TOOLS)
    long = "[" + "x" * 999
    assert "".join(event.text for event in reader.feed(long) if isinstance(event, Said)) == long
    for value in ('"' + '\\"' * 50_000, "'" * 3_000, "[" * 50_000, "{'a': " * 20_000, '"""' + '"' * 3_000):
        for name in ("path", "tags", "any"):
            ((_, arguments),) = summed(read(LIST, [f"[write({name}={value}", ")]"], TOOLS))[1]
            assert arguments.startswith(f'{{"{name}": ')


TEMPLATES = {
    "{% if tools %}Respond as [func_name1(params_name1=params_value1)]": LIST,
    "{% for c in m.tool_calls %}{{ tool_call.name + '(' }}{% endfor %}{{ tools }}": LIST,
    "{% if tools %}<function_calls>\nname(a=1)": OLMO,
    "{% if tools %}<|tool_list_start|>{{ m.tool_calls }}": LFM2,
    "{% if tools %}List of tools: [": replace(LFM2, takes_calls=False),
    "{{ 'def ' + tool.name + '(' }}{{ tools }}": CallFormat(CallKind.TAGGED, takes_tools=False),
    '{% if tools %}{"name": x, "parameters": y} ipython {{ c.name + ".call(" }}': CallFormat(CallKind.BARE, True),
}


def test_the_form_is_told_by_the_template() -> None:
    for template, expected in TEMPLATES.items():
        assert call_format(template) == expected, template


PLAN = Tool("plan", "", SCHEMA, strict=True)


@pytest.fixture(scope="module")
def matchers() -> Matchers:
    return Matchers(made_vocabulary())


@FORMS
def test_strict_arguments_fit_whatever_is_drawn(matchers: Matchers, form: CallFormat) -> None:
    grammar, num_ended = call_grammar(ToolUse((PLAN,), ToolMode.REQUIRED, parallel=False), form, {}), 0
    for seed in range(16):
        text = generated(matchers, grammar, seed, most=600)
        if text is not None:
            num_ended += 1
            said, calls = summed(read(form, [text.decode(errors="replace")], {"plan": SCHEMA}))
            assert said.strip() == "" and len(calls) == 1
            jsonschema.validate(json.loads(calls[0][1]), SCHEMA)
    assert num_ended >= 6


@FORMS
def test_arguments_that_need_not_be_there_may_be_left_out(matchers: Matchers, form: CallFormat) -> None:
    properties = {name: {"type": "integer"} for name in "abc"}
    some = Tool("some", "", {"properties": properties, "required": ["b"], "additionalProperties": False})
    use = ToolUse((some, Tool("any", "", {})), ToolMode.REQUIRED)
    grammar = call_grammar(use, form, {})
    for text, is_right in (("b=1", True), ("a=1, b=2", True), ("b=1, c=2", True), ("a=1", False), ("b=1, a=2", False)):
        assert is_allowed(matchers, grammar, around(form, [f"some({text})"])) is is_right, text
    assert is_allowed(matchers, grammar, around(form, ["some(b=1)", 'any(x="y", z=[null])', "any()"]))
    one_call = call_grammar(ToolUse((some,), ToolMode.REQUIRED, parallel=False), form, {})
    assert not is_allowed(matchers, one_call, around(form, ["some(b=1)"] * 2), end=False)


def test_names_that_no_argument_can_have_are_refused() -> None:
    with pytest.raises(GrammarError, match="odd: 'a b' can't be an argument's name"):
        call_grammar(ToolUse((Tool("odd", "", {"properties": {"a b": {}}}),), ToolMode.REQUIRED), LIST, {})
