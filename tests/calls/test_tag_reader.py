"""Calls whose arguments stand between tags: typed by the tools' schemas, the same in any pieces."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from unicorn_async.calls.argument_types import argument_json, types_of
from unicorn_async.calls.call_format import CallFormat, CallKind
from unicorn_async.calls.call_reader import CallReader
from unicorn_async.calls.events import Arguments, CallBegun, CallEnded, Said

from .test_call_reader import read, summed

XML = CallFormat(CallKind.XML, takes_tools=True, is_lined=True)
SEED = CallFormat(CallKind.XML, takes_tools=True, marks=("<seed:tool_call>", "</seed:tool_call>"))
KEYED = CallFormat(CallKind.KEYED, takes_tools=True)
TOOLS: dict[str, dict[str, object]] = {
    "write": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "text": {"$ref": "#/$defs/Text"},
            "mode": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "force": {"type": "boolean"},
            "note": {"type": ["string", "null"]},
            "any": {},
        },
        "$defs": {"Text": {"type": "string"}},
    },
    "now": {"type": "object", "properties": {}},
    "free": {},
}
Call = tuple[str, dict[str, Any]]
TEXTS = [
    "a",
    "",
    "two\nlines\n",
    '\n"quoted" \\ é\t',
    "<b>x</b> </parameter> y",
    "</arg_value>z",
    "5",
    "null",
    "<tool_call>",
]


def written(form: CallFormat, name: str, values: dict[str, Any]) -> str:
    """A call as the models' templates write it."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    if form.kind is CallKind.KEYED:
        lines = [f"<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n" for key, text in texts.items()]
        return f"<tool_call>{name}\n{''.join(lines)}</tool_call>"
    line = "\n" if form.is_lined else ""
    lines = [f"<parameter={key}>{line}{text}{line}</parameter>\n" for key, text in texts.items()]
    return f"{form.opening}\n<function={name}>\n{''.join(lines)}</function>\n{form.closing}"


def found(form: CallFormat, pieces: list[str]) -> tuple[str, list[Call]]:
    text, calls = summed(read(form, pieces, TOOLS))
    return text, [(name, json.loads(arguments)) for name, arguments in calls]


def pieces_of(answer: str, rng: random.Random) -> list[str]:
    cuts = sorted(rng.sample(range(1, len(answer)), min(rng.randint(1, 12), len(answer) - 1)))
    return [answer[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(answer)], strict=True)]


FORMS = pytest.mark.parametrize("form", [XML, SEED, KEYED], ids=["xml", "seed", "keyed"])


@FORMS
def test_what_templates_write_is_read_back_in_any_pieces(form: CallFormat) -> None:
    rng = random.Random(form.kind.value)
    for _ in range(80):
        values: dict[str, Any] = {
            "path": rng.choice(TEXTS),
            "text": rng.choice(TEXTS),
            "mode": rng.choice([5, -1, None]),
            "tags": rng.choice([[], ["a", "</parameter>", "\n"]]),
            "force": rng.random() < 0.5,
            "note": rng.choice(["a\nb", "5", None, '"']),
            "any": rng.choice([1.5, {"a": [1]}, "word"]),
        }
        some = dict(rng.sample(sorted(values.items()), rng.randint(0, len(values))))
        calls: list[Call] = [("write", some), ("now", {})] if rng.random() < 0.5 else [("write", some)]
        answer = "Let me see: 1 < 2.\n\n" + "\n".join(written(form, *call) for call in calls)
        assert found(form, [answer]) == ("Let me see: 1 < 2.", calls), answer
        events = summed(read(form, [answer], TOOLS))
        assert summed(read(form, pieces_of(answer, rng), TOOLS)) == events
        assert summed(read(form, list(answer), TOOLS)) == events


def test_text_arguments_come_as_they_are_written() -> None:
    reader = CallReader(XML, TOOLS)
    assert reader.feed("<tool_call>\n<function=write>\n<para") == []
    assert reader.feed('meter=path>\na"') == [CallBegun("write"), Arguments('{"path": "a\\"')]
    assert reader.feed("b\nc\n") == [Arguments("b\\nc")]
    assert reader.feed("</parameter>\n<parameter=mode>\n 1") == [Arguments('"')]
    assert reader.feed("2\n</parameter>\n</function>") == [Arguments(', "mode": 12}'), CallEnded()]
    assert reader.feed("\n</tool_call>\n") == []
    assert reader.feed("Done") == [Said("\nDone")]


