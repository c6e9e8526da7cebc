"""Calls read out of answers, however these are cut into pieces."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from unicorn_async.calls.call_format import CallFormat, CallKind, call_format
from unicorn_async.calls.call_reader import CallReader
from unicorn_async.calls.events import Arguments, CallBegun, CallEnded, CallEvent, Said

if TYPE_CHECKING:
    from collections.abc import Mapping

TEXT: dict[str, object] = {"type": "string"}
TOOLS: dict[str, dict[str, object]] = {
    "add": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array"}}},
    "find": {
        "type": "object",
        "properties": {"text": TEXT, "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
    },
}
TAGGED, GENERAL = CallFormat(CallKind.TAGGED, takes_tools=True), CallFormat(CallKind.TAGGED, takes_tools=False)
BARE, LISTED = CallFormat(CallKind.BARE, takes_tools=True), CallFormat(CallKind.LISTED, takes_tools=True)
GRANITE = CallFormat(CallKind.LISTED, takes_tools=True, marks=("<|tool_call|>", ""), takes_calls=False)
NAMED = CallFormat(CallKind.NAMED, takes_tools=True)
DEEPSEEK = CallFormat(CallKind.SEPARATED, takes_tools=True)
FENCED = CallFormat(CallKind.SEPARATED, takes_tools=True, is_lined=True)
BEGIN, ALL, CALL, END = (f"<｜tool▁{word}｜>" for word in ("calls▁begin", "calls▁end", "call▁begin", "call▁end"))
SEP = "<｜tool▁sep｜>"
A, B = '{"a": 1, "b": [2, "x}"]}', '{"text": "a \\\\\\" ] </tool_call> é"}'
ADD, FIND = ("add", A), ("find", B)


def one(name: str, arguments: str, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


CASES: list[tuple[CallFormat, str, str, list[tuple[str, str]]]] = [
    (TAGGED, "Just text, with < and <tool.", "Just text, with < and <tool.", []),
    (TAGGED, f"<tool_call>\n{one(*ADD)}\n</tool_call>", "", [ADD]),
    (
        TAGGED,
        f"Let me see.\n\n<tool_call>{one(*ADD)}</tool_call>\n<tool_call>{one(*FIND)}</tool_call>",
        "Let me see.",
        [ADD, FIND],
    ),
    (TAGGED, f'<tool_call>{{"arguments": {A}, "name": "add"}}</tool_call>', "", [ADD]),
    (TAGGED, '<tool_call>{"name": "add"}</tool_call>', "", [("add", "{}")]),
    (TAGGED, '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("add", '{"a": 1}')]),
    (TAGGED, f"<tool_call>{one('other', A)}</tool_call>", one("other", A), []),
    (TAGGED, '<tool_call>{"name": "add", "arguments": {"a": ', "", [("add", '{"a": ')]),
    (TAGGED, "a\n\nb \n", "a\n\nb \n", []),
    (GENERAL, one(*ADD), "", [ADD]),
    (GENERAL, f"```json\n{one(*ADD)}\n```", "", [ADD]),
    (GENERAL, "```json\n[1]\n```", "```json\n[1]\n```", []),
    (GENERAL, '{"answer": 5}', '{"answer": 5}', []),
    (BARE, one(*ADD, "parameters"), "", [ADD]),
    (BARE, f"<|python_tag|>{one(*ADD, 'parameters')}; {one(*FIND, 'parameters')}", "", [ADD, FIND]),
    (BARE, "No {call}", "No {call}", []),
    (LISTED, f"[TOOL_CALLS] [{one(*ADD)}, {one(*FIND)}]", "", [ADD, FIND]),
    (GRANITE, f"<|tool_call|>[{one(*ADD)}, {one(*FIND)}]", "", [ADD, FIND]),
    (LISTED, "a [list", "a [list", []),
    (NAMED, f"[TOOL_CALLS]add[ARGS]{A}[TOOL_CALLS]find[ARGS]{B}", "", [ADD, FIND]),
    (NAMED, f"Well: [TOOL_CALLS]add{A}", "Well: ", [ADD]),
    (DEEPSEEK, f"{BEGIN}{CALL}add{SEP}{A}{END}{CALL}find{SEP}{B}{END}{ALL}", "", [ADD, FIND]),
    (DEEPSEEK, f"Well, <｜tool is none.\n\n{BEGIN}{CALL}add{SEP}{A}{END}{ALL}", "Well, <｜tool is none.", [ADD]),
    (DEEPSEEK, f"{BEGIN}{CALL}add{SEP}{A}{END}{ALL} So.", "So.", [ADD]),
    (DEEPSEEK, f"{CALL}find{SEP}\n{B}\n{END}", "", [FIND]),
    (DEEPSEEK, f"{BEGIN}{CALL}find{SEP}{B[:9]}", "", [("find", B[:9])]),
    (DEEPSEEK, f"{BEGIN}\n{CALL}function{SEP}add\n```json\n{A}\n```{END}\n{ALL}", "", [ADD]),
    (DEEPSEEK, f"{BEGIN}{CALL}other{SEP}{A}", f"other{SEP}{A}", []),
    (DEEPSEEK, f"{BEGIN}{CALL}add{SEP}", f"add{SEP}", []),
    (DEEPSEEK, A, A, []),
    (
        FENCED,
        f"Let me see.{BEGIN}{CALL}function{SEP}add\n```json\n{A}\n```{END}\n"
        f"{CALL}function{SEP}find\n```json\n{B}\n```{END}{ALL}",
        "Let me see.",
        [ADD, FIND],
    ),
]


def read(form: CallFormat, pieces: list[str], tools: Mapping[str, Mapping[str, object]] = TOOLS) -> list[CallEvent]:
    reader, events = CallReader(form, tools), []
    for piece in pieces:
        events += reader.feed(piece)
    return events + reader.finish()


def summed(events: list[CallEvent]) -> tuple[str, list[tuple[str, str]]]:
    text, calls, is_open = "", [], False
    for event in events:
        match event:
            case Said(more):
                assert not is_open
                text += more
            case CallBegun(name):
                assert not is_open
                calls.append((name, ""))
                is_open = True
            case Arguments(delta):
                assert is_open
                calls[-1] = (calls[-1][0], calls[-1][1] + delta)
            case CallEnded():
                assert is_open
                is_open = False
    assert not is_open
    return text, calls


@pytest.mark.parametrize("number", range(len(CASES)))
def test_calls_and_text_are_the_same_in_any_pieces(number: int) -> None:
    form, answer, text, calls = CASES[number]
    rng = random.Random(number)
    cuts = sorted(rng.sample(range(1, len(answer)), min(5, len(answer) - 1)))
    some = [answer[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    for pieces in ([answer], list(answer), some):
        found_text, found_calls = summed(read(form, pieces))
        assert (found_text.strip(), found_calls) == (text.strip(), calls)


def test_arguments_come_as_they_are_written() -> None:
    reader = CallReader(TAGGED, TOOLS)
    assert reader.feed('<tool_call>{"name": "add", "arguments": {"a"') == [CallBegun("add"), Arguments('{"a"')]
    assert reader.feed(": 1") == [Arguments(": 1")]
    assert reader.feed("}} ") == [Arguments("}"), CallEnded()]


def test_text_is_held_back_only_where_a_call_may_begin() -> None:
    reader = CallReader(TAGGED, TOOLS)
    assert reader.feed("Hello <") == [Said("Hello")]
    assert reader.feed("b>") == [Said(" <b>")]


def test_noise_never_fails_and_nothing_of_it_is_lost_as_text() -> None:
    rng = random.Random(5)
    parts = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "add", "```json\n", "```", "<|python_tag|>"]
    parts += ["{", "}", "[", "]", '"name"', ":", '"add"', ",", '"arguments"', "\\", '"', "x", " ", "\n", "null", "5"]
    parts += [BEGIN, CALL, SEP, END, ALL, "```"]
    for _ in range(3000):
        pieces = rng.choices(parts, k=rng.randint(1, 14))
        for form in (TAGGED, GENERAL, BARE, LISTED, NAMED, DEEPSEEK, FENCED):
            summed(read(form, pieces))


TEMPLATES = {
    "{% if tools %}<tool_call>{% endif %}": CallFormat(CallKind.TAGGED, takes_tools=True),
    "{% if tools %}<tool_call>\n<function=x>\n<parameter=a>\nb": CallFormat(CallKind.XML, True, is_lined=True),
    "{% if tools %}<seed:tool_call><function=x>\\n<parameter=a>b": CallFormat(
        CallKind.XML, takes_tools=True, marks=("<seed:tool_call>", "</seed:tool_call>")
    ),
    "{% if tools %}<tool_call>x<arg_key>": CallFormat(CallKind.KEYED, takes_tools=True),
    "{% if tools %}<tool_call><function=x>{% endif %}": CallFormat(CallKind.TAGGED, takes_tools=False),
    '{% if tools %}{"name": x, "parameters": y} ipython': CallFormat(CallKind.BARE, takes_tools=True),
    "{% if tools %}[AVAILABLE_TOOLS][TOOL_CALLS][{": CallFormat(CallKind.LISTED, takes_tools=True),
    "{% if tools %}{% set available_tools = tools %}<|tool_call|>": GRANITE,
    "{% if tools %}[TOOL_CALLS]name[ARGS]{": CallFormat(CallKind.NAMED, takes_tools=True),
    f"{{% if tools %}}{BEGIN}{CALL}": DEEPSEEK,
    f"{{% if tools %}}{BEGIN}{CALL}```json": FENCED,
    f"{{% if message['tool_calls'] is defined %}}{BEGIN}{CALL}": CallFormat(CallKind.SEPARATED, takes_tools=False),
    f"{{% if message['content'] is none %}}{{% for one in message['tool_calls'] %}}{BEGIN}": GENERAL,
    "{{ messages }}": CallFormat(CallKind.TAGGED, takes_tools=False),
}


def test_the_form_is_told_by_the_template() -> None:
    for template, expected in TEMPLATES.items():
        assert call_format(template) == expected, template
    assert call_format(None) == CallFormat(CallKind.TAGGED, takes_tools=False)