CUT: list[tuple[CallFormat, str, str, list[tuple[str, str]]]] = [
    (XML, "<tool_call>\n<function=wri", "<tool_call>\n<function=wri", []),
    (XML, "<tool_call>\n<function=write>\n<parameter=text>\nab\n</par", "", [("write", '{"text": "ab')]),
    (XML, "<tool_call>\n<function=write>\n<parameter=mode>\n12", "", [("write", '{"mode": 12')]),
    (XML, "<tool_call>\n<function=write>\n<parameter=text>\nab\n</parameter>\n", "", [("write", '{"text": "ab"')]),
    (KEYED, "<tool_call>write\n<arg_key>text</arg_key>\n<arg_value>ab</arg", "", [("write", '{"text": "ab')]),
    (KEYED, "<tool_call>write\n<arg_key>te", "", [("write", "")]),
]
OTHERS: list[tuple[CallFormat, str, str, list[tuple[str, str]]]] = [
    (XML, "a <tool_call> is", "a <tool_call> is", []),
    (XML, "<tool_call>\n<function=other>\n</function>", "<tool_call>\n<function=other>\n</function>", []),
    (XML, "say <function=now> or not", "say <function=now> or not", []),
    (XML, "<function=now>\n</function>\n</tool_call>", "", [("now", "{}")]),
    (XML, "<tool_call>\n<function=now>\n</tool_call>", "", [("now", "{}")]),
    (XML, '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', "", [("now", "{}")]),
    (XML, "<tool_call>\n<function=free>\n<parameter=a>x</parameter>\n</function>", "", [("free", '{"a": "x"}')]),
    (
        XML,
        "<tool_call>\n<function=free>\n<parameter=a>\n1\n</parameter>\n<parameter=a>\n2\n</parameter>\n</function>",
        "",
        [("free", '{"a": 1}')],
    ),
    (XML, "<tool_call>\n<function=write>\n<parameter=force>\nTrue\n</parameter>\n</function>", "",
     [("write", '{"force": true}')]),
    (
        SEED,
        "<seed:tool_call><function=write><parameter=tags>['x', \"it's\"]</parameter></function></seed:tool_call>",
        "",
        [("write", '{"tags": ["x", "it\'s"]}')],
    ),
    (KEYED, "<tool_call>now</tool_call> end", " end", [("now", "{}")]),
    (KEYED, "<tool_call>other\n</tool_call>", "<tool_call>other\n</tool_call>", []),
    (KEYED, "<tool_call>free<arg_key>a</arg_key><arg_value>x</arg_value></tool_call>", "", [("free", '{"a": "x"}')]),
    (KEYED, "<tool_call>free<arg_key>a</arg_key>junk", "<arg_key>a</arg_key>junk", [("free", "{}")]),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CUT) + len(OTHERS)))
def test_what_is_cut_or_no_call_stays_as_it_is(number: int) -> None:
    form, answer, text, calls = [*CUT, *OTHERS][number]
    for pieces in ([answer], list(answer), *(pieces_of(answer, random.Random(seed)) for seed in range(5))):
        assert summed(read(form, pieces, TOOLS)) == (text, calls)


def test_noise_never_fails_is_never_lost_and_calls_have_whole_arguments() -> None:
    rng = random.Random(7)
    parts = [
        "<tool_call>",
        "</tool_call>",
        "<function=",
        "write",
        "now",
        ">",
        "</function>",
        "<parameter=",
        "text",
        "mode",
    ]
    parts += [
        "</parameter>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "\n",
        " ",
        "5",
        '"',
        "{",
        "é",
        "\\",
    ]
    for _ in range(250):
        pieces = rng.choices(parts, k=rng.randint(1, 24))
        answer = "".join(pieces)
        for form in (XML, SEED, KEYED):
            found = summed(read(form, pieces, TOOLS))
            assert found == summed(read(form, [answer], TOOLS)) == summed(read(form, list(answer), TOOLS))
            for _, arguments in found[1][:-1]:
                json.loads(arguments)


def test_hostile_answers_are_neither_held_back_nor_slow() -> None:
    for form, begin in ((XML, "<function=" + "x" * 999), (KEYED, "<tool_call>" + "x" * 999)):
        assert summed(read(form, list(begin), TOOLS)) == (begin, [])
        reader = CallReader(form, TOOLS)
        assert "".join(event.text for event in reader.feed(begin) if isinstance(event, Said)) == begin
    begin = "<function=write>\n<parameter="
    key = "k" * 999
    assert summed(read(XML, [begin, *key], TOOLS)) == (f"<parameter={key}", [("write", "{}")])
    value = "</parameter>" * 2000
    answer = written(XML, "write", {"text": value})
    assert found(XML, list(answer)) == ("", [("write", {"text": value})])


TYPES: list[tuple[object, str, object]] = [
    ({"type": "string"}, "5", "5"),
    ({"type": "string"}, '"a"', '"a"'),
    ({"type": ["string", "null"]}, "null", None),
    ({"type": ["string", "null"]}, "5", "5"),
    ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "5", 5),
    ({"type": "integer"}, "five", "five"),
    ({"type": "number"}, "5", 5),
    ({"type": "number"}, "NaN", "NaN"),
    ({"type": "boolean"}, " False\n", False),
    ({"type": "object"}, '{"a": 1}', {"a": 1}),
    ({"type": "object"}, "[" * 99999, "[" * 99999),
    ({"enum": ["a", "5"]}, "5", "5"),
    ({"enum": ["a", 5]}, "5", 5),
    ({"allOf": [{"type": "string"}]}, "5", "5"),
    ({"$ref": "#/$defs/Text"}, "5", "5"),
    ({"$ref": "#/$defs/None"}, "5", 5),
    ({"$ref": "#/$defs/Loop"}, "word", "word"),
    ({"type": "unheard"}, "[1]", [1]),
    (True, "{", "{"),
]


@pytest.mark.parametrize("number", range(len(TYPES)))
def test_values_have_the_types_of_the_schema(number: int) -> None:
    schema, text, value = TYPES[number]
    root: dict[str, object] = {"$defs": {"Text": {"type": "string"}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}] * 9}}}
    assert json.loads(argument_json(text, types_of(schema, root))) == value
